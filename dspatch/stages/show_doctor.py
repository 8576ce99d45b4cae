"""What the doctor found, as text and as the object that --json prints; secrets of the log left out."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

import click

from dspatch.serve.doctor.cause import filled
from dspatch.serve.doctor.redact import redacted

if TYPE_CHECKING:
    from dspatch.console import Console
    from dspatch.serve.doctor.diagnose import Diagnosis, Dropped
    from dspatch.serve.doctor.facts import Facts
    from dspatch.serve.doctor.failure import Failure
    from dspatch.stages.doctor import Examined

_WIDTH = 8  # of the longest certainty
_LINE = 240  # characters of a log's line
_COLOURS = {"certain": "red", "likely": "yellow", "possible": "cyan"}
_SHOWN = 3  # rows of one kind; --json has all


def examined(done: Examined, console: Console) -> None:
    """The causes, the likeliest first, then what was recognised, and what to try where nothing is known."""
    console.say(subject(done))
    for fault in done.faults:
        console.say("")
        console.say(f"{_mark('certain')}  {fault.title}")
        console.say(f"{'':{_WIDTH}}  checkpoint  {fault.evidence}")
    for found in done.mains:
        _block(found, console)
    if not done.mains and not done.faults:
        _nothing(done, console)
    for found in [each for each in done.causes if each not in done.mains][:_SHOWN]:
        console.say("")
        console.say(f"follows from it: {found.cause.title} ({_where(found)})")
    for each in done.dropped[:_SHOWN]:
        console.say("")
        console.say(f"ruled out: {each.cause.id} (line {each.match.hit.number}): {each.why}")
    console.say("")
    for row in machine(done.facts):
        console.note(row)
    for note in done.notes:
        console.note(f"note: {note}")
    console.result(as_dict(done))


def subject(done: Examined) -> str:
    """What was looked at, and what was recognised in it."""
    if done.reading is None:
        env = done.facts.environment
        return (
            f"this machine{f' and {env.project} {env.version} of {env.python}' if env else ''}:"
            + (" nothing known stands in the way" if not done.causes else "")
        )
    said = done.reading.recognised
    told = [f"{done.engine or 'no engine recognised'} {done.version or ''}".strip()]
    model = said.facts.get("model") or said.facts.get("architecture")
    told += [model] if model else []
    told += [f"on {done.target}"] if done.target else []
    cut = f"; it ends early: {done.reading.cut}" if done.reading.cut else ""
    return redacted(f"{done.reading.name}: {', '.join(told)}; {done.reading.lines:,} lines{cut}")


def _block(found: Diagnosis, console: Console) -> None:
    console.say("")
    console.say(f"{_mark(found.certainty)}  {found.cause.title}")
    for label, text in _rows(found):
        console.say(f"{'':{_WIDTH}}  {label:<9} {text}")


def _mark(certainty: str) -> str:
    return click.style(certainty.ljust(_WIDTH), fg=_COLOURS[certainty], bold=True)


def _rows(found: Diagnosis) -> Iterator[tuple[str, str]]:
    cause = found.cause
    yield "id", cause.id
    if found.match is not None:
        yield _where(found), shown(found.match.hit.text)
    yield "why", cause.what
    if found.machine:
        yield "machine", found.machine
    if found.command:
        yield "patch", f"{cause.finding.fix if cause.finding else ''}: {found.command}"
    elif cause.finding is not None and cause.finding.fix:
        yield "patch", f"{cause.finding.fix}" + (f", but {found.unfit}" if found.unfit else "")
    if cause.finding is not None:
        yield "good from", found.first_good or "no release yet"
    if cause.fix:
        yield "instead" if cause.finding else "fix", _filled(cause.fix, found)
    yield "confirm", _filled(cause.confirm, found)
    for link in cause.references[:_SHOWN]:
        yield "see", link


def _filled(text: str, found: Diagnosis) -> str:
    return redacted(filled(text, found.groups))


def _where(found: Diagnosis) -> str:
    assert found.match is not None
    also = len(found.match.also)
    return f"line {found.match.hit.number}" + (f" (+{also})" if also else "")


def shown(text: str) -> str:
    """A line of a log as it may be shown: secrets hidden, long ones cut."""
    safe = redacted(text.strip())
    return safe if len(safe) <= _LINE else f"{safe[: _LINE - 1]}…"


def _nothing(done: Examined, console: Console) -> None:
    """What can be said of a log that matches nothing."""
    if done.reading is None:
        return
    error = done.reading.recognised.error
    console.say("")
    if error is None:
        console.say("nothing in it is known to be wrong, and it shows no failure")
        return
    console.say("no known cause matches")
    first = done.reading.recognised.first
    if first is not None and first.number != error.number:
        console.say(f"  first error  line {first.number}: {shown(first.text)}")
    console.say(f"  last error   line {error.number}: {shown(error.text)}")
    for step in next_steps(done):
        console.say(f"  try next     {step}")


def next_steps(done: Examined) -> Iterator[str]:
    """What to try where no cause is known."""
    if done.engine and done.version:
        yield f"dspatch audit --engine {done.engine} --rev v{done.version}" + (
            f" --variant {done.models[0]}" if len(done.models) == 1 else ""
        )
    elif done.engine is None:
        yield "name the engine and its release: --engine vllm --rev v0.27.1, or --env PYTHON"
    if done.checkpoint is None:
        yield "--model FOLDER holds the checkpoint's config.json and index against the release"
    yield "run it again with VLLM_LOGGING_LEVEL=DEBUG (LMDeploy: --log-level DEBUG) and keep stderr: 2>&1"


def machine(facts: Facts) -> Iterator[str]:
    """The machine's facts, a line each."""
    for gpu in facts.gpus[:_SHOWN]:
        yield f"gpu: {gpu.name}, compute capability {gpu.capability}, {gpu.memory} MiB"
    driver = f"driver {facts.driver}" if facts.driver else "no NVIDIA driver"
    yield f"machine: {driver}, glibc {facts.glibc}, GLIBCXX {facts.glibcxx}" + (
        f", /dev/shm {facts.shm / 2**30:.1f} GiB" if facts.shm else ""
    )
    env = facts.environment
    if env is not None:
        others = ", ".join(f"{name} {version}" for name, version in env.versions.items())
        yield f"environment: {env.project} {env.version}, {others}"
        if env.patches:
            yield f"built by dspatch with: {', '.join(env.patches)}"


def as_dict(done: Examined) -> dict[str, Any]:
    """All of it as an object."""
    read = done.reading
    said = read.recognised if read else None
    return {
        "log": read.name if read else None,
        "lines": read.lines if read else 0,
        "bytes": read.bytes if read else 0,
        "cut": read.cut if read else "",
        "engine": done.engine,
        "version": done.version,
        "target": done.target,
        "models": list(done.models),
        "recognised": {name: redacted(text) for name, text in said.facts.items()} if said else {},
        "first_error": _failure(said.first if said else None),
        "error": _failure(said.error if said else None),
        "causes": [_cause_dict(each) for each in done.causes],
        "ruled_out": [_dropped_dict(each) for each in done.dropped],
        "checkpoint": [vars(fault) for fault in done.faults],
        "next": list(next_steps(done)) if read and not done.mains else [],
        "machine": _facts_dict(done.facts),
        "notes": list(done.notes),
    }


def _failure(failure: Failure | None) -> dict[str, Any] | None:
    return {"line": failure.number, "text": shown(failure.text)} if failure else None


def _cause_dict(found: Diagnosis) -> dict[str, Any]:
    match, cause = found.match, found.cause
    return {
        "id": cause.id,
        "title": cause.title,
        "certainty": found.certainty,
        "part": cause.part,
        "line": match.hit.number if match else None,
        "text": shown(match.hit.text) if match else "",
        "also": list(match.also) if match else [],
        "what": cause.what,
        "machine": found.machine,
        "finding": cause.finding is not None,
        "first_good": found.first_good,
        "patch": cause.finding.fix if cause.finding else None,
        "command": found.command,
        "unfit": found.unfit,
        "fix": _filled(cause.fix, found),
        "confirm": _filled(cause.confirm, found),
        "references": list(cause.references),
    }


def _dropped_dict(each: Dropped) -> dict[str, Any]:
    return {"id": each.cause.id, "line": each.match.hit.number, "why": each.why}


def _facts_dict(facts: Facts) -> dict[str, Any]:
    env = facts.environment
    return {
        **{
            name: value
            for name, value in vars(facts).items()
            if name not in ("environment", "gpus")
        },
        "cpu": list(facts.cpu),
        "gpus": [vars(gpu) for gpu in facts.gpus],
        "environment": {**vars(env), "patches": list(env.patches)} if env else None,
    }
