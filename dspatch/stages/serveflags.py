"""`dspatch serve flags` and `metrics`: what a user wrote, held against what a source has."""

from __future__ import annotations

import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING

from dspatch.audit.place import Place, opened
from dspatch.audit.source import Source
from dspatch.carry.remote.ranges import Traffic
from dspatch.errors import ServeFlagsError, ServeWordsError
from dspatch.serve import (
    answers,
    commandline,
    engines,
    environment,
    flags,
    knowledge,
    known,
    metrics,
    options,
    queries,
)
from dspatch.serve.commandline import Line
from dspatch.serve.engines import Facts
from dspatch.serve.knowledge import Remark
from dspatch.serve.verdict import FAILING, Judge, Verdict

if TYPE_CHECKING:
    from dspatch.console import Console


@dataclass(frozen=True, kw_only=True)
class Checked:
    """The verdicts on what was asked, of which source, and what reading it cost."""

    engine: str
    version: str | None
    kind: str
    origin: str
    subject: str
    verdicts: tuple[Verdict, ...]
    remarks: tuple[Remark, ...]
    notes: tuple[str, ...]
    bytes: int
    requests: int
    seconds: float

    @property
    def failing(self) -> tuple[Verdict, ...]:
        """What is unknown, wrong, or could not be decided."""
        return tuple(each for each in self.verdicts if each.state in FAILING)


@dataclass
class _Work:
    """A source that is open, what is known of its engine, and notes that gather."""

    source: Source
    facts: Facts
    judge: Judge
    notes: list[str] = field(default_factory=list)
    remarks: tuple[Remark, ...] = ()


def of_command(place: Place, words: Sequence[str], console: Console) -> Checked:
    """Hold a command line, with the variables in front of it, against a source.

    Raises `ServeWordsError` for words that name no server, and the errors of reading a source.
    """
    start, traffic = time.monotonic(), Traffic()
    with _work(place, traffic, console) as work:
        line = commandline.parse(words, work.facts)
        verdicts = [*_front(line), *_variables(work, line), *_arguments(work, line)]
        work.remarks = knowledge.remarks(work.source, commandline.split(words))
    server = line.server.name if line.server is not None and not line.program else ""
    subject = " ".join(line.program) or server
    return _checked(work, subject, verdicts, traffic, start)


def of_files(place: Place, paths: Sequence[Path], console: Console) -> Checked:
    """Hold the metrics that dashboards and alert rules ask for against those that a source exports."""
    start, traffic = time.monotonic(), Traffic()
    with _work(place, traffic, console) as work:
        asked = queries.of_files(paths, work.facts)
        exported = metrics.read(work.source, work.facts)
        verdicts = list(queries.verdicts(asked, exported, work.facts, work.judge))
        work.notes += [f"could not be read: {each}" for each in exported.unread]
        work.remarks = knowledge.remarks(work.source, [each.name for each in asked])
    return _checked(work, ", ".join(str(each) for each in paths), verdicts, traffic, start)


def check(done: Checked) -> None:
    """Raise `ServeFlagsError` when something is unknown, wrong, or could not be decided."""
    failing = done.failing
    if failing:
        raise ServeFlagsError(
            f"{len(failing)} of {len(done.verdicts)} are not as {done.engine}"
            f" {done.version or 'of this source'} has them.",
            why=", ".join(dict.fromkeys(f"{each.word} ({each.state})" for each in failing)),
            next="the table says what to use instead; --json has it for programs",
        )


@contextmanager
def _work(place: Place, traffic: Traffic, console: Console) -> Iterator[_Work]:
    notes: list[str] = []
    with console.working("reading the source"), opened(place, traffic, notes) as source:
        if source.kind == "record":
            raise ServeWordsError(
                f"the source of {source.engine} {source.version} cannot be read now.",
                why="; ".join(notes),
                next="ask again with a network, or name an installation with --env",
            )
        judge = Judge(
            known=known.load(source.engine), answers=answers.load(source.engine),
            version=source.version,
        )  # fmt: skip
        yield _Work(source, engines.facts(source.engine), judge, notes)


def _front(line: Line) -> Iterator[Verdict]:
    if line.launcher:
        yield Verdict(
            word=" ".join(line.launcher), state="unchecked", kind="launcher",
            say="in front of the server; not held against anything",
        )  # fmt: skip


def _variables(work: _Work, line: Line) -> Iterator[Verdict]:
    names = [name for name, _ in line.assignments]
    if names:
        found = environment.read(work.source, work.facts, names)
        work.notes += [f"could not be read: {each}" for each in found.unread]
        yield from flags.of_variables(line, found, work.facts, work.judge)


def _arguments(work: _Work, line: Line) -> Iterator[Verdict]:
    if line.server is None:
        raise ServeWordsError(
            f"no server of {work.facts.engine} is named in these words.",
            why=f"those known: {', '.join(_commands(work.facts))}",
            next="write the whole command behind --, or its options alone",
        )
    taken = options.read(work.source, work.facts, line.server)
    if taken is None:
        yield work.judge.missing(
            " ".join(line.program) or line.server.name, line.server.name, "commands", (), whole=True,
            what="command",
        )  # fmt: skip
        return
    if not line.program:
        work.notes.append(f"these are taken for options of `{line.server.name}`")
    work.notes += [f"{each.module}, line {each.line}: {each.why}" for each in taken.holes]
    work.notes += [f"could not be parsed: {each}" for each in taken.unparsed]
    if "--config" in line.arguments:
        work.notes.append("options in the file of --config are not checked")
    yield from flags.of_arguments(line, taken, work.judge)


def _commands(facts: Facts) -> Iterator[str]:
    for server in facts.servers:
        front = facts.programs[0] if server.command else "python -m"
        yield f"{front} {server.name}"


def _checked(
    work: _Work, subject: str, verdicts: Sequence[Verdict], traffic: Traffic, start: float
) -> Checked:
    return Checked(
        engine=work.facts.engine,
        version=work.source.version,
        kind=work.source.kind,
        origin=work.source.origin,
        subject=subject,
        verdicts=tuple(verdicts),
        remarks=work.remarks,
        notes=tuple(work.notes),
        bytes=traffic.bytes,
        requests=traffic.requests,
        seconds=time.monotonic() - start,
    )
