"""Receipts: JSON that rides with every stage and says what went in, what was done, what came out."""

from __future__ import annotations

import hashlib
import json
from dataclasses import asdict
from typing import Any

from dspatch import __version__
from dspatch.errors import NoJobError
from dspatch.files import write_atomically
from dspatch.job import Job


def write(job: Job, stage: str, content: dict[str, Any]) -> dict[str, Any]:
    """Write the receipt of a stage and return it."""
    whole = {"dspatch": __version__, "stage": stage, "job": asdict(job.id), **content}
    receipt: dict[str, Any] = json.loads(json.dumps(whole, default=str))
    receipt["seal"] = _seal(receipt)
    text = json.dumps(receipt, indent=2, sort_keys=True) + "\n"
    write_atomically(job.receipt(stage), text.encode())
    return receipt


def read(job: Job, stage: str) -> dict[str, Any] | None:
    """The receipt of a stage, or `None` when the stage has not run or its receipt was changed."""
    try:
        content = json.loads(job.receipt(stage).read_text())
    except (FileNotFoundError, json.JSONDecodeError, UnicodeDecodeError):
        return None
    if not isinstance(content, dict) or content.get("seal") != _seal(content):
        return None
    return content


def _seal(content: dict[str, Any]) -> str:
    """sha256 of a receipt's content: a receipt edited by hand is no receipt."""
    rest = {key: value for key, value in content.items() if key != "seal"}
    return hashlib.sha256(json.dumps(rest, sort_keys=True).encode()).hexdigest()


def require(job: Job, stage: str) -> dict[str, Any]:
    """The receipt of a stage that must have run. Raises `NoJobError`."""
    found = read(job, stage)
    if found is None:
        raise NoJobError(
            f"{job.id}: the stage `{stage}` has not run, or its receipt was changed.",
            next=f"dspatch {'apply' if stage == 'apply' else stage} --engine {job.id.engine}"
            f" --rev {job.id.rev} --target {job.id.target}"
            + "".join(f" --with {name}" for name in job.id.extra)
            + (" --output-format FILE" if job.id.format else ""),
        )
    return found
