"""Receipts: JSON that rides with every stage and says what went in, what was done, what came out."""

from __future__ import annotations

import json
from dataclasses import asdict
from typing import Any

from dspatch import __version__
from dspatch.errors import NoJobError
from dspatch.files import write_atomically
from dspatch.job import Job


def write(job: Job, stage: str, content: dict[str, Any]) -> dict[str, Any]:
    """Write the receipt of a stage and return it."""
    receipt = {"dspatch": __version__, "stage": stage, "job": asdict(job.id), **content}
    text = json.dumps(receipt, indent=2, sort_keys=True, default=str) + "\n"
    write_atomically(job.receipt(stage), text.encode())
    return receipt


def read(job: Job, stage: str) -> dict[str, Any] | None:
    """The receipt of a stage, or `None` when the stage has not run or its receipt is damaged."""
    try:
        content = json.loads(job.receipt(stage).read_text())
    except (FileNotFoundError, json.JSONDecodeError, UnicodeDecodeError):
        return None
    return content if isinstance(content, dict) else None


def require(job: Job, stage: str) -> dict[str, Any]:
    """The receipt of a stage that must have run. Raises `NoJobError`."""
    found = read(job, stage)
    if found is None:
        raise NoJobError(
            f"{job.id}: the stage `{stage}` has not run.",
            next=f"dspatch {'apply' if stage == 'apply' else stage} --engine {job.id.engine}"
            f" --rev {job.id.rev} --target {job.id.target}",
        )
    return found
