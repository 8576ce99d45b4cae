"""`dspatch status`: which stages a job has been through, and whether they still hold."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from dspatch import receipt, worktree
from dspatch.carry.rebase import rebasestate
from dspatch.files import sha256
from dspatch.job import Job

STAGES = ("apply", "build-wheel", "conformance")


@dataclass(frozen=True, kw_only=True)
class StageState:
    """One stage of a job: not run, current, stale (what it rests on changed since) or failed."""

    stage: str
    state: str
    detail: str


def states(job: Job) -> tuple[StageState, ...]:
    """The state of every stage of a job."""
    apply = receipt.read(job, "apply")
    build = receipt.read(job, "build-wheel")
    report = receipt.read(job, "conformance")
    return (_apply(job, apply), _build(job, apply, build), _conformance(build, report))


def _apply(job: Job, content: dict[str, Any] | None) -> StageState:
    if content is None:
        return StageState(stage="apply", state="not run", detail="")
    rebase = rebasestate.load(job)
    if rebase is not None:
        detail = f"onto {rebase.wanted.onto}, at {rebase.patch}"
        return StageState(stage="apply", state="rebase under way", detail=detail)
    edited = worktree.edits(job.tree) if worktree.head(job.tree) else ["its tree is gone"]
    if edited:
        return StageState(stage="apply", state="edited", detail=edited[0])
    names = ", ".join(patch["name"] for patch in content["patches"]) or "no patch was needed"
    return StageState(stage="apply", state="current", detail=names)


def _build(job: Job, apply: dict[str, Any] | None, content: dict[str, Any] | None) -> StageState:
    if content is None:
        return StageState(stage="build-wheel", state="not run", detail="")
    path = job.dist / content["wheel"]["path"]
    if not path.is_file() or sha256(path) != content["wheel"]["sha256"]:
        return StageState(
            stage="build-wheel", state="stale", detail=f"{path.name} is gone or changed"
        )
    if apply is None or apply["patched"] != content["patched"]:
        return StageState(stage="build-wheel", state="stale", detail="the tree has changed since")
    return StageState(stage="build-wheel", state="current", detail=path.name)


def _conformance(build: dict[str, Any] | None, content: dict[str, Any] | None) -> StageState:
    if content is None:
        return StageState(stage="conformance", state="not run", detail="")
    if build is None or content["wheel"] != build["wheel"]["sha256"]:
        return StageState(stage="conformance", state="stale", detail="another wheel was tested")
    return StageState(
        stage="conformance",
        state="passed" if content["passed"] else "failed",
        detail=content["summary"],
    )
