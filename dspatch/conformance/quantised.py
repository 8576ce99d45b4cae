"""Quantised forms of small models: what they can be judged in, and which releases and processors refuse them."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

from packaging.version import InvalidVersion, Version

from dspatch import tomlfile
from dspatch.conformance import small
from dspatch.conformance.causes import Ask
from dspatch.conformance.small import Case
from dspatch.errors import ConformanceError, NoToleranceError, UncomputableError
from dspatch.paths import PACKAGE

FORMS = ("fp8", "awq", "gptq")  # of four bits or eight, each judged by what its numbers stand for
DTYPE = "bfloat16"


def models(variants: Iterable[str], form: str) -> list[str]:
    """The small models of these variants in one quantised form, whatever form is named; each shape once."""
    plain = small.standing_for(name.partition("/")[0] for name in variants)
    return [f"{name}/{form}" for name in plain if "/" not in name]


def stored(names: Iterable[str]) -> dict[str, str]:
    """Of these models the quantised ones, which are all forms, and how each is stored."""
    cases = [small.case(name) for name in names if "/" in name]
    return {case.name: case.stored for case in cases if case.stored}


def dtype(given: str | None, names: Sequence[str], usual: str) -> str:
    """What to compute in where nobody says: of quantised models what their kernels compute in."""
    return given or (DTYPE if stored(names) else usual)


def need_dtype(names: Sequence[str], dtype: str) -> None:
    """Raise `NoToleranceError` for a quantised model in a dtype that its kernels do not compute in."""
    for name, how in stored(names).items():
        known = small.rules()["kernels"].get(how, ())
        if dtype not in known:
            raise NoToleranceError(
                f"{name} cannot be judged in {dtype}.",
                why=f"kernels for its weights compute in {' or '.join(known)}",
                next=f"leave --dtype out, or say --dtype {DTYPE}",
            )


def need_served(names: Sequence[str], engine: str, version: str, target: str, ask: Ask) -> None:
    """Raise `UncomputableError` where a CPU build cannot run the quantised ones of these models.

    `ask` puts findings of the audit to the engine's own source. Nothing is started.
    """
    if target != "cpu":
        return
    flags = processor()
    reasons = {
        name: why
        for name in stored(names)
        if (why := refused(engine, version, small.case(name), flags, ask))
    }
    if reasons:
        raise UncomputableError(
            f"{engine} {version} does not serve {', '.join(reasons)} on this machine's CPU.",
            why="\n        ".join(dict.fromkeys(reasons.values())),
            next="name another form or release; `dspatch conformance --quantised-against` measures what"
            " the stored numbers lose without the engine's kernels for them",
        )


def refused(engine: str, version: str, case: Case, flags: Iterable[str], ask: Ask) -> str:
    """Why a release does not serve a model on a processor with these flags; empty where it may."""
    router = case.config["topk_method"]
    for row in _rows(engine, version, case.stored):
        if router in row.get("routers", (router,)) and _holds(row, set(flags), ask):
            return str(row["why"])
    return ""


def never(engine: str, version: str, stored: str) -> str:
    """Why a release serves no model that is stored so, whatever its router and the processor; empty where it may."""
    rows = _rows(engine, version, stored)
    always = (row for row in rows if not row.keys() & {"cpu", "routers", "finding"})
    return next((str(row["why"]) for row in always), "")


def _rows(engine: str, version: str, stored: str) -> list[Mapping[str, Any]]:
    """What is known to refuse models that are stored so in a release; nothing of what is no release."""
    try:
        own = Version(Version(version).public)
    except InvalidVersion:
        return []
    known = _table().get(engine, ())
    return [row for row in known if stored in row["stored"] and _speaks_of(row, own)]


def _speaks_of(row: Mapping[str, Any], own: Version) -> bool:
    first, end = row.get("from"), row.get("before")
    return (not first or own >= Version(first)) and (not end or own < Version(end))


def _holds(row: Mapping[str, Any], flags: set[str], ask: Ask) -> bool:
    if row.get("cpu") in flags:
        return False
    return "finding" not in row or ask(row["finding"])[0] != "ruled out"


def _table() -> Mapping[str, Any]:
    return tomlfile.load(PACKAGE / "engines" / "quantised.toml", ConformanceError).data


def processor() -> frozenset[str]:
    """What this machine's processor can do, in the kernel's words."""
    text = Path("/proc/cpuinfo").read_text(encoding="ascii", errors="replace")
    return frozenset(
        word for line in text.splitlines() if line.startswith("flags") for word in line.split()
    )
