"""Apply refuses a tree on which a patch's upstream symbols have changed, unless that is waived."""

from __future__ import annotations

from pathlib import Path

import pytest

from dspatch.apply import PatchedTree, apply_series
from dspatch.carry.editing.layer import Draft
from dspatch.carry.editing.recording import record_uses
from dspatch.carry.lint.linttrees import Tried, record
from dspatch.carry.uses import guard, usesfile, verdicts
from dspatch.carry.uses.names import Names
from dspatch.errors import PatchFormatError, SignatureDriftError
from dspatch.git import Change
from dspatch.series import Series
from dspatch.traits import Traits
from dspatch.treefiles import Files, of_tree
from tests.support import PATCH, TRAITS, Upstream, dedent, load_series, patch_folders
from tests.unit.test_apply import VARIANT

TEMPLATE = dedent("""
    from mini.ops import decode


    def run(q):
        return decode(q, 1.0)
""")
OPS = "def decode(q, scale):\n    return q\n"
WRITTEN = PATCH.replace('targets = ["cpu"]', 'targets = ["cpu"]\nwritten-for = "1.0"')


def applied(series: Series, root: Path, upstream: Upstream, **how: bool) -> PatchedTree:
    pristine = upstream.checkout(root)
    return apply_series(series, pristine, target="cpu", variants=[VARIANT], **how)


@pytest.fixture
def series(tmp_path: Path, upstream: Upstream) -> Series:
    """A patch of the mini engine, with what it uses recorded on the release it was written for."""
    upstream.files["mini/ops.py"] = OPS.encode()
    patch_folders(tmp_path, {"cpu-mla": WRITTEN})
    (tmp_path / "templates/mini/cpu_mla.py.j2").write_text(TEMPLATE)
    loaded = load_series(tmp_path)
    patch = loaded.patch("cpu-mla")
    tree = applied(loaded, tmp_path, upstream)
    recorded = record(patch, [Tried(rev="1.0", target="cpu", tree=tree)], loaded.traits)
    assert recorded is not None
    (patch.folder / usesfile.NAME).write_text(usesfile.write(recorded))
    return load_series(tmp_path)


def renamed(upstream: Upstream) -> Upstream:
    upstream.version = "2.0"
    upstream.files["mini/ops.py"] = OPS.replace("q, scale", "scale, q").encode()
    return upstream


def test_the_release_it_was_written_for_passes(
    tmp_path: Path, upstream: Upstream, series: Series
) -> None:
    assert [p.name for p in applied(series, tmp_path, upstream).patches] == ["cpu-mla"]


def test_a_changed_signature_stops_apply_with_all_that_is_known(
    tmp_path: Path, upstream: Upstream, series: Series
) -> None:
    with pytest.raises(SignatureDriftError) as error:
        applied(series, tmp_path, renamed(upstream))
    assert error.value.exit_code == 38
    assert error.value.what.startswith("mini 2.0: cpu-mla would apply, but 1 upstream symbol")
    for words in (
        "cpu-mla, written for 1.0: mini.ops.decode: argument 1 was `q` and is `scale`",
        "was   function (q, scale)",
        "is    function (scale, q)",
        "used  mini/cpu_mla.py",
    ):
        assert words in error.value.why
    assert '[[waive]] symbol = "mini.ops.decode", shape = "function (scale, q)"' in error.value.next


def test_nothing_is_written_for_a_tree_that_is_refused(
    tmp_path: Path, upstream: Upstream, series: Series
) -> None:
    pristine = renamed(upstream).checkout(tmp_path)
    refs = pristine.repo.run("for-each-ref")
    with pytest.raises(SignatureDriftError):
        apply_series(series, pristine, target="cpu", variants=[VARIANT])
    assert pristine.repo.run("for-each-ref") == refs


WAIVE = '\n[[waive]]\nsymbol = "mini.ops.decode"\nreason = "both are numbers of one kind"\n'


@pytest.mark.parametrize(
    ("shape", "passes"),
    [("", True), ("function (scale, q)", True), ("function (q, scale, causal)", False)],
)
def test_a_waiver_holds_for_its_symbol_and_shape(
    shape: str, passes: bool, tmp_path: Path, upstream: Upstream, series: Series
) -> None:
    waive = WAIVE + (f'shape = "{shape}"\n' if shape else "")
    path = tmp_path / "patches/mini/cpu-mla/patch.toml"
    path.write_text(path.read_text().replace("\n[[file]]", f"{waive}\n[[file]]"))
    waived = load_series(tmp_path)
    if passes:
        applied(waived, tmp_path, renamed(upstream))
    else:
        with pytest.raises(SignatureDriftError):
            applied(waived, tmp_path, renamed(upstream))


def test_a_kept_tree_is_asked_again_when_the_record_changed(
    tmp_path: Path, upstream: Upstream, series: Series
) -> None:
    applied(series, tmp_path, upstream)
    path = tmp_path / "patches/mini/cpu-mla" / usesfile.NAME
    path.write_text(
        path.read_text().replace("function (q, scale)", "function (q, scale, causal=True)")
    )
    applied(load_series(tmp_path), tmp_path, upstream)  # one parameter less, which was never given
    path.write_text(path.read_text().replace("function (q", "function (x"))
    with pytest.raises(SignatureDriftError):
        applied(load_series(tmp_path), tmp_path, upstream)


def test_without_the_guard_the_tree_is_computed(
    tmp_path: Path, upstream: Upstream, series: Series
) -> None:
    assert applied(series, tmp_path, renamed(upstream), guarded=False).patches


def test_a_record_is_no_part_of_what_a_patch_is(tmp_path: Path, series: Series) -> None:
    patch = series.patch("cpu-mla")
    before = series.patch_digest(patch)
    (patch.folder / usesfile.NAME).unlink()
    assert load_series(tmp_path).patch_digest(patch) == before


def test_the_record_is_the_same_bytes_again_and_reads_back(series: Series) -> None:
    folder = series.patch("cpu-mla").folder
    recorded = usesfile.read(folder)
    assert recorded is not None
    assert usesfile.write(recorded) == (folder / usesfile.NAME).read_text()
    assert [use.symbol for use in recorded.uses] == ["mini.ops.decode"]


def test_a_damaged_record_is_told_by_file_and_line(series: Series) -> None:
    folder = series.patch("cpu-mla").folder
    (folder / usesfile.NAME).write_text('written-for = "1.0"\n\n[[use]]\nsymbol = 3\n')
    with pytest.raises(PatchFormatError, match=r"uses\.toml, line 4: `symbol` must be a string"):
        usesfile.read(folder)


def test_the_same_files_are_judged_once(
    tmp_path: Path, upstream: Upstream, series: Series, monkeypatch: pytest.MonkeyPatch
) -> None:
    patch = series.patch("cpu-mla")
    tree = applied(series, tmp_path, upstream)
    repo = tree.checkout.repo
    asked: list[str] = []

    class Counted(Files):
        def read(self, path: str) -> bytes | None:
            asked.append(path)
            return super().read(path)

    files = Counted(source=of_tree(repo, tree.commit).source)
    guard.check("mini 1.0", [patch], files, series.traits)
    assert asked == []  # apply has judged them
    changed = Change(path="mini/ops.py", data=OPS.replace("scale", "factor").encode())
    with pytest.raises(SignatureDriftError):
        guard.check(
            "mini 1.0", [patch], files.with_changes({"mini/ops.py": changed}), series.traits
        )
    same = Change(path="mini/ops.py", data=OPS.encode())
    guard.check("mini 1.0", [patch], files.with_changes({"mini/ops.py": same}), series.traits)
    monkeypatch.setattr(verdicts, "write_atomically", _refuse)
    guard.check(
        "mini 9.9", [patch], files, series.traits
    )  # judged again, and the cache cannot keep it


def two_generations(root: Path, upstream: Upstream) -> Series:
    """A patch that calls one function where the engine has `mini/new.py` and another where not."""
    upstream.files["mini/ops.py"] = OPS.encode() + OPS.replace("decode", "attend").encode()
    files = "".join(
        f'[[file]]\npath = "mini/cpu_mla.py"\ntemplate = "{name}.py.j2"\nwhen = ["{when}"]\n\n'
        for name, when in (("old", "!is_new"), ("new", "is_new"))
    )
    head = WRITTEN.partition("[[file]]")[0] + 'also-written-for = ["2.0"]\n\n'
    templates = root / "templates/mini"
    templates.mkdir(parents=True)
    (templates / "old.py.j2").write_text(TEMPLATE)
    (templates / "new.py.j2").write_text(TEMPLATE.replace("decode", "attend"))
    asked = '\n[is_new]\nwhat = "it is new"\nfile = "mini/new.py"\n'
    loaded = patch_folders(root, {"cpu-mla": head + files}, traits=TRAITS + asked)
    patch, tried = loaded.patch("cpu-mla"), []
    for rev in ("1.0", "2.0"):
        upstream.version = rev
        if rev == "2.0":
            upstream.files["mini/new.py"] = b""
        tree = applied(loaded, root, upstream)
        tried.append(Tried(rev=rev, target="cpu", tree=tree))
    recorded = record(patch, tried, loaded.traits)
    assert recorded is not None
    (patch.folder / usesfile.NAME).write_text(usesfile.write(recorded))
    return load_series(root)


def test_a_release_is_held_against_the_record_of_its_own_generation(
    tmp_path: Path, upstream: Upstream
) -> None:
    series = two_generations(tmp_path, upstream)
    folder = series.patch("cpu-mla").folder
    recorded = usesfile.read(folder)
    assert recorded is not None
    assert usesfile.write(recorded) == (folder / usesfile.NAME).read_text()
    records = (recorded, *recorded.others)
    assert [(r.written_for, r.answers, r.uses[0].symbol) for r in records] == [
        ("1.0", ("!is_new",), "mini.ops.decode"),
        ("2.0", ("is_new",), "mini.ops.attend"),
    ]
    upstream.version = "3.0"  # new, and without the function that only the old one's code calls
    upstream.files["mini/ops.py"] = OPS.replace("decode", "attend").encode()
    assert applied(series, tmp_path, upstream).patches
    upstream.version = "4.0"
    upstream.files["mini/ops.py"] = OPS.encode()
    with pytest.raises(SignatureDriftError, match="cpu-mla would apply") as error:
        applied(series, tmp_path, upstream)
    assert "cpu-mla, written for 2.0: mini.ops.attend: it is no longer there" in error.value.why


def test_of_records_of_the_same_code_the_one_counts_that_fits(
    tmp_path: Path, upstream: Upstream
) -> None:
    upstream.files["mini/ops.py"] = OPS.encode()
    also = WRITTEN.replace('written-for = "1.0"', 'written-for = "1.0"\nalso-written-for = ["2.0"]')
    loaded = patch_folders(tmp_path, {"cpu-mla": also})
    (tmp_path / "templates/mini/cpu_mla.py.j2").write_text(TEMPLATE)
    tried = []
    for rev, ops in (("1.0", OPS), ("2.0", OPS.replace("scale", "factor"))):
        upstream.version, upstream.files["mini/ops.py"] = rev, ops.encode()
        tried.append(Tried(rev=rev, target="cpu", tree=applied(loaded, tmp_path, upstream)))
    recorded = record(loaded.patch("cpu-mla"), tried, loaded.traits)
    assert recorded is not None
    (loaded.patch("cpu-mla").folder / usesfile.NAME).write_text(usesfile.write(recorded))
    series = load_series(tmp_path)
    assert applied(series, tmp_path, upstream).patches
    upstream.version, upstream.files["mini/ops.py"] = (
        "3.0",
        OPS.replace("q, scale", "scale, q").encode(),
    )
    with pytest.raises(SignatureDriftError) as error:
        applied(series, tmp_path, upstream)
    assert "written for 1.0" in error.value.why
    waived = WAIVE + 'shape = "function (q, factor)"\n'
    path = series.patch("cpu-mla").folder / "patch.toml"
    path.write_text(path.read_text().replace("\n[[file]]", f"{waived}\n[[file]]"))
    upstream.version, upstream.files["mini/ops.py"] = "2.0", OPS.replace("scale", "factor").encode()
    patch = load_series(tmp_path).patch("cpu-mla")
    tree = applied(load_series(tmp_path), tmp_path, upstream)
    with tree.checkout.repo.reading():
        names = Names(of_tree(tree.checkout.repo, tree.commit).read)
        found = guard.seen(
            patch, usesfile.read(patch.folder), names, Traits(series.traits, names.read)
        )
    assert [one.written_for for one in found] == ["1.0"]  # so the waiver is not idle


def test_what_only_a_file_uses_that_is_not_rendered_here_is_not_held(
    tmp_path: Path, upstream: Upstream
) -> None:
    upstream.files["mini/ops.py"] = OPS.encode() + OPS.replace("decode", "attend").encode()
    upstream.files["mini/new.py"] = b""
    more = (
        '\n[[file]]\npath = "mini/more.py"\ntemplate = "more.py.j2"\nwhen = ["is_new"]\n'
        '\n[[file]]\npath = "mini/both.py"\ntemplate = "both.py.j2"\n'
    )
    templates = tmp_path / "templates/mini"
    templates.mkdir(parents=True)
    (templates / "cpu_mla.py.j2").write_text("")
    (templates / "more.py.j2").write_text(TEMPLATE)
    (templates / "both.py.j2").write_text("")
    asked = '\n[is_new]\nwhat = "it is new"\nfile = "mini/new.py"\n'
    loaded = patch_folders(tmp_path, {"cpu-mla": WRITTEN + more}, traits=TRAITS + asked)
    patch = loaded.patch("cpu-mla")
    tried = [Tried(rev="1.0", target="cpu", tree=applied(loaded, tmp_path, upstream))]
    recorded = record(patch, tried, loaded.traits)
    assert recorded is not None
    assert [use.where[0] for use in recorded.uses] == ["mini/more.py"]
    (patch.folder / usesfile.NAME).write_text(usesfile.write(recorded))
    upstream.version = "2.0"
    upstream.files["mini/ops.py"] = b""
    with pytest.raises(SignatureDriftError, match=r"mini\.ops\.decode"):
        applied(load_series(tmp_path), tmp_path, upstream)
    del upstream.files["mini/new.py"]  # and no more.py is rendered
    assert applied(load_series(tmp_path), tmp_path, upstream).patches
    (templates / "both.py.j2").write_text(TEMPLATE)
    again = (patch.folder / usesfile.NAME).read_text().replace('"mini/more.py', '"mini/both.py')
    (patch.folder / usesfile.NAME).write_text(again)
    with pytest.raises(SignatureDriftError):
        applied(load_series(tmp_path), tmp_path, upstream)


def test_an_edit_on_one_release_keeps_the_records_of_the_others(
    tmp_path: Path, upstream: Upstream, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("DSPATCH_DATA", str(tmp_path))
    series = two_generations(tmp_path, upstream)
    path = series.patch("cpu-mla").folder / usesfile.NAME
    whole = path.read_text()
    upstream.version = "1.0"
    del upstream.files["mini/new.py"]
    tree, draft = applied(series, tmp_path, upstream), Draft(engine="mini")
    record_uses(draft, ["cpu-mla"], series, tree)
    assert draft.changes == {}
    path.write_text(whole.replace("(q, scale)", "(q)", 1))
    record_uses(draft, ["cpu-mla"], series, tree)
    assert draft.changes == {path: whole.encode()}


def _refuse(path: Path, data: bytes) -> None:
    raise PermissionError(path)
