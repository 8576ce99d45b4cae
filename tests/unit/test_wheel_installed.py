"""`wheel verify` on what is installed: every planted fault is named by the file that it is in."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import pytest

from dspatch.console import Console
from dspatch.errors import ProcessError, WheelError, WheelVerifyError
from dspatch.stages import verify as stage
from dspatch.stages.verify import Subject
from dspatch.wheel import checks
from dspatch.wheel.installed import Installed, named, open_installed
from dspatch.wheel.overlay import build_overlay
from dspatch.wheel.plan import SBOM_NAME
from dspatch.wheel.verify import INSTALLED, verify_installed
from tests.unit import deltakit
from tests.unit.deltakit import Bench
from tests.unit.wheelkit import BASE_INFO, INFO


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Bench:
    """An overlay that pip installed."""
    folder = tmp_path_factory.mktemp("installed")
    base, overlay, delta = deltakit.wheels(folder)
    site = deltakit.install(overlay, folder / "venv")
    return Bench(base=base, overlay=overlay, delta=delta, site=site)


@pytest.fixture
def bench(made: Bench, tmp_path: Path) -> Bench:
    return deltakit.copied(made, tmp_path)


def only(site: Path) -> Installed:
    (found,) = named(site)
    return open_installed(*found)


def faults(site: Path, base: Path | None = None) -> set[str]:
    with pytest.raises(WheelVerifyError) as caught:
        verify_installed(only(site), base)
    return {line.strip().partition(": expected")[0] for line in caught.value.why.splitlines()}


def test_an_installed_overlay_passes_every_check(bench: Bench) -> None:
    done = verify_installed(only(bench.site), bench.base)
    assert [result.name for result in done.results] == [*INSTALLED, "base"]
    assert done.passed


def test_a_delta_leaves_what_passes_as_well(made: Bench, tmp_path: Path) -> None:
    site = deltakit.install(made.base, tmp_path / "venv")
    bench = Bench(base=made.base, overlay=made.overlay, delta=made.delta, site=site)
    assert [r.name for r in verify_installed(only(site), made.base).results][-1] == "base"
    bench.run()
    assert verify_installed(only(site), made.base).passed
    bench.run("--undo")
    assert verify_installed(only(site), made.base).passed


def written(path: str, data: bytes) -> Callable[[Path], None]:
    def plant(site: Path) -> None:
        (site / path).parent.mkdir(exist_ok=True)
        (site / path).write_bytes(data)

    return plant


def bill(site: Path) -> None:
    place = site / INFO / SBOM_NAME
    document = json.loads(place.read_text())
    document["metadata"]["component"]["components"].pop(0)
    place.write_text(json.dumps(document))


def script(site: Path) -> None:
    place = site.parents[2] / "bin" / "mini"
    place.write_text(place.read_text() + "# mine\n")


FAULTS: dict[str, tuple[Callable[[Path], None], str]] = {
    "changed": (written("mini/ops.py", b"x = 1\n"), "mini/ops.py"),
    "changed, same size": (written("mini/data.json", b"[]\n"), "mini/data.json"),
    "a compiled member": (written("mini/_C.abi3.so", b"\0"), "mini/_C.abi3.so"),
    "missing": (lambda site: (site / "mini/data.json").unlink(), "mini/data.json"),
    "extra": (written("mini/extra.py", b""), "mini/extra.py"),
    "extra in a new folder": (written("mini/sub/extra.py", b""), "mini/sub/extra.py"),
    "a compiled file that Python would run": (written("mini/old.pyc", b""), "mini/old.pyc"),
    "extra in .dist-info": (written(f"{INFO}/x.json", b"{}"), f"{INFO}/x.json"),
    "the bill of materials": (bill, f"{INFO}/{SBOM_NAME}"),
    "a script": (script, "../../../bin/mini"),
    "a stopped delta": (written(".mini.dspatch-delta/journal.json", b"{}"), ".mini.dspatch-delta"),
}


@pytest.mark.parametrize("name", FAULTS)
def test_a_planted_fault_is_named(bench: Bench, name: str) -> None:
    plant, member = FAULTS[name]
    plant(bench.site)
    assert member in faults(bench.site)


def test_a_renamed_folder_is_named(bench: Bench) -> None:
    (bench.site / INFO).rename(bench.site / "mini-9.0.dist-info")
    found = list(checks.stated(only(bench.site)))
    assert [fault.member for fault in found] == ["mini-9.0.dist-info/METADATA"]
    assert len(faults(bench.site)) > 1


def test_what_python_compiled_is_no_fault(bench: Bench) -> None:
    for place in bench.site.rglob("*.pyc"):
        place.unlink()
    (bench.site / "mini/__pycache__/x.cpython-38.pyc").write_bytes(b"")
    assert verify_installed(only(bench.site)).passed


def test_a_file_of_another_wheel_in_the_same_folder_is_none_of_its_own(bench: Bench) -> None:
    (bench.site / "mini/plugin.py").write_text("")
    info = bench.site / "mini_plugin-1.0.dist-info"
    info.mkdir()
    (info / "RECORD").write_text("mini/plugin.py,,\nmini_plugin-1.0.dist-info/RECORD,,\n")
    found = next(each for each in named(bench.site) if each[1].project == "mini")
    assert verify_installed(open_installed(*found)).passed


def test_the_record_of_another_wheel_need_not_be_right(bench: Bench) -> None:
    (bench.site / "mini/plugin.py").write_text("")
    info = bench.site / "numeric-1.0.dist-info"
    info.mkdir()
    row = "mini/plugin.py,,\n"
    (info / "RECORD").write_bytes(f"{row}{row}short\n".encode() + b"caf\xe9,md5=x,y\n")
    for subject in (Subject(python=str(bench.python)), Subject(path=bench.site, project="mini")):
        assert stage.run(subject, Console()).passed
    (bench.site / "mini/extra.py").write_text("")
    with pytest.raises(WheelVerifyError, match=r"mini/extra\.py"):
        stage.run(Subject(path=bench.site), Console())


def test_a_module_in_the_callers_folder_is_not_imported(
    bench: Bench, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "json.py").write_text("raise SystemExit('imported from where the user stands')\n")
    monkeypatch.chdir(tmp_path)
    assert stage.run(Subject(python=str(bench.python)), Console()).passed


def test_the_record_of_the_wheel_itself_must_be_right(bench: Bench) -> None:
    record = bench.site / INFO / "RECORD"
    record.write_text(record.read_text() + "mini/ops.py,,\n")
    with pytest.raises(WheelError, match="malformed"):
        stage.run(Subject(path=bench.site), Console())


def test_a_folder_within_the_package_may_end_in_data(tmp_path: Path) -> None:
    from tests.unit import wheelkit

    more = {"mini/x.data/y.txt": b"y\n"}
    outside = {"mini_cpu-1.0.data/scripts/mini-tool": b"#!python\n"}
    base = wheelkit.base_wheel(tmp_path / "base", {**wheelkit.BASE, **more, **outside})
    plan = wheelkit.plan(base, source={**wheelkit.SOURCE, **more})
    overlay = build_overlay(plan, tmp_path / "dist").path
    site = deltakit.install(overlay, tmp_path / "venv")
    assert verify_installed(only(site), base).passed
    (site / "mini/x.data/y.txt").unlink()
    assert faults(site, base) == {"mini/x.data/y.txt"}


def test_another_base_is_told(bench: Bench, tmp_path: Path) -> None:
    from tests.unit import wheelkit

    other = wheelkit.base_wheel(tmp_path / "o", wheelkit.BASE | {"mini/_C.abi3.so": b"other"})
    assert {"mini/_C.abi3.so", other.name} <= faults(bench.site, other)


def test_a_stock_wheel_is_held_against_its_record_and_its_wheel(
    made: Bench, tmp_path: Path
) -> None:
    site = deltakit.install(made.base, tmp_path / "venv")
    (site / "mini/ops.py").write_text("")
    assert faults(site) == {"mini/ops.py"}
    record = site / BASE_INFO / "RECORD"
    rows = [row for row in record.read_text().splitlines() if not row.startswith("mini/ops.py,")]
    row = "mini/ops.py,sha256=47DEQpj8HBSa-_TImW-5JCeuQeRkm5NMpJWZG3hSuFU,0"
    record.write_text("\n".join([*rows, row, ""]))
    assert verify_installed(only(site)).passed
    assert faults(site, made.base) == {"mini/ops.py"}


def test_the_stage_finds_it_by_folder_and_by_python(bench: Bench) -> None:
    for subject in (
        Subject(path=bench.site),
        Subject(python=str(bench.python), base_wheel=bench.base),
        Subject(path=bench.site, project="Mini"),
    ):
        assert stage.run(subject, Console()).passed


@pytest.mark.parametrize("project", [None, "absent"])
def test_nothing_to_verify_is_told(tmp_path: Path, project: str | None) -> None:
    with pytest.raises(WheelError, match="No installed wheels are meant"):
        stage.run(Subject(path=tmp_path, project=project), Console())


def test_a_python_that_does_not_run_is_told(tmp_path: Path) -> None:
    with pytest.raises(ProcessError):
        stage.run(Subject(python=str(tmp_path / "python")), Console())


def test_a_record_that_cannot_be_read_is_told(bench: Bench) -> None:
    (bench.site / INFO / "RECORD").write_bytes(b"\xff")
    with pytest.raises(WheelError, match="RECORD"):
        only(bench.site)
