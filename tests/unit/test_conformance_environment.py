"""Environments are made once, whole or not at all, and a failure says where pip's log is."""

from __future__ import annotations

import json
import zipfile
from pathlib import Path
from threading import Thread

import pytest

from dspatch import process
from dspatch.engines import environment, sharing
from dspatch.errors import EngineEnvironmentError


def wheel(folder: Path, name: str, body: str) -> Path:
    """A wheel of one module."""
    path = folder / f"{name}-0.1-py3-none-any.whl"
    info = f"{name}-0.1.dist-info"
    with zipfile.ZipFile(path, "w") as archive:
        archive.writestr(f"{name}.py", body)
        archive.writestr(f"{info}/METADATA", f"Metadata-Version: 2.1\nName: {name}\nVersion: 0.1\n")
        tag = "Wheel-Version: 1.0\nGenerator: test\nRoot-Is-Purelib: true\nTag: py3-none-any\n"
        archive.writestr(f"{info}/WHEEL", tag)
        archive.writestr(f"{info}/RECORD", "")
    return path


@pytest.fixture(autouse=True)
def _offline(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PIP_NO_INDEX", "1")


def test_a_wheel_is_installed_and_its_environment_found_again(tmp_path: Path) -> None:
    path = wheel(tmp_path, "mini_engine", "ANSWER = 42\n")
    said: list[str] = []
    made = environment.for_wheel("mini", path, said.append)
    shown = process.run([made.python, "-c", "import mini_engine; print(mini_engine.ANSWER)"])
    assert shown.stdout == "42\n"
    again = environment.for_wheel("mini", path, said.append)
    assert again == made
    assert len(said) == 2, "the environment of what it needs, and its own on top"


def test_wheels_with_the_same_needs_share_them(tmp_path: Path) -> None:
    (tmp_path / "other").mkdir()
    stock = wheel(tmp_path, "mini_engine", "ANSWER = 42\n")
    patched = wheel(tmp_path / "other", "mini_engine", "ANSWER = 43\n")
    made = [environment.for_wheel("mini", path) for path in (stock, patched)]
    answers = [
        process.run([one.python, "-c", "import mini_engine; print(mini_engine.ANSWER)"]).stdout
        for one in made
    ]
    assert answers == ["42\n", "43\n"]
    below = [json.loads((one.path / environment.MARKER).read_text())["below"] for one in made]
    assert below[0] == below[1]


def test_a_lent_environment_is_gone_afterwards_unless_it_was_there(tmp_path: Path) -> None:
    path = wheel(tmp_path, "mini_engine", "ANSWER = 42\n")
    envs = tmp_path / "cache" / "envs"
    with environment.lent("mini", path) as made:
        assert process.run([made.python, "-c", "import mini_engine"]).returncode == 0
    assert not [each for each in envs.iterdir() if each.is_dir()]
    with pytest.raises(ValueError, match="stopped"), environment.lent("mini", path):
        raise ValueError("stopped")
    assert not [each for each in envs.iterdir() if each.is_dir()]
    usual = environment.for_wheel("mini", path)
    with environment.lent("mini", path) as made:
        assert made == usual
    assert usual.complete


def test_who_asks_for_what_is_lent_waits(tmp_path: Path) -> None:
    path, found = wheel(tmp_path, "mini_engine", "ANSWER = 42\n"), []

    def other() -> None:
        with environment.lent("mini", path) as made:
            found.append(made.complete)

    waiting = Thread(target=other)
    with environment.lent("mini", path) as made:
        waiting.start()
        waiting.join(0.5)
        assert waiting.is_alive()
        assert not found
        assert process.run([made.python, "-c", "import mini_engine"]).returncode == 0
    waiting.join()
    assert found == [True]


def test_what_is_there_of_the_needs_is_shared_and_stays(tmp_path: Path) -> None:
    (tmp_path / "other").mkdir()
    usual = environment.for_wheel("mini", wheel(tmp_path, "mini_engine", "ANSWER = 42\n"))
    path = wheel(tmp_path / "other", "mini_engine", "ANSWER = 43\n")
    assert not environment.has("mini", path)
    before = {each for each in usual.path.parent.iterdir() if each.is_dir()}
    with environment.lent("mini", path) as made:
        assert made != usual
    assert {each for each in usual.path.parent.iterdir() if each.is_dir()} == before
    with environment.lent("mini", path, keep=True):
        pass
    assert environment.has("mini", path)


def test_needs_leave_out_extras_and_local_versions(tmp_path: Path) -> None:
    path = tmp_path / "a-1-py3-none-any.whl"
    lines = ["torch==2.13.0+cpu", 'zen; extra == "zen"', 'old; python_version < "3"', "x[y]>=1"]
    with zipfile.ZipFile(path, "w") as archive:
        required = "".join(f"Requires-Dist: {line}\n" for line in lines)
        archive.writestr("a-1.dist-info/METADATA", f"Name: a\nVersion: 1\n{required}")
    assert environment.needs(path) == ["torch==2.13.0", "x[y]>=1"]


def test_what_identifies_an_environment() -> None:
    def path(*requirements: str, key: str = "") -> Path:
        return environment.locate("mini", requirements, key=key).path

    assert path("a==1") != path("a==2")
    assert path("a.whl", key="one") != path("a.whl", key="two")
    assert path("/here/a.whl", key="one") == path("/there/a.whl", key="one")


def test_a_failed_install_leaves_its_log_and_nothing_else(tmp_path: Path) -> None:
    with pytest.raises(EngineEnvironmentError) as caught:
        environment.ensure("mini", ["no-such-project-anywhere==1.0"])
    envs = tmp_path / "cache" / "envs"
    log = next(envs.glob("*.log"))
    assert str(log) in caught.value.next
    assert "no-such-project-anywhere" in log.read_text()
    assert [path.name for path in envs.iterdir() if path.is_dir()] == []


def test_a_half_made_environment_is_made_anew(tmp_path: Path) -> None:
    path = wheel(tmp_path, "mini_engine", "ANSWER = 42\n")
    made = environment.for_wheel("mini", path)
    (made.path / environment.MARKER).unlink()
    (made.path / "left-over").write_text("from a killed process")
    again = environment.for_wheel("mini", path)
    assert again.complete
    assert not (again.path / "left-over").exists()


def test_a_companion_that_cannot_load_beside_this_torch_is_removed(tmp_path: Path) -> None:
    broken = wheel(tmp_path, "torchvision", "raise RuntimeError('operator does not exist')\n")
    sound = wheel(tmp_path, "torchaudio", "")
    made = environment.ensure("mini", [str(broken), str(sound)])
    names = {path.name for path in made.path.glob("lib/python*/site-packages/*.py")}
    assert "torchaudio.py" in names
    assert "torchvision.py" not in names
    assert '"removed": ["torchvision"]' in (made.path / environment.MARKER).read_text()


def test_environments_share_the_bytes_of_large_files(tmp_path: Path) -> None:
    body = "#" * (2 * sharing.WORTH) + "\n"
    paths = []
    for name, answer in (("one", "A = 1\n"), ("two", "A = 2\n")):
        (tmp_path / name).mkdir()
        paths.append(wheel(tmp_path / name, "mini_engine", answer))
        with zipfile.ZipFile(paths[-1], "a") as archive:
            archive.writestr("torch_stand_in.py", body)
    made = [environment.for_wheel("mini", path) for path in paths]
    large, own = (
        [environment.site_packages(one) / name for one in made]
        for name in ("torch_stand_in.py", "mini_engine.py")
    )
    assert large[0].samefile(large[1])
    assert not own[0].samefile(own[1])
    assert json.loads((made[1].path / environment.MARKER).read_text())["shared"] == len(body)
    large[0].unlink()
    assert large[1].read_text() == body


def test_only_equal_files_are_shared(tmp_path: Path) -> None:
    one, two = (tmp_path / name for name in ("one", "two"))
    big = b"x" * sharing.WORTH
    for folder in (one, two):
        folder.mkdir()
        (folder / "small").write_bytes(b"x")
        (folder / "mode").write_bytes(big)
        (folder / "link").symlink_to("mode")
        (folder / "other").write_bytes(big + folder.name.encode())
        (folder / f"{folder.name} alone").write_bytes(big)
    (two / "mode").chmod(0o755)
    assert sharing.share(two, [two, tmp_path / "none", one]) == 0
    (two / "mode").chmod((one / "mode").stat().st_mode)
    assert sharing.share(two, [one]) == len(big)
    assert sharing.share(two, [one]) == 0
    assert {path.name for path in two.iterdir() if path.stat().st_nlink == 2} == {"mode", "link"}
