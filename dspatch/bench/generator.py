"""One round of load by guidellm, which runs in an environment of its own, on a server of this machine."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from dspatch import process
from dspatch.bench.rounds import Round
from dspatch.engines import Progress, environment, silent
from dspatch.engines.environment import Environment
from dspatch.errors import DspatchError, LoadError, ProcessError
from dspatch.tomlfile import load

# Where guidellm's report has each metric: the group, and the part of it.
PLACES = {
    "ttft p50": ("time_to_first_token_ms", "p50"),
    "ttft p99": ("time_to_first_token_ms", "p99"),
    "itl p50": ("inter_token_latency_ms", "p50"),
    "itl p99": ("inter_token_latency_ms", "p99"),
    "latency p50": ("request_latency", "p50"),
    "output tokens": ("output_tokens_per_second", "mean"),
}


@dataclass(frozen=True, kw_only=True)
class Load:
    """What is asked in one round: how many requests, how many at once, tokens in and out of each."""

    requests: int = 24
    concurrency: int = 4
    prompt_tokens: int = 128
    output_tokens: int = 32
    timeout: float = 600.0


def requirements() -> tuple[str, ...]:
    """What the environment of guidellm installs."""
    path = Path(__file__).with_name("generator.toml")
    return tuple(load(path, LoadError).data["requirements"])


def ensure(progress: Progress = silent) -> Environment:
    """guidellm's environment, made when it is not in the cache. Raises `EngineEnvironmentError`."""
    return environment.ensure("guidellm", requirements(), progress=progress)


def round_of(made: Environment, url: str, checkpoint: Path, asked: Load, out: Path) -> Round:
    """Load the server at `url` once; the tokens of `checkpoint` make its prompts.

    What guidellm wrote stays in `out`. Raises `LoadError` when it fails, `ProcessTimeoutError` past
    the load's own timeout.
    """
    out.mkdir(parents=True, exist_ok=True)
    report, log = out / "guidellm.json", out / "guidellm.log"
    report.unlink(missing_ok=True)
    try:
        process.run(
            command(made.python, url, checkpoint, asked, report),
            cwd=out,
            env=variables(),
            log=log,
            timeout=asked.timeout,
        )
    except ProcessError as error:
        raise LoadError(
            "guidellm did not finish a round.", why=error.why, next=f"read its log: {log}"
        ) from None
    return read(report)


def command(
    python: Path, url: str, checkpoint: Path, asked: Load, report: Path
) -> list[str | Path]:
    """What runs one round."""
    shape = {"prompt_tokens": asked.prompt_tokens, "output_tokens": asked.output_tokens}
    words: dict[str, Any] = {
        "target": url,
        "rate-type": "concurrent",
        "rate": asked.concurrency,
        "max-requests": asked.requests,
        "data": json.dumps(shape),
        "processor": checkpoint,
        "output-path": report,
        "random-seed": 7,
    }
    given = [word for key, value in words.items() for word in (f"--{key}", str(value))]
    tool = Path(python).with_name("guidellm")
    return [tool, "benchmark", "run", *given, "--disable-progress", "--disable-console-outputs"]


def variables() -> dict[str, str]:
    """Off the network: prompts are made here, and loopback is asked without a proxy."""
    proxies = ("http_proxy", "https_proxy", "HTTP_PROXY", "HTTPS_PROXY", "ALL_PROXY", "all_proxy")
    return {
        **dict.fromkeys(proxies, ""),
        "HF_HUB_OFFLINE": "1",
        "HF_DATASETS_OFFLINE": "1",
        "PYTHONPATH": "",
        "GUIDELLM__LOGGING__DISABLED": "true",
    }


def read(report: Path) -> Round:
    """A round from guidellm's report. Raises `LoadError` for a report that is none."""
    try:
        (whole,) = json.loads(report.read_text())["benchmarks"]
        metrics, totals = whole["metrics"], whole["request_totals"]
        done, failed = (int(totals[kind]) for kind in ("successful", "errored"))
        values = {name: _value(metrics, *place) for name, place in PLACES.items()} if done else {}
    except (OSError, ValueError, LookupError, TypeError) as error:
        raise _unreadable(report, error) from None
    if any(not math.isfinite(value) for value in values.values()):
        raise _unreadable(report, ValueError("a metric is no number"))
    return Round(completed=done, errors=failed, values=values)


def _value(metrics: Mapping[str, Any], group: str, part: str) -> float:
    found = metrics[group]["successful"]
    return float(found[part] if part in found else found["percentiles"][part])


def _unreadable(report: Path, error: Exception) -> DspatchError:
    return LoadError(
        "guidellm's report cannot be read.",
        why=f"{type(error).__name__}: {error}",
        next=f"read {report}",
    )
