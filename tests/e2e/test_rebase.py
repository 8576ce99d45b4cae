"""`patch rebase` on real vLLM: a patch to the registry, made on 0.14.0, onto 0.20.0 and 0.33.0; the shipped series."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from dspatch import errors, pins
from dspatch.index import download
from dspatch.pins import Pin, Source, store
from tests.support import FORM_PATCH

pytestmark = pytest.mark.e2e

REGISTRY = "vllm/model_executor/models/registry.py"
SOURCES = {
    "v0.14.0": ("ed86c6a9d22fbfd059648794493cad88444c71688f3ff6efcb26c5ca353f0e5d", 19690728),
    "v0.20.0": ("a6d50152936ee292455af3ffbe359f7a284ac43bf3b68caccf29f368e196cc72", 33508260),
    "v0.33.0": ("f4c33c2503d52bb411146afa9618a4f48bed68912f617e6803ac8d76e4c74112", 47101396),
}
ENTRY = '    "OursForCausalLM": ("ours", "OursForCausalLM"),\n'
AFTER = '    "DeepseekV3ForCausalLM": ("deepseek_v2", "DeepseekV3ForCausalLM"),\n'


def source(rev: str) -> Source:
    sha256, size = SOURCES[rev]
    name = f"vllm-{rev.removeprefix('v')}.tar.gz"
    return Source(kind="sdist", project="vllm", filename=name, sha256=sha256, size=size)


def dspatch(folder: Path, *arguments: str, code: int = 0) -> dict:
    done = subprocess.run(
        [sys.executable, "-m", "dspatch", *arguments, "--json"],
        cwd=folder,
        env={**os.environ, "DSPATCH_WORK": str(folder / "work")},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == code, done.stderr + done.stdout
    return json.loads(done.stdout)


@pytest.fixture
def place(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder with the patch as its only one, held as its diff on 0.14.0, and pins of sdists."""
    folder = tmp_path / "data/patches/vllm"
    (folder / "registers").mkdir(parents=True)
    (tmp_path / "data/templates/vllm").mkdir(parents=True)
    (folder / "series").write_text("registers\n")
    (folder / "traits.toml").write_text("")
    (folder / "registers/patch.toml").write_text(FORM_PATCH.format(name="registers"))
    (folder / "registers/v0.14.0.diff").write_text(made_on(tmp_path / "made", "v0.14.0"))
    own = [Pin(engine="vllm", rev=rev, sources=(source(rev),), bases=()) for rev in SOURCES]
    store.write(tmp_path / "pins/vllm.toml", own)
    monkeypatch.setenv("DSPATCH_PINS", str(tmp_path / "pins"))
    monkeypatch.setenv("DSPATCH_DATA", str(tmp_path / "data"))
    return tmp_path


def made_on(folder: Path, rev: str) -> str:
    """The patch as git diffs it on a release."""
    import tarfile

    found = source(rev)
    path = download(found.project, found.filename, found.sha256, size=found.size)
    with tarfile.open(path) as tar:
        member = tar.extractfile(f"vllm-{rev.removeprefix('v')}/{REGISTRY}")
        assert member is not None
        text = member.read().decode()
    file = folder / REGISTRY
    file.parent.mkdir(parents=True)
    file.write_text(text)
    subprocess.run(["git", "init", "-q", folder], check=True)
    subprocess.run(["git", "-C", folder, "add", "."], check=True)
    file.write_text(text.replace(AFTER, AFTER + ENTRY))
    words = ["git", "-C", str(folder), "diff", "--full-index"]
    return subprocess.run(words, capture_output=True, text=True, check=True).stdout


def test_the_registry_patch_merges_conflicts_and_replays(place: Path) -> None:
    merged = dspatch(place, "patch", "rebase", "--rev", "v0.14.0", "--onto", "v0.20.0")
    assert merged["patches"][0]["how"] == "merged"
    code = errors.RebaseStoppedError.exit_code
    words = ("patch", "rebase", "--rev", "v0.14.0", "--onto", "v0.33.0")
    stopped = dspatch(place, *words, code=code)
    (reason,) = stopped["patches"][0]["reasons"]
    assert reason["symbol"] == "_TEXT_GENERATION_MODELS"
    assert (reason["until"], reason["since"], reason["stuck"]) == ("v0.19.1", "v0.20.0", "v0.29.0")
    file = Path(stopped["path"]) / REGISTRY
    text = file.read_text()
    conflict = re.search(r"<{7} .*?\n(.*?)\|{7} .*?>{7} registers\n", text, re.S)
    assert conflict is not None
    file.write_text(text.replace(conflict[0], ENTRY + conflict[1]))
    subprocess.run(["git", "-C", stopped["path"], "add", REGISTRY], check=True)
    done = dspatch(place, "patch", "rebase", "--continue")
    assert dspatch(place, "apply", "--rev", "v0.33.0")["tree"] == done["tree"]
    nearer = dspatch(place, "apply", "--rev", "v0.32.0")
    assert nearer["series"][0]["how"] in ("strict", "merged")


def test_the_shipped_series_goes_on_and_both_ways_agree(tmp_path: Path) -> None:
    known = [pin.rev for pin in pins.pinned("vllm")]
    done = dspatch(tmp_path, "patch", "rebase", "--rev", "v0.27.1", "--onto", known[-1])
    rows = [row for row in done["patches"] if row["agree"] is not None]
    assert rows
    assert not [row["patch"] for row in rows if not row["agree"]]
    # Its edit of a file that another patch brings on the newer release alone is in no text of the older one.
    only = {row["patch"]: row["only_here"] for row in rows if row["only_here"]}
    assert "cpu_decode_shapes.py" in " ".join(only["cpu-mla-compiled"])
    assert dspatch(tmp_path, "apply", "--rev", known[-1])["tree"] == done["tree"]
