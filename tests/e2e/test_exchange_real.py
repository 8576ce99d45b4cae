"""The shipped series of vLLM 0.27.1 out to plain git and back, and edits of it taken into its sources."""

from __future__ import annotations

import shutil
import subprocess
from pathlib import Path

import pytest

from dspatch import paths
from dspatch.carry.exchange import exportfolder
from dspatch.console import Console
from dspatch.job import Job
from dspatch.stages import apply, editing, exchange, importing
from dspatch.stages.request import Request
from tests.integration.test_exchange import git

pytestmark = pytest.mark.e2e

REQUEST = Request(engine="vllm", rev="v0.27.1")
QUIET = Console(as_json=True)


def no_question(subject: str) -> str:
    raise AssertionError(f"the reason of {subject} was asked for")


@pytest.fixture
def data(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A copy of what ships, which may be changed."""
    for kind in ("patches", "templates"):
        shutil.copytree(paths.data(kind), tmp_path / "data" / kind)
    monkeypatch.setenv("DSPATCH_DATA", str(tmp_path / "data"))
    return tmp_path / "data"


def test_git_am_gives_the_tree_and_an_import_the_same_bytes(data: Path, tmp_path: Path) -> None:
    done = exchange.export(REQUEST, (), tmp_path / "out", QUIET)
    clone = tmp_path / "clone"
    git(tmp_path, "init", "-q", str(clone))
    objects = done.tree.checkout.repo.path / "objects"
    (clone / ".git/objects/info/alternates").write_text(f"{objects}\n")
    base = git(clone, "commit-tree", "-m", "base", done.tree.checkout.tree)
    git(clone, "reset", "-q", "--hard", base)
    git(clone, "am", "-q", "--keep-cr", *sorted(map(str, (tmp_path / "out").glob("*.patch"))))
    assert git(clone, "rev-parse", "HEAD^{tree}") == done.tree.tree
    # Into a layer of one's own, beside nothing that ships but the traits.
    shipped = data / "patches/vllm"
    for folder in shipped.glob("*/"):
        if folder.is_dir():
            shutil.rmtree(folder)
    (shipped / "series").write_text("")
    said = importing.Said()
    took = importing.run(REQUEST, str(tmp_path / "out"), said, QUIET, no_question, repo=None)
    assert {one.how for one in took.taken} == {"strict"}
    again = exchange.export(REQUEST, (), tmp_path / "again", QUIET)
    assert again.tree.tree == done.tree.tree
    assert exportfolder.differences(tmp_path / "out", again.files) == ()


def test_edits_go_into_a_template_and_an_edit_s_text(data: Path) -> None:
    job: Job = apply.run(REQUEST, QUIET).job
    changes = {
        "vllm/model_executor/layers/linear.py": ("reads kv_b_proj.weight once", "needs it once"),
        "vllm/model_executor/models/deepseek_routing.py": ("score and select", "select"),
    }
    for path, (old, new) in changes.items():
        text = (job.tree / path).read_text()
        assert text.count(old) == 1, path
        (job.tree / path).write_text(text.replace(old, new))
    tree = git(job.tree, "stash", "create")
    wanted = subprocess.run(
        ["git", "-C", job.tree, "rev-parse", f"{tree}^{{tree}}"],
        capture_output=True, text=True, check=True,
    ).stdout.strip()  # fmt: skip
    done = editing.refresh(job, QUIET, no_question)
    assert done.moved
    assert [one.name for one in done.patches] == ["cpu-mla-weights", "v3-topk-method"]
    assert [one.form for one in done.patches] == [None, None]
    assert "needs it once" in (data / "patches/vllm/cpu-mla-weights/patch.toml").read_text()
    assert apply.compute(REQUEST, QUIET)[1].tree == wanted
