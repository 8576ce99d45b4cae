"""Runs of the conformance suite that were kept as files: which models passed on which release, and when."""

from __future__ import annotations

import json
from collections.abc import Collection, Iterable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from dspatch.errors import ClaimError


@dataclass(frozen=True, kw_only=True)
class Proof:
    """A run on the patched wheel of a release; `open` counts by model the checks that showed nothing.

    Of a model, only what passed every check that could look is in `open`; a failed one is not.
    """

    engine: str
    version: str
    target: str
    date: str
    tree: str
    path: Path
    open: Mapping[str, int]


def load(folder: Path) -> tuple[Proof, ...]:
    """The proofs of a folder, by file name: each JSON file in it that names a `job`.

    Raises `ClaimError` for a file that cannot be read, and for a summary that its results deny.
    """
    return tuple(_proof(path, held) for path, held in _held(folder))


def stock(path: Path) -> dict[tuple[str, str, str], str]:
    """When upstream's own wheel passed all that could be shown, by model, target and release.

    path: the file of what the suite said of each wheel, all of them for CPU.
    """
    held = json.loads(path.read_text(encoding="utf-8")) if path.is_file() else {}
    return {
        (model, "cpu", rev.removeprefix("v")): wheels["stock"]["date"]
        for rev, wheels in held.items()
        for model, failed in wheels["stock"]["models"].items()
        if not failed
    }


def on(proofs: Iterable[Proof], models: Collection[str], target: str, version: str) -> Proof | None:
    """The newest proof of one of some models."""
    found = [
        each
        for each in proofs
        if (each.target, each.version) == (target, version)
        and not each.open.keys().isdisjoint(models)
    ]
    return max(found, key=lambda each: each.date, default=None)


def _held(folder: Path) -> Iterator[tuple[Path, dict[str, Any]]]:
    for path in sorted(folder.glob("*.json")):
        try:
            held = json.loads(path.read_text(encoding="utf-8"))
        except ValueError as error:
            raise _broken(path, str(error)) from error
        if isinstance(held, dict) and "job" in held:
            yield path, held


def _proof(path: Path, held: Mapping[str, Any]) -> Proof:
    try:
        job, rows = held["job"], held["results"]
        statuses: dict[str, list[str]] = {}
        for row in rows:
            statuses.setdefault(row["variant"], []).append(row["status"])
        told = _summary([row["status"] for row in rows])
        if held["summary"] != told:
            raise _broken(path, f"it says {held['summary']}; its results say {told}")
        return Proof(
            engine=job["engine"],
            version=job["rev"].removeprefix("v"),
            target=job["target"],
            date=held["date"],
            tree=held["tree"],
            path=path,
            open={
                name: len(mine) - mine.count("pass")
                for name, mine in statuses.items()
                if "fail" not in mine and "pass" in mine
            },
        )
    except (KeyError, TypeError, AttributeError) as error:
        raise _broken(path, f"it lacks {error}") from error


def _summary(statuses: list[str]) -> str:
    passed, failed = statuses.count("pass"), statuses.count("fail")
    return f"{passed} passed, {failed} failed, {len(statuses) - passed - failed} not shown"


def _broken(path: Path, why: str) -> ClaimError:
    return ClaimError(
        f"{path} is no proof that can be read.",
        why=why,
        next="write it anew: python benchmarks/write_proof.py JOB --machine WORDS",
    )
