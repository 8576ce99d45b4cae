"""Which base wheel of a pin this machine can use, and what the others ask for that it lacks."""

from __future__ import annotations

from collections.abc import Iterator
from functools import cache

from packaging import tags
from packaging.utils import InvalidWheelFilename, parse_wheel_filename

from dspatch.errors import IncompatibleBaseError, PinError
from dspatch.pins.types import Base, Pin
from dspatch.wheel.elf import Version
from dspatch.wheel.machine import Machine
from dspatch.wheel.machine import this_machine as _this_machine


@cache
def this_machine() -> Machine:
    """What the running Python and its system offer."""
    return _this_machine()


def base_for(pin: Pin, target: str, machine: Machine | None = None) -> Base:
    """The pin's base wheel of a target that suits the machine best.

    Raises `IncompatibleBaseError` when there is none, with what each lacks.
    """
    here = machine or this_machine()
    bases = [base for base in pin.bases if base.target == target]
    if fitting := [base for base in bases if not misfits(base, here)]:
        return min(fitting, key=lambda base: rank(base.filename, here))
    if not bases:
        raise IncompatibleBaseError(
            f"{pin.engine} {pin.rev} has no base wheel for the target {target}.",
            why=f"the pin has {', '.join(pin.targets) or 'no target'}",
            next=_get_one(f"--engine {pin.engine} --rev {pin.rev} --target {target}", pin, target),
        )
    raise IncompatibleBaseError(
        f"No base wheel of {pin.engine} {pin.rev} for {target} runs on this machine.",
        why="\n        ".join(f"{base.filename}: {misfits(base, here)[0]}" for base in bases),
        next="use a Python or a machine that fits, or another revision",
    )


def _get_one(words: str, pin: Pin, target: str) -> str:
    """How to get a base wheel, or what stands for one where dspatch knows how to compile the engine."""
    command = f"dspatch pin add {words}"
    if not compilable(pin.engine, target):
        return command
    compiled = f"dspatch apply {words} && dspatch build-wheel --mode source"
    return f"{command}; where none is published, compile one: {compiled}"


def compilable(engine: str, target: str) -> bool:
    """Whether dspatch knows how to compile an engine for a target."""
    from dspatch.wheel.source.recipe import recipe

    try:
        recipe(engine, target)
    except PinError:
        return False
    return True


def fits(filename: str, machine: Machine) -> bool:
    """Whether a file is a wheel whose tags the machine takes."""
    try:
        return not parse_wheel_filename(filename)[3].isdisjoint(machine.supported_tags())
    except InvalidWheelFilename:
        return False


def misfits(base: Base, machine: Machine | None = None) -> tuple[str, ...]:
    """What of a base wheel's needs the machine lacks; nothing when it can run."""
    return tuple(_misfits(base, machine or this_machine()))


def _misfits(base: Base, machine: Machine) -> Iterator[str]:
    from dspatch.wheel.compatible import check_tags

    try:
        check_tags(base.filename, base.requires_python, machine)
    except IncompatibleBaseError as error:
        yield error.why
    yield from _too_new("GLIBC", base.glibc, machine.glibc)
    yield from _too_new("GLIBCXX", base.glibcxx, machine.glibcxx)


def _too_new(family: str, needed: str | None, there: Version | None) -> Iterator[str]:
    if needed is None or (there is not None and tuple(map(int, needed.split("."))) <= there):
        return
    has = f"{family}_{'.'.join(map(str, there))}" if there else f"no {family}"
    yield f"it needs {family}_{needed}, this machine has {has}"


def rank(filename: str, machine: Machine) -> int:
    """How well a wheel of that name suits a machine, the best first; pip takes the same order."""
    of_wheel = parse_wheel_filename(filename)[3]
    ordered = [
        *tags.cpython_tags(machine.python[:2], platforms=machine.platforms),
        *tags.compatible_tags(machine.python[:2], platforms=machine.platforms),
    ]
    return next((at for at, tag in enumerate(ordered) if tag in of_wheel), len(ordered))
