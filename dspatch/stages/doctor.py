"""`dspatch serve doctor`: a log, and the machine it comes from, to causes and what helps."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from dspatch import series, variants
from dspatch.audit import checkpoint as checkpoints
from dspatch.audit.cards import card
from dspatch.audit.checkpoint import Checkpoint, Fault
from dspatch.audit.fixes import Fixes
from dspatch.audit.place import Place, opened
from dspatch.audit.select import Model, User
from dspatch.carry.remote.ranges import Traffic
from dspatch.errors import (
    CheckpointError,
    DoctorError,
    DspatchError,
    UnknownCauseError,
    UnknownVariantError,
)
from dspatch.serve.doctor import cause as causes
from dspatch.serve.doctor import diagnose, facts, installed, lines, reading
from dspatch.serve.doctor.diagnose import Diagnosis, Dropped, Stated
from dspatch.serve.doctor.facts import Facts
from dspatch.serve.doctor.reading import Reading
from dspatch.serve.doctor.recognise import Recognised
from dspatch.variants import Variant

if TYPE_CHECKING:
    from dspatch.console import Console


@dataclass(frozen=True, kw_only=True)
class Asked:
    """What a user says: a log (a path, `-`, or none), and what they know beside it."""

    log: str | None = None
    engine: str | None = None
    rev: str | None = None
    env: str | None = None
    model: str | None = None


@dataclass(frozen=True, kw_only=True)
class Examined:
    """What came of it: causes, the likeliest first, those ruled out, and what is known of all around."""

    causes: tuple[Diagnosis, ...]
    dropped: tuple[Dropped, ...]
    facts: Facts
    engine: str | None
    version: str | None
    target: str | None
    models: tuple[str, ...]
    reading: Reading | None = None
    checkpoint: Checkpoint | None = None
    notes: tuple[str, ...] = ()

    @property
    def mains(self) -> tuple[Diagnosis, ...]:
        """The causes that follow from no other."""
        return tuple(each for each in self.causes if each.cause.part != "symptom")

    @property
    def faults(self) -> tuple[Fault, ...]:
        """What is wrong with the checkpoint itself."""
        return self.checkpoint.faults if self.checkpoint else ()


def run(asked: Asked, console: Console) -> Examined:
    """Examine a log and the machine.

    Raises `LogError`, `EmptyLogError`, `EngineEnvironmentError`, `CheckpointError` for a folder without
    a config.json, `UnknownEngineError`, and `PatchFormatError` for malformed knowledge.
    """
    notes: list[str] = []
    env = installed.look(asked.env, asked.engine) if asked.env else None
    here = facts.gather(env)
    known = causes.load_all()
    read = _read(asked.log, known, console) if asked.log is not None else None
    said = read.recognised if read else Recognised()
    checkpoint = _checkpoint(asked.model, notes)
    engine = asked.engine or said.engine or (env.engine if env else None)
    version = _version(asked, said, env.version if env else None, notes)
    user = _user(said, checkpoint)
    everyone = tuple(Model(variant=each) for each in variants.table().values())
    models = user.models or everyone
    stated = Stated(engine=engine, version=version, user=replace(user, models=models), facts=here)
    found, dropped = diagnose.of_log(read, stated) if read else ((), ())
    if read is None:
        found = diagnose.of_machine(known, here)
    done = Examined(
        causes=found,
        dropped=dropped,
        facts=here,
        engine=engine,
        version=version,
        target=user.place,
        models=tuple(each.variant.name for each in user.models),
        reading=read,
        checkpoint=checkpoint,
    )
    with console.working("looking for what helps"):
        return replace(
            done, causes=tuple(_with_fixes(done, asked, models, notes)), notes=tuple(notes)
        )


def _read(given: str, known: Sequence[causes.Cause], console: Console) -> Reading:
    with lines.opened(given) as log, console.progress(f"reading {log.name}") as progress:
        return reading.read(log, known, lambda done: progress(done, None))


def _version(asked: Asked, said: Recognised, installed: str | None, notes: list[str]) -> str | None:
    """The release: as named, as the log says, or as installed."""
    if asked.rev:
        return asked.rev.removeprefix("v")
    own = installed.split("+")[0] if installed else None
    if said.version and own and said.version != own:
        notes.append(f"the log is of {said.version}, and {own} is installed: the log's counts")
    return said.version or own


def _checkpoint(model: str | None, notes: list[str]) -> Checkpoint | None:
    """The checkpoint; one that is not DeepSeek's says nothing more, which is no reason to stop."""
    if model is None:
        return None
    try:
        return checkpoints.load(model)
    except CheckpointError as error:
        if not error.foreign:
            raise
        notes.append(f"{error.what.rstrip('.')}: {error.why}")
        return None


def _user(said: Recognised, checkpoint: Checkpoint | None) -> User:
    """Who asks: the checkpoint's model, or the one that the log names; none means any."""
    if checkpoint is not None:
        models: tuple[Model, ...] = (Model(variant=checkpoint.variant, config=checkpoint.config),)
    else:
        named = _variant(said)
        models = (Model(variant=named),) if named else ()
    return User(
        models=models, target=said.target, card=card("cpu") if said.target == "cpu" else None
    )


def _variant(said: Recognised) -> Variant | None:
    """The published model that a log names; a path that ends as one is named counts, too."""
    name = said.facts.get("model", "").rstrip("/").rsplit("/", 1)[-1]
    try:
        return variants.variant(name) if name else None
    except UnknownVariantError:
        return None


def _with_fixes(
    done: Examined, asked: Asked, models: Sequence[Model], notes: list[str]
) -> Iterable[Diagnosis]:
    """The diagnoses, those that a patch of dspatch fixes with the command that brings it."""
    wanted = {each.cause.finding.fix for each in done.causes if each.cause.finding}
    names = frozenset(name for name in wanted if name)
    if not names or done.version is None or done.engine is None:
        return done.causes
    place = Place(
        engine=done.engine,
        rev=None if asked.env else f"v{done.version}",
        env=asked.env,
        wanted=done.models,
    )
    served = [model.variant for model in models]
    try:
        with opened(place, Traffic(), notes) as source:
            fixes = Fixes(
                series.layered(done.engine), source, served, place.words(source, None), names
            )
            return [_fixed(each, fixes, done) for each in done.causes]
    except DspatchError as error:
        notes.append(f"whether a patch applies could not be tried: {error.what}")
        return done.causes


def _fixed(found: Diagnosis, fixes: Fixes, done: Examined) -> Diagnosis:
    finding = found.cause.finding
    if finding is None or finding.fix is None:
        return found
    fix = fixes.fix(
        finding.fix, done.target if done.target in series.TARGETS else None, done.models
    )
    return replace(found, command=fix.command, unfit=fix.unfit)


def check(done: Examined) -> None:
    """Raise `DoctorError` when there are causes, `UnknownCauseError` for a failure that none explains."""
    told = [each.cause.id for each in done.mains] + [fault.title for fault in done.faults]
    if told:
        raise DoctorError(
            "A cause was found." if len(told) == 1 else f"{len(told)} causes were found.",
            why=", ".join(told),
            next="mend the first one first; the others may follow from it",
        )
    error = done.reading.recognised.error if done.reading else None
    if error is not None:
        raise UnknownCauseError(
            "The log shows a failure that is not known.",
            why=f"the last one stands in line {error.number}",
            next="see what to try next, above",
        )
