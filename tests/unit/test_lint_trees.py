"""Lint of what trees show: goldens, records, waivers, patches nobody needs, and lines changed twice."""

from __future__ import annotations

import subprocess
from pathlib import Path

import pytest

from dspatch.apply import apply_series
from dspatch.carry.lint import goldens, lintsizes, linttrees
from dspatch.carry.lint.lint import Fault
from dspatch.carry.lint.linttrees import Tried
from dspatch.carry.lint.released import Released, on_release
from dspatch.carry.uses import usesfile
from dspatch.carry.uses.undefined import left_undefined
from dspatch.onto import Place
from dspatch.render import Context
from dspatch.series import Series
from dspatch.traits import Traits
from dspatch.treefiles import of_tree
from tests.support import PATCH, TEMPLATE, Upstream, dedent, load_series, patch_folders
from tests.unit.test_guard import OPS, VARIANT, WAIVE, WRITTEN
from tests.unit.test_guard import TEMPLATE as USING

LATER = dedent("""
    subject = "Call the backend by its full name"
    reason = "The registry looks backends up by their full names."
    upstream = "never: a test of the mini engine"
    drop-when = "the registry takes short names"
    targets = ["cpu"]
    needs = ["has_registry"]
    written-for = "1.0"

    [[edit]]
    file = "mini/platform.py"
    symbol = "CpuPlatform.backend"
    verb = "replace"
    find = '''return "CPU_MLA"'''
    text = '''return "mini.CPU_MLA"'''
""")


class Bench:
    """The mini engine's series on disk, and its releases."""

    def __init__(self, root: Path, upstream: Upstream) -> None:
        self.root = root
        self.upstream = upstream
        upstream.files["mini/ops.py"] = OPS.encode()
        self.write({"cpu-mla": WRITTEN})

    def write(self, patches: dict[str, str], template: str = USING) -> None:
        patch_folders(self.root, patches)
        (self.root / "templates/mini/cpu_mla.py.j2").write_text(template)

    @property
    def series(self) -> Series:
        return load_series(self.root)

    def tried(self, version: str = "1.0") -> Tried:
        self.upstream.version = version
        tree = apply_series(
            self.series,
            self.upstream.checkout(self.root),
            target="cpu",
            variants=[VARIANT],
            guarded=False,
        )
        return Tried(rev=version, target="cpu", tree=tree)

    def released(self, version: str) -> Released:
        """The series on a release that is no pin."""
        self.upstream.version = version
        pristine = self.upstream.checkout(self.root)
        files = of_tree(pristine.repo, pristine.commit)
        facts = Traits(self.series.traits, files.read)
        place = Place(
            engine="mini", rev=version, commit="", repo=pristine.repo,
            context=Context(traits=facts, variants=[VARIANT]),
        )  # fmt: skip
        return on_release(self.series, files, place, target="cpu", variants=[VARIANT])

    def faults(self, *tried: Tried) -> list[Fault]:
        return list(linttrees.of_trees(self.series, tried or [self.tried()]))

    def generate(self, *tried: Tried) -> None:
        """Write records and goldens, as --write does."""
        for patch in self.series.patches:
            recorded = linttrees.record(patch, tried, self.series.traits)
            if recorded is not None:
                (patch.folder / usesfile.NAME).write_text(usesfile.write(recorded))
            for rev, data in linttrees.golden_files(self.series, patch, tried).items():
                goldens.path(patch, rev).parent.mkdir(exist_ok=True)
                goldens.path(patch, rev).write_bytes(data)


@pytest.fixture
def bench(tmp_path: Path, upstream: Upstream) -> Bench:
    """A series whose generated files are up to date."""
    bench = Bench(tmp_path, upstream)
    bench.generate(bench.tried())
    return bench


def found(faults: list[Fault]) -> list[tuple[str, str, str]]:
    return [(fault.rule, fault.patch, fault.where) for fault in faults]


def test_a_series_whose_generated_files_are_up_to_date_has_no_fault(bench: Bench) -> None:
    assert bench.faults() == []


def test_a_golden_that_is_missing_or_behind_is_shown_as_a_diff(bench: Bench) -> None:
    golden = goldens.path(bench.series.patch("cpu-mla"), "1.0")
    golden.write_bytes(golden.read_bytes().replace(b"+    return decode(q, 1.0)", b"+    return q"))
    (fault,) = bench.faults()
    assert found([fault]) == [("golden", "cpu-mla", "cpu-mla/golden/1.0.patch")]
    assert "-+    return q\n++    return decode(q, 1.0)" in fault.diff
    golden.unlink()
    (fault,) = bench.faults()
    assert fault.what == "it is not there"


def test_a_golden_of_a_revision_that_the_patch_left_is_found(bench: Bench) -> None:
    patch = bench.series.patch("cpu-mla")
    goldens.path(patch, "2.0").write_bytes(b"old")
    bench.upstream.files["mini/platform.py"] = b"class CpuPlatform: ...\n"
    faults = [f for f in bench.faults(bench.tried("2.0")) if f.rule == "golden"]
    assert found(faults) == [("golden", "cpu-mla", "cpu-mla/golden/2.0.patch")]
    assert faults[0].what == "the patch is not applied to 2.0"


def test_a_record_that_is_missing_or_behind_is_shown_as_a_diff(bench: Bench) -> None:
    path = bench.series.patch("cpu-mla").folder / usesfile.NAME
    path.write_text(path.read_text().replace("(q, scale)", "(q)"))
    faults = [f for f in bench.faults() if f.rule == "uses"]
    assert found(faults) == [("uses", "cpu-mla", "cpu-mla/uses.toml")]
    assert '-shape = "function (q)"\n+shape = "function (q, scale)"' in faults[0].diff
    path.unlink()
    assert [f.what for f in bench.faults()] == ["it is not there"]


def test_a_patch_that_no_pin_needs_is_found(bench: Bench) -> None:
    bench.upstream.files["mini/platform.py"] = b"class CpuPlatform: ...\n"
    later = bench.tried("2.0")
    assert found(bench.faults(later)) == [("not-needed", "cpu-mla", "cpu-mla/patch.toml")]
    assert list(linttrees.of_trees(bench.series, [later], all_tried=False)) == []


def test_a_waiver_that_nothing_needs_is_found(bench: Bench) -> None:
    bench.write({"cpu-mla": WRITTEN.replace("\n[[file]]", f"{WAIVE}\n[[file]]")})
    bench.generate(bench.tried())
    assert [(f.rule, f.what) for f in bench.faults()] == [
        ("waive", "nothing on any pin needs the waiver of `mini.ops.decode`")
    ]
    written = bench.tried()
    bench.upstream.files["mini/ops.py"] = OPS.replace("q, scale", "scale, q").encode()
    later = bench.tried("2.0")
    bench.generate(written, later)
    assert bench.faults(written, later) == []


def test_drift_on_any_pin_is_found(bench: Bench) -> None:
    written = bench.tried()
    bench.upstream.files["mini/ops.py"] = OPS.replace("q, scale", "scale, q").encode()
    later = bench.tried("2.0")
    bench.generate(written, later)
    (fault,) = bench.faults(written, later)
    assert fault.rule == "drift"
    assert "from 2.0 on, mini.ops.decode: argument 1 was `q` and is `scale`" in fault.what


def test_drift_is_told_once_with_the_pins_that_have_it(bench: Bench) -> None:
    trees = [bench.tried()]
    for rev, ops in (("2.0", "scale, q"), ("3.0", "q, scale"), ("10.0", "scale, q")):
        bench.upstream.files["mini/ops.py"] = OPS.replace("q, scale", ops).encode()
        trees.append(bench.tried(rev))
    bench.generate(*trees)
    (fault,) = bench.faults(*trees)
    assert fault.what.startswith("on 2.0, 10.0, mini.ops.decode: ")
    assert "was   function (q, scale) in 1.0\n" in fault.what
    (last,) = bench.faults(*trees[:1], *trees[2:])
    assert last.what.startswith("from 10.0 on, ")


def test_a_patch_that_names_no_pin_it_was_written_for_is_found(bench: Bench) -> None:
    bench.write({"cpu-mla": PATCH})
    tried = bench.tried()
    bench.generate(tried)
    assert [f.rule for f in bench.faults(tried)] == ["written-for"]
    bench.write({"cpu-mla": WRITTEN.replace('written-for = "1.0"', 'written-for = "0.9"')})
    later = bench.tried("2.0")
    bench.generate(later)
    faults = [f for f in bench.faults(later) if f.rule == "written-for"]
    assert "does not apply to 0.9" in faults[0].what


def test_a_release_that_is_no_pin_is_recorded_and_held_too(bench: Bench) -> None:
    """What a patch was also written for is read where it lies: its record, and every drift from it."""
    also = 'written-for = "1.0"\nalso-written-for = ["0.9"]'
    bench.write({"cpu-mla": WRITTEN.replace('written-for = "1.0"', also)})
    pinned, older = bench.tried(), bench.released("0.9")
    (patch,) = bench.series.patches
    recorded = linttrees.record(patch, [pinned, older], bench.series.traits)
    assert recorded is not None
    assert [one.written_for for one in recorded.others] == ["0.9"]
    (patch.folder / usesfile.NAME).write_text(usesfile.write(recorded))
    assert list(linttrees.of_trees(bench.series, [pinned], released=[older])) == []
    bench.upstream.files["mini/ops.py"] = OPS.replace("q, scale", "scale, q").encode()
    changed = list(linttrees.of_trees(bench.series, [pinned], released=[bench.released("0.9")]))
    assert {fault.rule for fault in changed} == {"uses", "drift"}
    unseen = list(linttrees.of_trees(bench.series, [pinned]))
    assert [fault.what for fault in unseen] == [
        "it does not apply to 0.9, which it was written for"
    ]


def test_a_patch_that_uses_nothing_needs_no_record(bench: Bench) -> None:
    edit_only = PATCH.split("[[file]]")[0] + PATCH[PATCH.index("[[edit]]") :]
    bench.write({"cpu-mla": edit_only})
    (bench.series.patch("cpu-mla").folder / usesfile.NAME).unlink()
    tried = bench.tried()
    bench.generate(tried)
    assert [f for f in bench.faults(tried) if f.rule in ("uses", "written-for")] == []


def test_an_import_of_what_the_engine_does_not_have_is_found(bench: Bench) -> None:
    bench.write({"cpu-mla": WRITTEN}, USING.replace("import decode", "import decode, encode"))
    tried = bench.tried()
    bench.generate(tried)
    (fault,) = bench.faults(tried)
    assert fault.rule == "import"
    assert fault.what == "mini/cpu_mla.py imports mini.ops.encode, which 1.0 does not have"
    bench.write(
        {"cpu-mla": WRITTEN},
        "try:\n    from mini.ops import encode\nexcept ImportError:\n    encode = None\n",
    )
    tried = bench.tried()
    bench.generate(tried)
    assert [f for f in bench.faults(tried) if f.rule == "import"] == []


def test_a_patch_that_changes_what_an_earlier_one_wrote_is_found(bench: Bench) -> None:
    bench.write({"cpu-mla": WRITTEN, "full-name": LATER})
    tried = bench.tried()
    bench.generate(tried)
    (fault,) = [f for f in bench.faults(tried) if f.rule == "overlap"]
    assert fault.patch == "full-name"
    assert fault.what == "on 1.0 it changes what cpu-mla wrote: mini/platform.py, line 11"


def test_patches_beside_each_other_in_one_file_do_not_overlap(bench: Bench) -> None:
    sparse = LATER.replace(
        '''return "CPU_MLA"''',
        """raise NotImplementedError("Sparse is not supported on CPU.")""",
        1,
    )
    bench.write({"cpu-mla": WRITTEN, "sparse": sparse})
    tried = bench.tried()
    bench.generate(tried)
    assert bench.faults(tried) == []


def test_git_am_takes_the_goldens_and_gives_the_same_tree(bench: Bench, tmp_path: Path) -> None:
    bench.write({"cpu-mla": WRITTEN, "full-name": LATER}, TEMPLATE)
    tried = bench.tried()
    bench.generate(tried)
    clone = tmp_path / "plain"
    git = ["git", "-c", "user.name=x", "-c", "user.email=x@y", "-C", str(clone)]
    bare, base = tried.tree.checkout.repo.path, tried.tree.checkout.commit
    subprocess.run(["git", "init", "-q", clone], check=True)
    subprocess.run([*git, "fetch", "-q", bare, "refs/pristine/*:refs/remotes/x/*"], check=True)
    subprocess.run([*git, "checkout", "-q", base], check=True)
    for patch in bench.series.patches:
        subprocess.run([*git, "am", "-q", goldens.path(patch, "1.0")], check=True)
    done = subprocess.run([*git, "rev-parse", "HEAD^{tree}"], check=True, capture_output=True)
    assert done.stdout.decode().strip() == tried.tree.tree


def test_a_name_whose_definition_a_patch_took_away_is_found(bench: Bench) -> None:
    used = b"import os\n\n\ndef home():\n    return os.sep\n"
    bench.upstream.files["mini/paths.py"] = used
    taken = LATER.replace(
        LATER[LATER.index("[[edit]]") :],
        "[[edit]]\nfile = 'mini/paths.py'\nverb = 'replace'\nfind = 'import os'\ntext = ''\n",
    )
    bench.write({"cpu-mla": WRITTEN, "taken": taken})
    tried = bench.tried()
    bench.generate(tried)
    (fault,) = bench.faults(tried)
    assert (fault.rule, fault.patch) == ("undefined", "taken")
    assert fault.what == "on 1.0 it leaves `os` undefined, which mini/paths.py uses in home"


@pytest.mark.parametrize(
    ("before", "after"),
    [
        (b"def top(name):\n    return name\n", b"def top(name, x):\n    return name\n"),
        (b"", b"try:\n    import os\nexcept ImportError:\n    os = None\nprint(os)\n"),
        (b"", b"class A:\n    def f(self):\n        return __class__, [x for x in range(3)]\n"),
        (b"", b"def f():\n    global seen\n    seen = 1\n\n\ndef g():\n    return seen\n"),
        (b"", b"from os import *\nprint(sep)\n"),
        (b"print(never_defined)\n", b"print(never_defined, 1)\n"),
        (b"", b"def f(:\n"),
    ],
)
def test_what_is_defined_after_all_is_not_reported(before: bytes, after: bytes) -> None:
    assert left_undefined(before, after) == ()


def test_lines_of_templates_are_told_beside_those_of_the_files_they_became(bench: Bench) -> None:
    tried = [bench.tried("1.0"), bench.tried("1.1")]
    told = lintsizes.sizes(bench.series, tried)
    lines = len((bench.root / "templates/mini/cpu_mla.py.j2").read_text().splitlines())
    assert (told.templates, told.files, told.trees) == (lines, 2, 2)
    assert told.rendered == 2 * lines
