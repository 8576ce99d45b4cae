"""`dspatch bisect`: the release from which a check of conformance passes, or no longer does."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from dspatch import paths
from dspatch.bisect import probe, releases
from dspatch.bisect.probe import Asked, Tried
from dspatch.bisect.releases import Candidate
from dspatch.bisect.search import Boundary, Unchanged, Verdict, search
from dspatch.console import Console
from dspatch.errors import BisectError
from dspatch.job import locked, prepare_work
from dspatch.pins import lookup


@dataclass(frozen=True, kw_only=True)
class Ends:
    """Releases of which the user says that the check passes, or fails; both are tried, too."""

    good: str | None = None
    bad: str | None = None


@dataclass(frozen=True, kw_only=True)
class Bisected:
    """The change that was found, or none, and every release that was tried, oldest first."""

    asked: Asked
    found: Boundary | Unchanged
    tried: tuple[Tried, ...]
    among: tuple[str, ...]


def run(asked: Asked, ends: Ends, console: Console) -> Bisected:
    """Search the releases with CPU wheels for a change; what each gave is kept, also when it is stopped.

    Raises `BisectError` for a check or a release that there is none of, and for an end that turns
    out other than it was said to be; `UnknownVariantError`; `DiskFullError` before an environment
    that would not fit.
    """
    from dspatch.conformance import oracle, small

    _need_check(asked)
    case = small.case(asked.model)
    among = releases.between(releases.candidates(asked.engine), ends.good, ends.bad)
    if asked.cached_only:
        among = [each for each in among if not each.lacks and probe.at_hand(each, asked)]
    prepare_work()
    folder = paths.work() / "bisect"
    with locked(folder, "a bisection"), console.working("bisect") as step:
        # What the oracle lacks is no release's fault, and would be told as that of each.
        oracle.ensure(step).golden([case], step)
        return _searched(
            asked, ends, among, console, lambda one: probe.probe(one, asked, folder, step)
        )


def _searched(
    asked: Asked,
    ends: Ends,
    among: list[Candidate],
    console: Console,
    probing: Callable[[Candidate], Tried],
) -> Bisected:
    known = {each.version: each for each in among}
    tried: dict[str, Tried] = {}

    def ask(version: str) -> Verdict:
        tried[version] = one = probing(known[version])
        kept = ", kept from before" if one.kept else ""
        console.note(f"{version}: {one.verdict}{kept} {one.why.splitlines()[0] if one.why else ''}")
        _need_as_said(ends, one)
        return one.verdict

    found = search(list(known), ask)
    return Bisected(
        asked=asked,
        found=found,
        tried=tuple(tried[version] for version in known if version in tried),
        among=tuple(known),
    )


def _need_check(asked: Asked) -> None:
    from dspatch.conformance import checks

    names = ("engine.start", *checks.CHECKS)
    if asked.check not in names:
        raise BisectError(
            f"there is no check {asked.check}.",
            why=f"there are {', '.join(names)}",
            next="name one of these with --check",
        )


def _need_as_said(ends: Ends, one: Tried) -> None:
    for end, said in ((ends.good, "pass"), (ends.bad, "fail")):
        if end is not None and lookup.same(end, one.version) and one.verdict != said:
            what = {"pass": "passes", "fail": "fails", "skip": "cannot be run"}[one.verdict]
            raise BisectError(
                f"{one.version} was given as {'good' if said == 'pass' else 'bad'}, and {what}.",
                why=one.why,
                next="give other ends, or none, to have both looked for",
            )


def check(done: Bisected) -> None:
    """Raise `BisectError` where no change was found."""
    if isinstance(done.found, Boundary):
        return
    if done.found.verdict is None:
        raise BisectError(
            "none of the releases could be run.",
            why=done.tried[-1].why if done.tried else "there are none",
            next="give releases whose wheels this machine can run: --good, --bad",
        )
    says = {"pass": "passes", "fail": "fails"}[done.found.verdict]
    raise BisectError(
        f"{done.asked.check} {says} on {done.found.first} and on {done.found.last}.",
        why="a change and its return between them would not be seen",
        next="name two releases that differ: --good, --bad",
    )
