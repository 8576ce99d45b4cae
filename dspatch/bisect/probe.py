"""One release tried: its CPU wheel in an environment, a small model through conformance, results kept."""

from __future__ import annotations

import hashlib
import json
import shutil
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from dspatch import index, paths
from dspatch.bisect.releases import Candidate
from dspatch.bisect.search import Verdict
from dspatch.carry.remote import releasestore
from dspatch.conformance.report import CheckResult, Report
from dspatch.engines import Options, Progress, environment
from dspatch.errors import DiskFullError, DspatchError

ROOM = 10_000_000_000  # bytes that an environment with a build of torch for GPUs takes, and pip's cache


@dataclass(frozen=True, kw_only=True)
class Asked:
    """What is asked of each release: one check on one small model, and how the engine is started."""

    engine: str
    check: str
    model: str
    variables: Mapping[str, str] = field(default_factory=dict)
    refused_skips: bool = False
    fresh: bool = False
    keep: bool = False
    cached_only: bool = False


@dataclass(frozen=True, kw_only=True)
class Tried:
    """What one release gave: a verdict and why, what was measured, and whether it was kept from before."""

    version: str
    verdict: Verdict
    why: str
    measured: float | None = None
    unit: str = ""
    found_at: str = ""
    seconds: float = 0.0
    kept: bool = False


def probe(candidate: Candidate, asked: Asked, out: Path, progress: Progress) -> Tried:
    """Try a release; a release that this machine cannot install or run is skipped, and says why.

    Raises `DiskFullError`, and the oracle's own errors: these are no release's fault.
    """
    if candidate.lacks:
        return Tried(version=candidate.version, verdict="skip", why=candidate.lacks)
    place = _place(candidate, asked)
    if not asked.fresh and (content := releasestore.read(place)):
        return judged(candidate.version, content, asked, kept=True)
    try:
        content = _measured(candidate, asked, out, progress)
    except DiskFullError:
        raise
    except DspatchError as error:
        why = f"{error.what} {error.why}".strip()
        return Tried(version=candidate.version, verdict="skip", why=why)
    releasestore.write(place, content)
    return judged(candidate.version, content, asked)


def at_hand(candidate: Candidate, asked: Asked) -> bool:
    """Whether a release can be tried with what is in the cache."""
    place = index.cached(candidate.wheel)
    return place is not None and environment.has(asked.engine, place)


def judged(version: str, content: Mapping[str, Any], asked: Asked, *, kept: bool = False) -> Tried:
    """The verdict of a check from the results of a whole run on one model.

    A start that is refused fails every check, or is no answer where `refused_skips` says so.
    """
    results = {row["check"]: CheckResult(**row) for row in content["results"]}
    start = results["engine.start"]
    result = results.get(asked.check, start)
    refused = result.status == "not-shown" and start.status == "fail"
    verdict: Verdict = "skip" if result.status == "not-shown" else result.status
    if refused and not asked.refused_skips:
        verdict = "fail"
    return Tried(
        version=version,
        verdict=verdict,
        why=f"refused: {start.note}" if refused else result.note,
        measured=result.measured,
        unit=result.unit,
        found_at=content["found_at"] if verdict == "fail" and not refused else "",
        seconds=content["seconds"],
        kept=kept,
    )


def _measured(candidate: Candidate, asked: Asked, out: Path, progress: Progress) -> dict[str, Any]:
    from dspatch.conformance.suite import run
    from dspatch.wheel.compatible import check_base

    file = candidate.wheel
    progress(f"{candidate.version}: {file.filename}")
    wheel = index.download_listed(candidate.project, file)
    check_base(wheel)
    if not environment.has(asked.engine, wheel):
        _need_room()
    with environment.lent(asked.engine, wheel, keep=asked.keep, progress=progress) as lent:
        report = run(
            python=lent.python,
            out=out / candidate.version,
            variants=[asked.model],
            engine=asked.engine,
            options=Options(variables=asked.variables),
            progress=lambda step: progress(f"{candidate.version}: {step}"),
        )
    return _content(report, asked.model)


def _need_room() -> None:
    place = paths.cache()
    place.mkdir(parents=True, exist_ok=True)
    free = shutil.disk_usage(place).free
    if free < ROOM:
        raise DiskFullError(
            f"{free / 1e9:.1f} GB are free where the cache lies, and an environment may take"
            f" {ROOM / 1e9:.0f}.",
            why=str(place),
            next="free some space, or try only releases whose environments are there: --cached",
        )


def _content(report: Report, model: str) -> dict[str, Any]:
    places = [each.symptom.place for each in report.diagnoses]
    return {
        "results": [asdict(result) for result in report.results],
        "found_at": places[0] if places else "",
        "seconds": report.facts["seconds"].get(model) or 0.0,
    }


def _place(candidate: Candidate, asked: Asked) -> Path:
    """Where the results of a release are kept: by everything that they depend on but the check."""
    from dspatch.conformance import suite

    wheel = candidate.wheel.sha256 or candidate.wheel.url
    inputs = [wheel, asked.model, dict(asked.variables), *suite.inputs()]
    name = hashlib.sha256(json.dumps(inputs, sort_keys=True).encode()).hexdigest()[:32]
    return paths.cache() / "bisect" / asked.engine / f"{candidate.version}-{name}.json"
