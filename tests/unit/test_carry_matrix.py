"""The matrix: verdicts on releases that differ in one thing each, what is kept, what is not guessed."""

from __future__ import annotations

import difflib

import pytest

from dspatch import fetch, paths, threeway
from dspatch.carry.matrix import matrixstore
from dspatch.carry.matrix.matrix import Cell
from dspatch.carry.matrix.matrixkeys import Keys
from dspatch.carry.remote import releases, remote
from dspatch.carry.uses import usesfile
from dspatch.carry.uses.usesfile import Recorded, Use
from dspatch.errors import DownloadError, OfflineError, PatchFormatError, UnknownRevisionError
from dspatch.series import layered
from tests.unit import matrixkit
from tests.unit.index_server import Served, serve
from tests.unit.matrixkit import FILES, HELD, MLA, NATIVE, NATIVE_TRAITS, PATCH, offer

PLATFORM = FILES["vllm/platform.py"]
REGISTRY = FILES["vllm/registry.py"]
ENGINE = "vllm/engine.py"


@pytest.fixture
def server(monkeypatch):
    monkeypatch.setattr(fetch, "PAUSE", 0.0)
    with serve() as running:
        running.alone(monkeypatch)
        yield running


@pytest.fixture
def series(monkeypatch, tmp_path):
    """Writes the series that ships."""
    monkeypatch.setenv("DSPATCH_DATA", str(tmp_path / "data"))
    return lambda patches=None, traits="": matrixkit.write_series(
        tmp_path / "data", {"cpu-mla": PATCH} if patches is None else patches, traits
    )


def form(before: bytes, after: bytes, path: str = ENGINE) -> str:
    """A diff with the blob that it was made on, as git writes it."""
    lines = difflib.unified_diff(
        *(text.decode().splitlines(keepends=True) for text in (before, after)),
        f"a/{path}",
        f"b/{path}",
    )
    ids = f"index {threeway.blob_id(before)}..{threeway.blob_id(after)} 100644\n"
    return f"diff --git a/{path} b/{path}\n{ids}{''.join(lines)}"


# -- verdicts --------------------------------------------------------------------------------------


def test_every_verdict_of_a_rendered_patch(server, series):
    series()
    offer(server, "1.0")
    offer(
        server, "1.1", {"vllm/platform.py": PLATFORM.replace(MLA.encode(), b"            pass\n")}
    )
    offer(server, "1.2", {"vllm/registry.py": None})
    offer(server, "1.3", {"vllm/registry.py": REGISTRY.replace(b"CPU_ATTN =", b"CPU =")})
    offer(server, "1.4", {"vllm/cpu_mla.py": b"# upstream's own\n"})
    done = matrixkit.run()
    assert matrixkit.verdicts(done, "cpu-mla") == {
        "1.0": "semantic",
        "1.1": "not needed",
        "1.2": "semantic",  # the edit of the registry is only for releases that have one
        "1.3": "conflict",
        "1.4": "conflict",
    }
    assert "the CPU platform refuses MLA" in matrixkit.why(done, "cpu-mla", "1.1")
    assert "CPU_ATTN = 'mini.cpu_attn'" in matrixkit.why(done, "cpu-mla", "1.3")
    assert "is there already" in matrixkit.why(done, "cpu-mla", "1.4")


def test_a_file_that_is_gone_is_missing_and_its_new_place_is_no_guess(server, series):
    series({"engine": NATIVE.replace('needs = ["kernel_is_slow"]', "needs = []")})
    offer(server, "1.0")
    offer(server, "1.1", {ENGINE: None, "vllm/core/engine.py": FILES[ENGINE]})
    done = matrixkit.run()
    assert matrixkit.verdicts(done, "engine") == {"1.0": "semantic", "1.1": "missing"}
    assert matrixkit.why(done, "engine", "1.1") == "vllm/engine.py is not there"


def test_what_the_release_has_already_is_upstreamed(server, series):
    series({"engine": NATIVE.replace('needs = ["kernel_is_slow"]', "needs = []")})
    offer(server, "1.0", {ENGINE: b"def run(): return None\n"})
    assert matrixkit.verdicts(matrixkit.run(), "engine") == {"1.0": "upstreamed"}


def test_every_verdict_of_a_diff(server, series):
    before = b"".join(b"line = %d\n" % at for at in range(40))
    after = before.replace(b"line = 20\n", b"line = 200\n")
    folder = series({})
    (folder / "series").write_text("held\n")
    held = folder / "held"
    held.mkdir()
    (held / "patch.toml").write_text(HELD)
    (held / "v1.0.diff").write_text(form(before, after))
    offer(server, "1.0", {ENGINE: before})
    offer(server, "1.1", {ENGINE: b"# new\n" + before})
    offer(server, "1.2", {ENGINE: before.replace(b"line = 18\n", b"line = 180\n")})
    offer(server, "1.3", {ENGINE: after.replace(b"line = 39\n", b"")})
    offer(server, "1.4", {ENGINE: before.replace(b"line = 20\n", b"line = -20\n")})
    offer(server, "1.5", {ENGINE: None})
    done = matrixkit.run()
    assert matrixkit.verdicts(done, "held", "cuda") == {
        "1.0": "strict",
        "1.1": "strict",
        "1.2": "merged",
        "1.3": "upstreamed",
        "1.4": "conflict",
        "1.5": "missing",
    }
    assert "engine.py" in matrixkit.why(done, "held", "1.4", "cuda")
    assert not list((paths.cache() / "downloads").glob("*/*.whl")), "merged without a whole wheel"


def test_a_changed_upstream_symbol_is_signature_drift(server, series):
    folder = series({"engine": NATIVE.replace('needs = ["kernel_is_slow"]', "needs = []")})
    use = Use(
        symbol="vllm.platform.CpuPlatform.backend",
        shape="classmethod (use_mla, use_sparse)",
        ways=("call 2",),
        where=(ENGINE,),
    )
    recorded = Recorded(written_for="v1.0", uses=(use,))
    (folder / "engine" / usesfile.NAME).write_text(usesfile.write(recorded))
    offer(server, "1.0")
    offer(server, "1.1", {"vllm/platform.py": PLATFORM.replace(b"def backend", b"def backends")})
    done = matrixkit.run()
    assert matrixkit.verdicts(done, "engine")["1.1"] == "signature drift"
    assert "CpuPlatform.backend" in matrixkit.why(done, "engine", "1.1")


def test_a_patch_stands_on_those_before_it(server, series):
    later = NATIVE.replace('needs = ["kernel_is_slow"]', 'needs = ["refuses_mla"]')
    later = later.replace(ENGINE, "vllm/cpu_mla.py").replace("def run(): ...", "REGISTERED = ...")
    later = later.replace("def run(): return None", "REGISTERED = 1")
    series({"cpu-mla": PATCH, "later": later})
    offer(server, "1.0")
    offer(server, "1.1", {"vllm/registry.py": REGISTRY.replace(b"CPU_ATTN =", b"CPU =")})
    done = matrixkit.run(targets=("cpu",))
    assert matrixkit.verdicts(done, "later") == {"1.0": "semantic", "1.1": "missing"}


def test_one_whose_symbols_drifted_leaves_nothing_to_those_that_stand_on_it(server, series):
    later = NATIVE.replace('needs = ["kernel_is_slow"]', 'needs = ["refuses_mla"]')
    later = later.replace(ENGINE, "vllm/cpu_mla.py").replace("def run(): ...", "REGISTERED = ...")
    later = later.replace("def run(): return None", "REGISTERED = 1")
    folder = series({"cpu-mla": PATCH, "later": later})
    use = Use(symbol="vllm.engine.run", shape="function ()", ways=("call 0",), where=(ENGINE,))
    recorded = Recorded(written_for="v1.0", uses=(use,))
    (folder / "cpu-mla" / usesfile.NAME).write_text(usesfile.write(recorded))
    offer(server, "1.0", {ENGINE: b"def run(): ...\n"})
    offer(server, "1.1", {ENGINE: b"def walk(): ...\n"})
    done = matrixkit.run(targets=("cpu",))
    assert matrixkit.verdicts(done, "cpu-mla") == {"1.0": "semantic", "1.1": "signature drift"}
    assert matrixkit.verdicts(done, "later") == {"1.0": "semantic", "1.1": "missing"}
    assert matrixkit.why(done, "later", "1.1") == "vllm/cpu_mla.py is not there"


def test_targets_and_variants_narrow_the_rows(server, series):
    series({"cpu-mla": PATCH.replace('needs = ["refuses', 'families = ["mla"]\nneeds = ["refuses')})
    offer(server, "1.0")
    assert [(row.patch, row.target) for row in matrixkit.run().rows] == [("cpu-mla", "cpu")]
    on_cuda = matrixkit.run(targets=("cuda",))
    assert (on_cuda.rows, on_cuda.outside) == ((), {"cpu-mla": "for cpu"})
    other = matrixkit.run(variants=("deepseek-llm-7b",))
    assert other.rows == ()
    assert other.outside == {"cpu-mla": "no variant of the job is mla"}


def test_a_patch_that_the_users_own_series_leaves_out(server, series, monkeypatch, tmp_path):
    series()
    own = tmp_path / "own" / "vllm"
    own.mkdir(parents=True)
    (own / "series").write_text("!cpu-mla\n")
    monkeypatch.setenv("DSPATCH_PATCHES", str(tmp_path / "own"))
    offer(server, "1.0")
    done = matrixkit.run()
    assert (done.rows, done.outside) == ((), {"cpu-mla": "your own series leaves it out"})


def test_no_patches_and_no_releases(server, series):
    series({})
    assert matrixkit.run().releases == ()
    offer(server, "1.0")
    done = matrixkit.run()
    assert (done.releases, done.rows) == (("1.0",), ())


# -- native sources --------------------------------------------------------------------------------


@pytest.fixture
def native(server, series):
    series({"native": NATIVE, "cpu-mla": PATCH}, NATIVE_TRAITS)
    offer(server, "1.0", native={"csrc/kernel.cpp": b"// slow\n"})
    offer(server, "1.1", native={"csrc/kernel.cpp": b"// fast\n"})
    offer(server, "1.2")
    offer(server, "1.3", {"vllm/platform.py": b"x = 1\n"})


def test_without_native_sources_no_verdict_is_guessed(native, server):
    done = matrixkit.run()
    assert matrixkit.verdicts(done, "native") == {
        "1.0": "not measured",
        "1.1": "not measured",
        "1.2": "not measured",
        "1.3": "not needed",  # told by the Python alone
    }
    assert "csrc/kernel.cpp" in matrixkit.why(done, "native", "1.0")
    assert "--native reads the sdist" in matrixkit.why(done, "native", "1.0")
    assert matrixkit.why(done, "native", "1.2").endswith("and there is no sdist")
    assert matrixkit.verdicts(done, "cpu-mla")["1.0"] == "semantic"
    assert not any("tar.gz" in request for request in server.requests)


def test_native_sources_come_from_the_sdist_once(native, server):
    for _ in range(2):
        done = matrixkit.run(native=True)
        assert matrixkit.verdicts(done, "native") == {
            "1.0": "semantic",
            "1.1": "not needed",
            "1.2": "not measured",  # it has no sdist
            "1.3": "not needed",
        }
    assert sum("tar.gz" in request for request in server.requests) == 2
    assert not list((paths.cache() / "downloads").iterdir())


def test_a_native_measurement_does_not_change_what_is_told_without(native, server):
    before = matrixkit.verdicts(matrixkit.run(), "native")
    matrixkit.run(native=True)
    done = matrixkit.run()
    assert (matrixkit.verdicts(done, "native"), done.fresh) == (before, 0)
    again = matrixkit.run(native=True)
    assert (matrixkit.verdicts(again, "native")["1.0"], again.fresh) == ("semantic", 0)


def test_native_sources_that_the_cache_lost_are_read_again(native, server, series):
    matrixkit.run(native=True)
    for path in (paths.cache() / "members").glob("*/*"):
        path.unlink()
    changed = NATIVE.replace("It is slow.", "It is far too slow.")
    series({"native": changed, "cpu-mla": PATCH}, NATIVE_TRAITS)
    assert matrixkit.verdicts(matrixkit.run(native=True), "native")["1.0"] == "semantic"


# -- what is kept ------------------------------------------------------------------------------------


OTHER = NATIVE.replace('needs = ["kernel_is_slow"]', "needs = []")


def test_a_warm_run_measures_and_fetches_nothing(server, series):
    series({"cpu-mla": PATCH, "engine": OTHER})
    for version in ("1.0", "1.1", "1.2"):
        offer(server, version, {"vllm/x.py": version.encode()})
    cold = matrixkit.run()
    warm = matrixkit.run()
    assert (cold.fresh, cold.kept) == (9, 0)
    assert (warm.fresh, warm.kept, warm.requests, warm.bytes) == (0, 9, 0, 0)
    assert warm.rows == cold.rows


def test_a_changed_patch_measures_itself_only(server, series):
    series({"cpu-mla": PATCH, "engine": OTHER})
    offer(server, "1.0")
    matrixkit.run()
    series({"cpu-mla": PATCH, "engine": OTHER.replace("It is slow.", "Slow.")})
    done = matrixkit.run()
    assert (done.fresh, done.kept) == (2, 1)  # for both targets
    series({"cpu-mla": PATCH, "engine": OTHER})
    assert matrixkit.run().fresh == 0, "what was measured before is still kept"


def test_a_changed_patch_measures_those_that_stand_on_it_too(server, series):
    second = OTHER.replace("def run(): ...", "def run(): return None")
    second = second.replace('text = "def run(): return None"', 'text = "def run(): return 2"')
    series({"engine": OTHER, "second": second, "cpu-mla": PATCH})
    offer(server, "1.0")
    assert matrixkit.verdicts(matrixkit.run(), "second") == {"1.0": "semantic"}
    series({"engine": OTHER.replace("return None", "return 1"), "second": second, "cpu-mla": PATCH})
    done = matrixkit.run()
    assert (done.fresh, done.kept) == (4, 1)
    assert matrixkit.verdicts(done, "second") == {"1.0": "conflict"}


def test_a_patch_in_a_package_that_a_trait_names_stands_on_those_that_change_it(server, series):
    ops = 'first_of = [\n    { value = "vllm.v1", file = "vllm/v1/__init__.py" },\n'
    ops = f'\n[ops]\nwhat = "the operators"\n{ops}    {{ value = "vllm", file = "{ENGINE}" }},\n]\n'
    later = NATIVE.replace('needs = ["kernel_is_slow"]', 'needs = ["refuses_mla"]\nat = "ops"')
    later = later.replace(ENGINE, "@/cpu_mla.py").replace("def run(): ...", "REGISTERED = ...")
    later = later.replace("def run(): return None", "REGISTERED = 1")
    series({"cpu-mla": PATCH, "later": later}, ops)
    offer(server, "1.0")
    assert matrixkit.verdicts(matrixkit.run(), "later") == {"1.0": "semantic"}
    again = later.replace("It is slow.", "Slow.")
    series({"cpu-mla": PATCH, "later": again}, ops)
    done = matrixkit.run(targets=("cpu",))
    assert (done.fresh, done.kept) == (1, 1)
    assert matrixkit.verdicts(done, "later") == {"1.0": "semantic"}, "with what it stands on"
    series({"cpu-mla": PATCH.replace("subject = ", "subject = 'x' #"), "later": again}, ops)
    assert matrixkit.run(targets=("cpu",)).fresh == 2


def test_a_new_trait_of_another_patch_measures_nothing_else(server, series):
    series({"cpu-mla": PATCH})
    offer(server, "1.0")
    matrixkit.run()
    series({"cpu-mla": PATCH, "native": NATIVE}, NATIVE_TRAITS)
    done = matrixkit.run()
    assert (done.fresh, done.kept) == (2, 1)


def test_what_a_key_depends_on(series):
    folder = series({"cpu-mla": PATCH, "engine": OTHER})

    def keys():
        return Keys(layered("vllm"), []).all

    first = keys()
    (folder / "engine" / usesfile.NAME).write_text("written-for = 'v1.0'\n")
    second = keys()
    assert second["cpu-mla"] == first["cpu-mla"]
    assert second["engine"] != first["engine"]
    (folder / "engine" / usesfile.NAME).write_text("written-for = 'v1.1'\n")
    assert keys()["engine"] != second["engine"], "recorded anew"
    (folder / "engine" / usesfile.NAME).write_text("written-for = 'v1.0'\n")
    traits = folder / "traits.toml"
    traits.write_text(traits.read_text().replace("not supported on CPU", "no"))
    third = keys()
    assert third["cpu-mla"] != second["cpu-mla"]
    assert third["engine"] == second["engine"]
    templates = folder.parents[1] / "templates" / "vllm"
    (templates / "shared.j2").write_text("included")
    fourth = keys()
    assert fourth["engine"] != third["engine"], "a template that no patch names may be in any"
    (templates / "cpu_mla.py.j2").write_text("changed")
    fifth = keys()
    assert fifth["cpu-mla"] != fourth["cpu-mla"]
    assert fifth["engine"] == fourth["engine"]


def test_another_file_under_the_name_of_a_release_is_measured_anew(server, series):
    series()
    offer(server, "1.0")
    matrixkit.run()
    offer(server, "1.0", {"vllm/platform.py": b""})
    done = matrixkit.run()
    assert (done.fresh, matrixkit.verdicts(done, "cpu-mla")) == (1, {"1.0": "not needed"})


@pytest.mark.parametrize("spoilt", [b"", b"{", b"[]\n[]", b'00\n{"cpu-mla cpu": 3}'])
def test_kept_cells_that_are_spoilt_are_measured_anew(server, series, spoilt):
    series()
    offer(server, "1.0")
    matrixkit.run()
    (kept,) = (paths.cache() / "matrix" / "vllm").iterdir()
    kept.write_bytes(spoilt)
    assert matrixkit.verdicts(matrixkit.run(), "cpu-mla") == {"1.0": "semantic"}
    assert matrixkit.run().fresh == 0


def test_what_is_kept_does_not_grow_without_end(server):
    offer(server, "1.0")
    (release,) = releases.published("vllm").releases
    cell = Cell(patch="engine", target="cpu", verdict="semantic")
    for at in range(matrixstore.KEPT + 4):
        content = matrixstore.read("vllm", release)
        key = {"engine": f"key {at}"}
        matrixstore.write("vllm", release, content, [cell], key, native=False)
    content = matrixstore.read("vllm", release)
    assert list(content["engine cpu"]) == [f"key {at}" for at in range(4, matrixstore.KEPT + 4)]
    found = matrixstore.cell(content, "engine", "cpu", "key 5", native=False)
    assert found == cell


# -- what goes wrong -----------------------------------------------------------------------------------


def test_a_release_that_cannot_be_read_says_nothing_of_the_others(server, series):
    series()
    offer(server, "1.0")
    offer(server, "1.1", status=404)
    server.add(matrixkit.name_of("1.2"), Served(data=b"no wheel" * 9000), "vllm")
    done = matrixkit.run()
    assert matrixkit.verdicts(done, "cpu-mla") == {
        "1.0": "semantic",
        "1.1": "not measured",
        "1.2": "not measured",
    }
    assert [note.split(" ")[0] for note in done.notes] == ["1.1", "1.2"]
    offer(server, "1.1")
    assert matrixkit.verdicts(matrixkit.run(), "cpu-mla")["1.1"] == "semantic", "nothing was kept"


def test_a_wheel_whose_member_is_not_what_record_names_is_not_measured(server, series):
    series()
    offer(server, "1.0")
    served = server.files["vllm"][matrixkit.name_of("1.0")]
    served.data = served.data.replace(b"CPU_ATTN", b"CPU_ATTM")
    done = matrixkit.run()
    assert matrixkit.verdicts(done, "cpu-mla") == {"1.0": "not measured"}
    assert "RECORD" in done.notes[0]


def test_no_network_is_an_error_and_a_broken_series_another(server, series, monkeypatch):
    folder = series()
    offer(server, "1.0", status=503)
    assert "could not be read" in matrixkit.run().notes[0]
    server.status = 500
    with pytest.raises(DownloadError):
        matrixkit.run()
    monkeypatch.setenv("PIP_INDEX_URL", "http://127.0.0.1:9/simple")
    with pytest.raises(OfflineError):
        matrixkit.run()
    (folder / "series").write_text("gone\n")
    with pytest.raises(PatchFormatError):
        matrixkit.run()


def test_the_network_lost_in_the_middle_is_an_error(server, series, monkeypatch):
    series()
    offer(server, "1.0")

    def cut(*_):
        raise OfflineError("no network")

    monkeypatch.setattr(remote, "open_wheel", cut)
    with pytest.raises(OfflineError):
        matrixkit.run()


def test_one_release_alone_and_one_that_nobody_published(server, series):
    series()
    offer(server, "1.0")
    offer(server, "1.1")
    assert matrixkit.run(rev="v1.0").releases == ("1.0",)
    with pytest.raises(UnknownRevisionError, match=r"no index has a release v2\.0"):
        matrixkit.run(rev="v2.0")


def test_two_at_once_write_no_half_file(server, series):
    from concurrent.futures import ThreadPoolExecutor

    series({"cpu-mla": PATCH, "engine": OTHER})
    for at in range(6):
        offer(server, f"1.{at}", {"vllm/x.py": b"%d" % at})
    with ThreadPoolExecutor(3) as pool:
        found = list(pool.map(lambda _: matrixkit.run().rows, range(3)))
    assert found[0] == found[1] == found[2]
    assert matrixkit.run().fresh == 0


# -- what a merge starts from ------------------------------------------------------------------------


def held_patch(series, diff: str, made_on: str) -> None:
    folder = series({})
    (folder / "series").write_text("held\n")
    held = folder / "held"
    held.mkdir()
    (held / "patch.toml").write_text(HELD)
    (held / f"{made_on}.diff").write_text(diff)


BEFORE = b"".join(b"line = %d\n" % at for at in range(40))
AFTER = BEFORE.replace(b"line = 20\n", b"line = 200\n")


def test_a_diff_made_on_files_that_nobody_has_is_not_merged_by_guess(server, series):
    held_patch(series, form(b"# never published\n" + BEFORE, AFTER), "v1.0")
    offer(server, "1.0", {ENGINE: BEFORE.replace(b"line = 18\n", b"line = 180\n")})
    offer(server, "1.1", {ENGINE: BEFORE.replace(b"line = 17\n", b"line = 170\n")})
    done = matrixkit.run()
    assert set(matrixkit.verdicts(done, "held", "cuda").values()) == {"conflict"}


def test_a_diff_made_on_a_commit_is_merged_only_where_git_has_its_files(server, series):
    held_patch(series, form(BEFORE, AFTER), "1" * 40)
    offer(server, "1.0", {ENGINE: BEFORE.replace(b"line = 18\n", b"line = 180\n")})
    assert matrixkit.verdicts(matrixkit.run(), "held", "cuda") == {"1.0": "conflict"}


def test_a_file_that_moved_is_found_and_its_new_place_told(server, series):
    held_patch(series, form(BEFORE, AFTER), "v1.0")
    offer(server, "1.0", {ENGINE: BEFORE})
    offer(server, "1.1", {ENGINE: None, "vllm/core/engine.py": BEFORE})
    done = matrixkit.run()
    assert matrixkit.verdicts(done, "held", "cuda") == {"1.0": "strict", "1.1": "merged"}
    told = matrixkit.why(done, "held", "1.1", "cuda")
    assert told == "vllm/engine.py is now vllm/core/engine.py"


def test_fuzz_is_told_apart_from_exact_context(server, series):
    held_patch(series, form(BEFORE, AFTER), "2" * 40)
    path = paths.data("patches") / "vllm" / "held" / "patch.toml"
    path.write_text(HELD + '\n[fuzz]\ncontext = 1\nreason = "only the neighbours matter"\n')
    offer(server, "1.0", {ENGINE: BEFORE.replace(b"line = 18\n", b"line = 180\n")})
    assert matrixkit.verdicts(matrixkit.run(), "held", "cuda") == {"1.0": "fuzzy"}
