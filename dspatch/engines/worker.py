"""Run a worker: a package that a Python of its own runs, with a request in and what it found out."""

from __future__ import annotations

import json
import tempfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from dspatch import process
from dspatch.process import Completed


def run(
    python: Path,
    package: Path,
    asked: Mapping[str, Any],
    folder: Path,
    *,
    env: Mapping[str, str] | None = None,
    log: Path | None = None,
    timeout: float | None = None,
    check: bool = True,
) -> Completed:
    """Have the worker whose code is in `package` do what is asked, in `folder`, which gets the request.

    It does not run in the caller's folder, where Python looks first: in a checkout of an engine that
    would be the checkout's source, and not what `python` has installed. Errors as of `process.run`.
    """
    request = folder / "request.json"
    request.write_text(json.dumps(asked, indent=1) + "\n")
    return process.run(
        [python, "-m", package.name, request],
        cwd=folder,
        env={**(env or {}), "PYTHONPATH": str(package.parent)},
        log=log,
        timeout=timeout,
        check=check,
    )


def ask(
    python: Path,
    package: Path,
    asked: Mapping[str, Any],
    *,
    env: Mapping[str, str] | None = None,
    log: Path | None = None,
    timeout: float | None = None,
) -> Any:
    """What a worker writes into the `target` of its request, as JSON."""
    with tempfile.TemporaryDirectory(prefix="dspatch-worker-") as name:
        folder = Path(name)
        target = folder / "result.json"
        given = {**asked, "target": str(target)}
        run(python, package, given, folder, env=env, log=log, timeout=timeout)
        return json.loads(target.read_text())
