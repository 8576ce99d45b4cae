"""`dspatch bench soak`: whether a server grows under steady load, and answers late as it did early."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from contextlib import closing
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from dspatch import paths
from dspatch.bench import slope, soaking
from dspatch.bench.slope import Slope
from dspatch.bench.soaking import Plan, Soaked
from dspatch.conformance.api import contact
from dspatch.conformance.api.wire import Wire
from dspatch.console import Console
from dspatch.errors import LeakError, ServerError
from dspatch.job import locked, prepare_work
from dspatch.stages import prove_any, prove_api
from dspatch.stages.prove_any import Subject

DAY = 86400.0
MOST = float(1 << 30)  # bytes that a day may add, at the lower bound
MORE_REPEATED = 0.1  # of an answer's runs of words, late over early
NO_LIMIT = 10**9


@dataclass(frozen=True, kw_only=True)
class Result:
    """What was seen, the lines through it, what is wrong with it, and the files that hold it."""

    name: str
    plan: Plan
    soaked: Soaked
    memory: Slope | None
    card: Slope | None
    blocks: Slope | None
    wrong: tuple[str, ...]
    files: tuple[Path, ...]


def of_subject(subject: Subject, model: str, plan: Plan, console: Console) -> Result:
    """Start an engine's own server on loopback with a small model, and soak that."""
    prove_any.need_machine(subject)
    service = prove_api.service_of(subject.engine)
    prepare_work()
    folder = _folder()
    pids: list[int] = []
    with locked(folder, "a soak"), console.working("soak") as step:
        running = prove_api.running(
            subject, service, model, folder, prove_api.Limits(), step, pids.append
        )
        with running as (url, _), closing(Wire(base=url, limit=NO_LIMIT, timeout=120.0)) as wire:
            found = soaking.soak(wire, prove_api.SERVED_AS, pids[0], plan, step)
    return written(subject.name, plan, found, folder)


def at_url(url: str, pid: int, plan: Plan, console: Console) -> Result:
    """Soak a server of this machine whose process is known. Raises `ServerError` for one elsewhere."""
    from dspatch.conformance.api.wire import on_loopback

    base = contact.address(url)
    if not on_loopback(base):
        raise ServerError(
            f"{base} is not on this machine.",
            why="its memory is read from /proc, and a soak is no load for strangers",
            next="run dspatch where the server runs",
        )
    prepare_work()
    folder = _folder()
    with (
        locked(folder, "a soak"),
        console.working("soak") as step,
        closing(Wire(base=base, limit=NO_LIMIT, timeout=120.0)) as wire,
    ):
        server = contact.meet(wire, None)
        found = soaking.soak(wire, server.model, pid, plan, step)
    return written(base, plan, found, folder)


def written(name: str, plan: Plan, found: Soaked, folder: Path) -> Result:
    """Judge what was seen, and write it down."""
    from dspatch.bench import page
    from dspatch.stages import show_soak

    memory = _line((s.seconds, s.memory) for s in found.samples)
    card = _line((s.seconds, s.card) for s in found.samples)
    done = Result(
        name=name,
        plan=plan,
        soaked=found,
        memory=memory,
        card=card,
        blocks=_line((s.seconds, s.blocks) for s in found.samples),
        wrong=tuple(_wrong(found, memory, card)),
        files=(folder / "soak.json", folder / "soak.html"),
    )
    page.write(done.files, as_dict(done), show_soak.page_of(done))
    return done


def _line(points: Iterable[tuple[float, float | None]]) -> Slope | None:
    """The line through what was told, once it has settled."""
    told = [(seconds, float(value)) for seconds, value in points if value is not None]
    return slope.fit(slope.settled(told))


def _wrong(found: Soaked, memory: Slope | None, card: Slope | None) -> Iterator[str]:
    if found.died:
        yield f"the server died after {found.requests} requests"
    if found.errors:
        yield f"{found.errors} of {found.requests} requests failed"
    if memory is None:
        yield f"{len(found.samples)} samples are too few for a slope; soak longer"
    elif memory.low * DAY > MOST:
        yield f"memory grows by at least {memory.low * DAY / MOST:.3g} GiB a day"
    if card is not None and card.low * DAY > MOST:
        yield f"GPU memory grows by at least {card.low * DAY / MOST:.3g} GiB a day"
    settled = slope.settled([(s.seconds, float(s.files)) for s in found.samples])
    counts = [count for _, count in settled]
    if len(counts) > 3 and counts == sorted(counts) and counts[-1] > counts[0] + 3:
        yield f"open files grow, from {counts[0]:.0f} to {counts[-1]:.0f}"
    held = [s.blocks for s in found.samples[-3:] if s.blocks]
    if len(held) == 3:
        yield f"{held[-1]:.2%} of the KV blocks are held at rest"
    yield from _drifted(found)


def _drifted(found: Soaked) -> Iterator[str]:
    pairs = list(zip(found.early, found.late, strict=False))
    changed = sum(early != late for early, late in pairs)
    if changed:
        yield f"{changed} of {len(pairs)} greedy answers are not what they were at the beginning"
    early, late = (
        max(map(soaking.repeated, each), default=0.0) for each in (found.early, found.late)
    )
    if late > early + MORE_REPEATED:
        yield f"late answers repeat themselves: {late:.0%} of their words' runs, {early:.0%} before"


def undecided(done: Result) -> str:
    """What the soak was too short to rule out, in words; empty when memory is bounded."""
    lines = {"growth": done.memory, "growth of GPU memory": done.card}
    told = [
        f"{name} of up to {line.high * DAY / MOST:,.0f} GiB a day is not ruled out"
        for name, line in lines.items()
        if line is not None and line.low * DAY <= MOST < line.high * DAY
    ]
    return f"{', '.join(told)}: soak longer" if told else ""


def check(done: Result) -> None:
    """Raise `LeakError` when anything is wrong."""
    if done.wrong:
        raise LeakError(
            f"{done.name}: {done.wrong[0]}.",
            why="\n        ".join(done.wrong[1:]) or f"{len(done.soaked.samples)} samples",
            next=f"run it again twice as long to be sure; see {done.files[1]}",
        )


def as_dict(done: Result) -> dict[str, Any]:
    """The whole result as JSON values."""
    lines = {"memory": done.memory, "card": done.card, "blocks": done.blocks}
    return {
        "server": done.name,
        "plan": asdict(done.plan),
        **asdict(done.soaked),
        "slopes": {name: asdict(one) if one else None for name, one in lines.items()},
        "wrong": list(done.wrong),
        "undecided": undecided(done),
    }


def _folder() -> Path:
    return paths.work() / "bench" / "soak"
