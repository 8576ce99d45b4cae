"""An engine that dspatch does not ship: docs/engines.md taken at its word, against a generated project."""

from __future__ import annotations

import io
import json
import os
import re
import shlex
import subprocess
import sys
import tarfile
from collections.abc import Iterator
from pathlib import Path
from zipfile import ZipFile

import pytest

from dspatch import engines, errors
from tests.unit.index_server import Served, serve
from tests.unit.release_files import PLATFORM as MACHINE
from tests.unit.release_files import shared_object, wheel

DOCS = Path(__file__).parents[2] / "docs/engines.md"
SERVER = '''\
"""Answer requests."""

from tinyserve.cache import Cache


class Server:
    def __init__(self) -> None:
        self.cache = Cache(limit=64)

    def generate(self, prompt: str) -> str:
        if len(prompt) > 100:
            raise ValueError("the prompt is too long")
        return self.cache.get(prompt) or prompt.upper()
'''
CACHE = '''\
"""What was answered before."""


class Cache:
    def __init__(self, limit: int) -> None:
        self.limit = limit
        self.known: dict[str, str] = {}

    def get(self, prompt: str) -> str | None:
        return self.known.get(prompt)
'''
# Whoever imports the engine leaves a trace.
RUNS = "import os\nopen(os.environ['TINYSERVE_RAN'], 'w').close()\n"
DIFF = """\
--- a/tinyserve/server.py
+++ b/tinyserve/server.py
@@ -5,5 +5,5 @@

 class Server:
     def __init__(self) -> None:
-        self.cache = Cache(limit=64)
+        self.cache = Cache(limit=4096)

"""


def files(version: str) -> dict[str, bytes]:
    server = SERVER
    if version == "2.0":
        server = SERVER.replace("> 100", "> 200").replace("Cache\n", "Cache\n\nLOG = []\n")
    return {
        "tinyserve/__init__.py": RUNS.encode(),
        "tinyserve/_version.py": f"__version__ = {version!r}\n".encode(),
        "tinyserve/server.py": server.encode(),
        "tinyserve/cache.py": CACHE.encode(),
    }


def sdist(version: str) -> bytes:
    info = f"Metadata-Version: 2.1\nName: tinyserve\nVersion: {version}\nRequires-Python: >=3.10\n"
    members = {"PKG-INFO": info.encode(), "src/core.c": b"int main;\n", **files(version)}
    out = io.BytesIO()
    with tarfile.open(fileobj=out, mode="w:gz") as tar:
        for path, data in members.items():
            member = tarfile.TarInfo(f"tinyserve-{version}/{path}")
            member.size = len(data)
            tar.addfile(member, io.BytesIO(data))
    return out.getvalue()


class Desk:
    """A folder with the files of the page, and its commands."""

    def __init__(self, root: Path, index: str) -> None:
        self.root = root
        self.environment = {
            **{
                k: v for k, v in os.environ.items() if not k.startswith(("PIP_", "GIT_", "DSPATCH"))
            },
            "PIP_CONFIG_FILE": os.devnull,
            "PIP_INDEX_URL": index,
            "DSPATCH_CACHE": str(root / "cache"),
            "TINYSERVE_RAN": str(root / "ran"),
        }
        (root / "bigger-cache.diff").write_text(DIFF)

    def write(self, name: str) -> None:
        """Write one of the page's files."""
        path = self.root / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(page_files()[name])

    def run(self, line: str, code: int = 0) -> str:
        words = shlex.split(line)
        assert words.pop(0) == "dspatch"
        done = subprocess.run(
            [sys.executable, "-m", "dspatch", *words], cwd=self.root, env=self.environment,
            capture_output=True, text=True, check=False, stdin=subprocess.DEVNULL,
        )  # fmt: skip
        assert done.returncode == code, f"{line}\n{done.stderr}{done.stdout}"
        assert "Traceback" not in done.stderr
        return done.stdout if code == 0 else done.stderr

    def tree(self, version: str) -> Path:
        return self.root / f"dspatch-work/jobs/tinyserve-{version}-cpu-deepseek/tree"


def fences() -> Iterator[tuple[str, str]]:
    """The page's code blocks: language and text."""
    for found in re.finditer(r"^```(\w+)\n(.*?)^```$", DOCS.read_text(), re.M | re.S):
        yield found[1], found[2]


def page_files() -> dict[str, str]:
    """The files that the page shows, by path; the line that names one is a comment of it."""
    named = {}
    for language, text in fences():
        first, _, rest = text.partition("\n")
        if found := re.fullmatch(r"(?:#|<#) (dspatch-work/\S+)(?: #>)?", first):
            named[found[1]] = rest if language == "jinja" else text
    return named


def commands() -> list[str]:
    """The commands that the page shows, in order."""
    text = "".join(text for language, text in fences() if language == "console")
    return [line.removeprefix("$ ") for line in text.splitlines()]


@pytest.fixture
def desk(tmp_path: Path) -> Iterator[Desk]:
    with serve() as index:
        for version in ("1.0", "2.0"):
            project = "tinyserve"
            index.add(f"tinyserve-{version}.tar.gz", Served(data=sdist(version)), project)
            members = {**files(version), "tinyserve/_core.abi3.so": shared_object()}
            name = f"tinyserve-{version}-cp38-abi3-{MACHINE}.whl"
            index.add(name, Served(data=wheel(project, version, members)), project)
        desk = Desk(tmp_path, index.simple)
        desk.write("dspatch-work/pins/engines.toml")
        yield desk


def test_the_page_from_a_table_to_verified_wheels(desk: Desk) -> None:
    lines = commands()
    pin, imported, listed, *rest = lines
    assert "tinyserve" in desk.run(pin)
    for name in page_files():
        if name != "dspatch-work/patches/tinyserve/series":
            desk.write(name)
    (desk.root / "dspatch-work/patches/tinyserve/series").write_text("long-prompts\n")
    desk.run(imported)
    desk.write("dspatch-work/patches/tinyserve/series")
    assert re.search(r"long-prompts +applies", desk.run(listed))
    said = [desk.run(line) for line in rest]
    assert "bigger-cache  applies" in said[0]
    patched = (desk.tree("1.0") / "tinyserve/server.py").read_text()
    assert "Cache(limit=4096)" in patched
    assert "prompt = shorten(prompt)" in patched
    assert "from tinyserve.shorten import shorten" in patched
    shorten = desk.tree("1.0") / "tinyserve/shorten.py"
    assert shorten.read_text().endswith("return prompt[:100]\n")
    built = next((desk.root / "dspatch-work/jobs").glob("tinyserve-1.0-*/dist/*.whl"))
    assert built.name.startswith("tinyserve-1.0+cpu.dspatch.")
    with ZipFile(built) as archive:
        assert archive.read("tinyserve/server.py").decode() == patched
        assert archive.read("tinyserve/_core.abi3.so") == shared_object()
        assert "+cpu.dspatch." in archive.read("tinyserve/_version.py").decode()
    # The next release moved both places.
    assert "bigger-cache  applies" in said[-1]
    newer = (desk.tree("2.0") / "tinyserve/server.py").read_text()
    assert "LOG = []" in newer
    assert "Cache(limit=4096)" in newer
    assert (desk.tree("2.0") / "tinyserve/shorten.py").read_text().endswith("return prompt[:200]\n")
    assert not (desk.root / "ran").exists(), "the engine's code ran"


def test_a_trait_that_no_longer_holds(desk: Desk) -> None:
    for name in page_files():
        desk.write(name)
    (desk.root / "dspatch-work/patches/tinyserve/series").write_text("long-prompts\n")
    desk.run(commands()[0])
    source = desk.root / "fork"
    subprocess.run(["git", "init", "-q", "-b", "main", source], check=True)
    for path, data in files("1.0").items():
        (source / path).parent.mkdir(exist_ok=True)
        (source / path).write_bytes(
            data.replace(b'raise ValueError("the prompt is too long")', b"pass")
        )
    words = ["git", "-C", str(source), "-c", "user.name=x", "-c", "user.email=x@localhost"]
    subprocess.run([*words, "add", "."], check=True)
    subprocess.run([*words, "commit", "-qm", "ours"], check=True)
    line = f"dspatch apply --engine tinyserve --rev main --repo {source} --base v1.0 --json"
    found = json.loads(desk.run(line))
    assert [(item["patch"], item["status"]) for item in found["series"]] == [
        ("long-prompts", "not needed")
    ]


def test_the_module_is_loaded_for_conformance_alone(
    desk: Desk, monkeypatch: pytest.MonkeyPatch
) -> None:
    table = desk.root / "dspatch-work/pins/engines.toml"
    monkeypatch.setenv("DSPATCH_PINS", str(table.parent))
    with pytest.raises(errors.UnknownEngineError, match="cannot run the engine tinyserve"):
        engines.get("tinyserve")
    desk.write("dspatch-work/pins/tinyserve_engine.py")
    module = table.parent / "tinyserve_engine.py"
    good = module.read_text()
    text = table.read_text().replace(
        "[[tinyserve.accepted]]", 'module = "tinyserve_engine.py"\n\n[[tinyserve.accepted]]'
    )
    table.write_text(text)
    module.write_text(f"open({str(desk.root / 'loaded')!r}, 'w').close()\n{good}")
    desk.run(commands()[0])
    assert not (desk.root / "loaded").exists()
    assert engines.get("tinyserve").NAME == "tinyserve"
    assert (desk.root / "loaded").exists()
    for broken, why in (("x = 1\n", "must hold NAME"), ("import nothing_of_this_name\n", "nothing_of")):  # fmt: skip
        module.write_text(broken)
        with pytest.raises(errors.EngineError) as error:
            engines.get("tinyserve")
        assert why in error.value.why


@pytest.mark.parametrize(
    ("old", "new", "line", "expected"),
    [
        ("[tinyserve]", "[vllm]", 2, "`vllm` ships with dspatch"),
        ("[tinyserve]", "[engines]", 2, "other than `engines`"),
        ("[tinyserve]", "[Tiny]", 2, "small letters"),
        ("sdist =", "sdists =", 4, "unknown key `sdists`"),
        ('package = "tinyserve" ', "package = 1", 3, "`package` must be a string"),
        ("base = { cpu", "base = { tpu", 7, "`base` must name a project for one or more of cpu"),
        ("base =", 'module = "gone.py"\nbase =', 7, "`module` must be a Python file beside"),
        ("[tinyserve]", "[tinyserve", 0, "Expected ']'"),
    ],
)
def test_a_table_with_a_fault(old: str, new: str, line: int, expected: str, desk: Desk) -> None:
    table = desk.root / "dspatch-work/pins/engines.toml"
    text = table.read_text().partition("[[")[0]
    assert old in text
    table.write_text(text.replace(old, new, 1))
    message = desk.run("dspatch pin list", code=errors.PinError.exit_code)
    assert expected in message
    assert f"engines.toml, line {line}:" in message or not line
