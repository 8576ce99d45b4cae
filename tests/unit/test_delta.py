"""dspatch.wheel.delta and what it runs: the installed base becomes the overlay, or nothing changes."""

from __future__ import annotations

import ast
import json
import os
import shutil
import subprocess
import sys
import zipfile
from collections.abc import Callable
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dspatch import errors
from dspatch.wheel import deltaedits
from dspatch.wheel.applier import journal, manifest, misfit
from dspatch.wheel.applier.misfit import Misfit
from dspatch.wheel.delta import APPLIER, FOLDER, build_delta
from tests.unit import deltakit, wheelkit
from tests.unit.deltakit import ORIGINS, Bench, files
from tests.unit.wheelkit import BASE_INFO, INFO, VERSION

MISFIT = errors.DeltaError.exit_code


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Bench:
    """The base installed by pip, which compiles it."""
    folder = tmp_path_factory.mktemp("delta")
    base, overlay, delta = deltakit.wheels(folder)
    site = deltakit.install(base, folder / "venv")
    return Bench(base=base, overlay=overlay, delta=delta, site=site)


@pytest.fixture
def bench(made: Bench, tmp_path: Path) -> Bench:
    return deltakit.copied(made, tmp_path)


def rows(site: Path, info: str) -> list[str]:
    """RECORD's rows but for those that name origins and scripts with a path of the environment in them."""
    text = (site / info / "RECORD").read_bytes().decode()
    return [
        row for row in text.split("\r\n") if not row.startswith("..") and "direct_url" not in row
    ]


@pytest.mark.parametrize("options", [(), ("--no-compile",)])
def test_the_result_is_an_install_of_the_overlay(
    made: Bench, tmp_path: Path, options: tuple[str, ...]
) -> None:
    site = deltakit.install(made.base, tmp_path / "one", *options)
    other = deltakit.install(made.overlay, tmp_path / "other", *options)
    bench = Bench(base=made.base, overlay=made.overlay, delta=made.delta, site=site)
    assert f"mini-cpu 1.0 is now mini {VERSION}" in bench.run()
    assert rows(site, INFO) == rows(other, INFO)
    for place in (site, other):
        (place / INFO / "RECORD").unlink()
        for name in ORIGINS:
            (place / INFO / name).unlink(missing_ok=True)
    assert files(site) == files(other)
    compiled = sorted(p.relative_to(site) for p in site.rglob("*.pyc"))
    assert compiled == sorted(p.relative_to(other) for p in other.rglob("*.pyc"))
    assert bool(compiled) == (not options)
    assert sorted(p for p in site.rglob("*") if p.is_dir() and not any(p.iterdir())) == []


def test_undo_gives_every_byte_back(bench: Bench) -> None:
    before = files(bench.site)
    bench.run()
    assert "direct_url.base.json" in str(files(bench.site))
    assert f"mini {VERSION} is now mini-cpu 1.0" in bench.run("--undo")
    assert files(bench.site) == before
    assert "nothing to do" in bench.run("--undo")
    assert files(bench.site) == before


def test_a_second_run_does_nothing(bench: Bench) -> None:
    bench.run()
    after = files(bench.site, compiled=True)
    told = json.loads(bench.run("--json"))
    assert told["changed"] is False
    assert told["version"] == VERSION
    assert files(bench.site, compiled=True) == after


def test_check_writes_nothing(bench: Bench) -> None:
    before = files(bench.site, compiled=True)
    assert "fits: " in bench.run("--check")
    assert files(bench.site, compiled=True) == before
    bench.run()
    assert "there already" in bench.run("--check")


def test_what_was_compiled_before_is_compiled_anew(bench: Bench) -> None:
    old = next(bench.site.rglob("__pycache__/ops.*.pyc"))
    other = old.with_name("ops.cpython-38.opt-1.pyc")
    other.write_bytes(old.read_bytes())
    bench.run()
    assert not other.exists()
    code = "import mini.ops, mini.new.kernel; print(mini.ops.op(), mini.new.kernel.K)"
    done = subprocess.run([bench.python, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout == "1 1\n"
    assert not list(bench.site.rglob("__pycache__/old.*.pyc"))


def edit(path: str) -> Callable[[Path], None]:
    return lambda site: (site / path).write_bytes((site / path).read_bytes() + b"# mine\n") and None


def put(path: str) -> Callable[[Path], None]:
    def change(site: Path) -> None:
        (site / path).parent.mkdir(parents=True, exist_ok=True)
        (site / path).write_bytes(b"# mine\n")

    return change


def reworded(old: str, new: str) -> Callable[[Path], None]:
    def change(site: Path) -> None:
        record = site / BASE_INFO / "RECORD"
        text = record.read_bytes().decode()
        assert old in text
        record.write_bytes(text.replace(old, new).encode())

    return change


def another_version(site: Path) -> None:
    metadata = site / BASE_INFO / "METADATA"
    metadata.write_text(metadata.read_text().replace("Version: 1.0", "Version: 1.1"))


def both(site: Path) -> None:
    shutil.copytree(site / BASE_INFO, site / "mini-2.0.dist-info")
    metadata = site / "mini-2.0.dist-info/METADATA"
    text = metadata.read_text().replace("Version: 1.0", "Version: 2.0")
    metadata.write_text(text.replace("Name: mini-cpu", "Name: mini"))


def link_away(site: Path) -> None:
    (site / "mini").rename(site.parent / "elsewhere")
    (site / "mini").symlink_to(site.parent / "elsewhere")


FAULTS: dict[str, tuple[Callable[[Path], None], str]] = {
    "a changed file is edited": (edit("mini/ops.py"), "mini/ops.py: sha256"),
    "a file to be removed is edited": (edit("mini/old.py"), "mini/old.py: sha256"),
    "METADATA is edited": (edit(f"{BASE_INFO}/METADATA"), "METADATA: sha256"),
    "a changed file is gone": (
        lambda site: (site / "mini/ops.py").unlink(),
        "no such file instead",
    ),
    "a new file is there": (put("mini/new/kernel.py"), "instead of no such file"),
    "RECORD has another hash": (reworded("mini/ops.py,sha256=", "mini/ops.py,sha256=A"), "RECORD"),
    "RECORD has another member": (
        reworded("mini/_C.abi3.so,sha256=", "mini/_C.abi3.so,sha256=B"),
        "--other-build",
    ),
    "RECORD is gone": (lambda site: (site / BASE_INFO / "RECORD").unlink(), "cannot be read"),
    "RECORD is no CSV": (
        lambda site: (site / BASE_INFO / "RECORD").write_text("a\n") and None,
        "damaged",
    ),
    "another version is installed": (another_version, "mini-cpu 1.1"),
    "two of them are installed": (both, "mini 2.0"),
    "it is not installed": (lambda site: shutil.rmtree(site / BASE_INFO), "is not installed"),
    "the package is a link": (link_away, "leads out of"),
    "the place for new files is taken": (put(".mini.dspatch-delta"), "nothing was changed"),
}


@pytest.mark.parametrize("name", FAULTS)
def test_nothing_is_written_where_anything_is_off(bench: Bench, name: str) -> None:
    plant, words = FAULTS[name]
    plant(bench.site)
    before = files(bench.site, compiled=True)
    told = bench.run(code=MISFIT)
    assert words in told
    assert "next:" in told or "damaged" in told
    assert files(bench.site, compiled=True) == before
    error = json.loads(bench.run("--json", code=MISFIT))
    assert error["exit_code"] == MISFIT


def test_files_changed_after_it_was_applied_are_named(bench: Bench) -> None:
    bench.run()
    edit("mini/ops.py")(bench.site)
    assert "mini/ops.py" in bench.run(code=MISFIT)
    assert "mini/ops.py" in bench.run("--undo", code=MISFIT)


def test_another_overlay_must_be_undone_first(bench: Bench) -> None:
    bench.run()
    metadata = bench.site / INFO / "METADATA"
    metadata.write_text(metadata.read_text().replace("1a2b3c4d5e6f", "000000000000"))
    assert "undo another delta with its own file" in bench.run(code=MISFIT)


def test_a_site_packages_behind_a_link_is_one_place(bench: Bench, tmp_path: Path) -> None:
    link = tmp_path / "link"
    link.symlink_to(bench.site)
    bench.run("--site-packages", str(link), python=Path(sys.executable))
    assert (bench.site / "mini/new/kernel.py").is_file()
    assert "nothing to do" in bench.run()


def test_files_that_a_cache_shares_are_left_as_they_are(bench: Bench, tmp_path: Path) -> None:
    shared = {name: tmp_path / name for name in ("ops.py", "_version.py")}
    os.link(bench.site / "mini/ops.py", shared["ops.py"])
    (bench.site / "mini/_version.py").rename(shared["_version.py"])
    (bench.site / "mini/_version.py").symlink_to(shared["_version.py"])
    before = {name: place.read_bytes() for name, place in shared.items()}
    bench.run()
    assert {name: place.read_bytes() for name, place in shared.items()} == before
    assert (bench.site / "mini/ops.py").read_bytes() == b"def op():\n    return 1\n"


def test_a_disk_that_takes_no_more_changes_nothing(bench: Bench) -> None:
    before = files(bench.site, compiled=True)
    limited = ["bash", "-c", 'ulimit -f 4; exec "$@"', "bash", bench.python, bench.delta.path]
    done = subprocess.run(limited, capture_output=True, text=True, check=False)
    assert done.returncode == MISFIT, done.stderr
    assert "nothing was changed" in done.stderr
    assert files(bench.site, compiled=True) == before


def test_two_at_once(bench: Bench) -> None:
    command = [bench.python, bench.delta.path, "--json"]
    both = [subprocess.Popen(command, stdout=subprocess.PIPE, text=True) for _ in range(4)]
    told = [json.loads(process.communicate()[0]) for process in both]
    assert [process.returncode for process in both] == [0] * 4
    assert sorted(each["changed"] for each in told) == [False, False, False, True]


def test_one_that_has_it_for_too_long_is_named(
    bench: Bench, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(journal, "LOCK_SECONDS", 0.1)
    with journal.alone(bench.site), pytest.raises(Misfit) as caught, journal.alone(bench.site):
        pass
    assert caught.value.code == misfit.LOCKED == errors.LockedError.exit_code


def other_build(site: Path) -> None:
    """What an image's own build differs in: compiled members, version, and the files that tell it."""
    (site / "mini/_C.abi3.so").write_bytes(b"another build")
    info = site / "mini_cpu-1.0+cu1.dist-info"
    (site / BASE_INFO).rename(info)
    metadata = info / "METADATA"
    metadata.write_text(metadata.read_text().replace("Version: 1.0", "Version: 1.0+cu1"))
    version = site / "mini/_version.py"
    version.write_text(version.read_text().replace("'1.0'", "'1.0+cu1'").replace("0)", "0, 'cu1')"))
    record = info / "RECORD"
    kept = {
        p for p, *_ in (row.split(",") for row in record.read_text().splitlines()) if p[:1] != "."
    }
    names = sorted(p.replace("mini_cpu-1.0.dist", "mini_cpu-1.0+cu1.dist") for p in kept)
    members = {
        n: (site / n).read_bytes() for n in names if (site / n).is_file() and n[-3:] != "pyc"
    }
    record.write_bytes(wheelkit.record_of(members, f"{info.name}/RECORD"))


def test_another_build_of_the_release_is_taken_when_it_is_asked_for(bench: Bench) -> None:
    other_build(bench.site)
    before = files(bench.site)
    bench.run(code=MISFIT)
    assert files(bench.site) == before
    bench.run("--other-build", "--check")
    bench.run("--other-build")
    assert "nothing to do" in bench.run()
    assert VERSION in (bench.site / "mini/_version.py").read_text()
    assert "(1, 0, 'cpu.dspatch.1a2b3c4d5e6f')" in (bench.site / "mini/_version.py").read_text()
    assert (bench.site / "mini/_C.abi3.so").read_bytes() == b"another build"
    bill = (bench.site / INFO / "sboms/dspatch.cdx.json").read_text()
    assert "applied to mini-cpu 1.0+cu1" in bill
    bench.run("--undo")
    assert files(bench.site) == before


def test_the_pinned_build_is_no_other(bench: Bench) -> None:
    bench.run("--other-build")
    assert not (bench.site / INFO / "dspatch-base").exists()
    assert "other-build" not in (bench.site / INFO / "sboms/dspatch.cdx.json").read_text()


def test_another_build_must_have_the_files_that_are_changed(bench: Bench) -> None:
    other_build(bench.site)
    edit("mini/ops.py")(bench.site)
    assert "mini/ops.py" in bench.run("--other-build", code=MISFIT)


def test_the_same_wheels_give_the_same_bytes(made: Bench, tmp_path: Path) -> None:
    again = build_delta(made.base, made.overlay, tmp_path, epoch=wheelkit.EPOCH)
    assert again.sha256 == made.delta.sha256
    assert again.path.name == f"mini-{VERSION}.delta.pyz"
    assert (again.changed, again.added, again.removed) == (5, 2, 2)
    assert again.size < 60_000
    assert os.access(again.path, os.X_OK)


def test_it_holds_no_member_that_did_not_change(made: Bench) -> None:
    with zipfile.ZipFile(made.delta.path) as archive:
        content = json.loads(archive.read(f"{FOLDER}/{manifest.MANIFEST}"))
    assert "mini/_C.abi3.so" not in [file["path"] for file in content["files"]]


def test_what_it_runs_is_plain_python_3_8(made: Bench) -> None:
    for module in APPLIER.glob("*.py"):
        tree = ast.parse(module.read_text(), feature_version=(3, 8))
        for node in ast.walk(tree):
            if isinstance(node, ast.ImportFrom) and node.level == 0:
                assert node.module.partition(".")[0] in sys.stdlib_module_names
            if isinstance(node, ast.Import):
                assert node.names[0].name in sys.stdlib_module_names
    isolated = [sys.executable, "-I", "-S", made.delta.path, "--help"]
    assert "--undo" in subprocess.run(isolated, capture_output=True, text=True, check=True).stdout


@pytest.mark.parametrize(
    "path", ["../x.py", "/x.py", "mini/../../x", "mini//x", "a\\b", ".", "a\0"]
)
def test_a_path_that_leads_outside_is_refused(made: Bench, path: str) -> None:
    with zipfile.ZipFile(made.delta.path) as archive:
        content = json.loads(archive.read(f"{FOLDER}/{manifest.MANIFEST}"))
    content["files"][0]["path"] = path
    with pytest.raises(Misfit, match="outside"):
        manifest.read(lambda name: json.dumps(content).encode())


@pytest.mark.parametrize("text", [b"K = 1", b'"format": 1', b'\n "files": [', b'"pieces": ['])
def test_a_damaged_delta_changes_nothing(bench: Bench, tmp_path: Path, text: bytes) -> None:
    damaged = tmp_path / bench.delta.path.name
    data = bench.delta.path.read_bytes()
    assert text in data
    damaged.write_bytes(data.replace(text, text[:-1] + b"2"))
    before = files(bench.site)
    command = [bench.python, damaged]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == MISFIT, done.stderr
    assert files(bench.site) == before


LINES = st.lists(
    st.sampled_from([b"a\n", b"b\n", b"\r\n", b"\xff\n", b"\x0c", "é\n".encode(), b"c"])
)


@given(LINES, LINES)
def test_pieces_make_the_new_bytes_of_the_old(old: list[bytes], new: list[bytes]) -> None:
    before, after = b"".join(old), b"".join(new)
    recipe = json.loads(json.dumps({"pieces": deltaedits.pieces(before, after)}))
    delta = manifest.Delta(base=None, overlay=None, files=(), blob=None)
    assert delta.made(recipe, before, manifest.hash_of(after), "x") == after


@given(st.binary(), st.binary())
def test_pieces_of_any_bytes(old: bytes, new: bytes) -> None:
    recipe = {"pieces": deltaedits.pieces(old, new)}
    delta = manifest.Delta(base=None, overlay=None, files=(), blob=None)
    assert delta.made(recipe, old, manifest.hash_of(new), "x") == new
