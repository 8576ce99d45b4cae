"""Whether a base wheel can run on a machine, and which number stands in the way when it cannot."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from email.parser import HeaderParser
from pathlib import Path

from packaging.specifiers import InvalidSpecifier, SpecifierSet

from dspatch.errors import IncompatibleBaseError, WheelError
from dspatch.wheel.base import open_wheel
from dspatch.wheel.elf import Needs, Version, dotted, wheel_needs
from dspatch.wheel.machine import Machine, this_machine
from dspatch.wheel.names import WheelName


def check_base(wheel: Path, machine: Machine | None = None) -> tuple[Needs, ...]:
    """Check that a wheel's tags, its Requires-Python and its compiled objects suit a machine.

    Returns what the objects need. Raises `IncompatibleBaseError` naming what is needed and what is
    there. Tags alone are no proof: some builds need a newer libstdc++ than theirs promise.
    """
    here = machine or this_machine()
    with open_wheel(wheel) as opened:
        text = opened.read_info("METADATA").decode("utf-8", "surrogateescape")
    check_tags(wheel.name, HeaderParser().parsestr(text)["Requires-Python"], here)
    needs = wheel_needs(wheel)
    check_needs(wheel.name, needs, here)
    return needs


def check_tags(filename: str, requires_python: str | None, machine: Machine) -> None:
    """Check what a wheel's file name and Requires-Python say, before anything is downloaded."""
    python = dotted(machine.python)
    try:
        accepted = SpecifierSet(requires_python or "")
    except InvalidSpecifier as error:
        raise WheelError(
            f"{filename} states a malformed Requires-Python.", why=str(error)
        ) from None
    if not accepted.contains(python, prereleases=True):
        _refuse(filename, [f"it requires Python {requires_python}, this is Python {python}"])
    tags = WheelName.parse(filename).tags
    if tags.isdisjoint(machine.supported_tags()):
        stated = ", ".join(sorted(map(str, tags)))
        best = next(iter(machine.platforms), "no known platform")
        _refuse(filename, [f"its tags are {stated}, this is Python {python} on {best}"])


def check_needs(filename: str, needs: Iterable[Needs], machine: Machine) -> None:
    """Check what a wheel's compiled objects need; raises `IncompatibleBaseError` with all of it."""
    if reasons := [reason for need in needs for reason in _reasons(need, machine)]:
        _refuse(filename, reasons)


def _reasons(need: Needs, machine: Machine) -> Iterator[str]:
    if need.machine != machine.arch:
        yield f"{need.path} is for {need.machine}, this machine is {machine.arch}"
    yield from _too_new(need.path, "GLIBC", need.glibc, machine.glibc)
    where = f" ({machine.libstdcxx})" if machine.libstdcxx else ""
    yield from _too_new(need.path, "GLIBCXX", need.glibcxx, machine.glibcxx, where)
    yield from _too_new(need.path, "CXXABI", need.cxxabi, machine.cxxabi, where)


def _too_new(
    path: str, family: str, needed: Version | None, there: Version | None, where: str = ""
) -> Iterator[str]:
    if needed is not None and (there is None or needed > there):
        has = f"{family}_{dotted(there)}" if there else f"no {family}"
        yield f"{path} needs {family}_{dotted(needed)}, this machine has {has}{where}"


def _refuse(filename: str, reasons: list[str]) -> None:
    raise IncompatibleBaseError(
        f"{filename} cannot run on this machine.",
        why="\n        ".join(reasons),
        next="pin another base wheel with `dspatch pin add`, or use a newer Python or system",
    )
