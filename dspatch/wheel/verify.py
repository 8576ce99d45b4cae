"""Verify that a wheel is what its file name, its record, its pedigree and its base wheel say."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TypeVar

from dspatch.errors import UnsafeArchiveError, WheelError, WheelVerifyError
from dspatch.wheel import checks, installedchecks, lineage
from dspatch.wheel.base import OpenWheel, open_wheel
from dspatch.wheel.fault import Fault
from dspatch.wheel.installed import Installed

Check = Callable[[OpenWheel], Iterable[Fault]]
# In the order of trust: what the later ones read, the earlier ones have checked.
CHECKS: dict[str, Check] = {
    "record": checks.record,
    "identity": checks.identity,
    "requirements": checks.requirements,
    "version": checks.version,
    "pedigree": lineage.pedigree,
}
INSTALLED: dict[str, installedchecks.Check] = {
    "delta": installedchecks.delta,
    "record": installedchecks.record,
    "identity": checks.stated,
    "requirements": checks.requirements,
    "version": checks.version,
    "pedigree": lineage.pedigree,
}
_SHOWN = 10
Wheel = TypeVar("Wheel", OpenWheel, Installed)


@dataclass(frozen=True, kw_only=True)
class CheckResult:
    """One check's name and the faults it found; none means passed."""

    name: str
    faults: tuple[Fault, ...]

    @property
    def passed(self) -> bool:
        """Whether the check found no fault."""
        return not self.faults


@dataclass(frozen=True, kw_only=True)
class Verification:
    """What the checks found in one wheel."""

    wheel: Path
    results: tuple[CheckResult, ...]

    @property
    def passed(self) -> bool:
        """Whether no check found a fault."""
        return all(result.passed for result in self.results)

    @property
    def faults(self) -> tuple[Fault, ...]:
        """All faults, in the checks' order."""
        return tuple(fault for result in self.results for fault in result.faults)

    def as_dict(self) -> dict[str, object]:
        """The verification as `--json` prints it."""
        results = [{**asdict(result), "passed": result.passed} for result in self.results]
        return {"wheel": self.wheel.name, "passed": self.passed, "checks": results}


def verify(wheel: Path, base: Path | None = None) -> Verification:
    """Verify a wheel, with `base` also against its base wheel, and return what was checked.

    Raises `WheelVerifyError` naming members, expected and got when any check finds a fault.
    """
    return _refused(inspect(wheel, base), next="do not install it; build it again from its pin")


def _refused(verification: Verification, *, next: str) -> Verification:
    faults = verification.faults
    if not faults:
        return verification
    lines = [str(fault) for fault in faults[:_SHOWN]]
    if len(faults) > _SHOWN:
        lines.append(f"… and {len(faults) - _SHOWN} more")
    raise WheelVerifyError(
        f"{verification.wheel.name} is not what it says: {len(faults)} faults.",
        why="\n        ".join(lines),
        next=next,
    )


def verify_installed(wheel: Installed, base: Path | None = None) -> Verification:
    """Verify an installation as `verify` does a wheel; without a pedigree only what pip wrote of it.

    Raises `WheelVerifyError` naming files that are changed, missing or extra.
    """
    named = INSTALLED if wheel.patched else {key: INSTALLED[key] for key in ("record", "identity")}
    results = [_run(name, check, wheel) for name, check in named.items()]
    if base is not None:
        with open_wheel(base) as original:
            results.append(_run("base", installedchecks.against(wheel, original), wheel))
    verification = Verification(wheel=wheel.path, results=tuple(results))
    return _refused(
        verification, next="install the wheel anew: pip install --force-reinstall --no-deps"
    )


def inspect(wheel: Path, base: Path | None = None) -> Verification:
    """Run every check and return what each found, faults or not; raises for a missing file only."""
    results: list[CheckResult] = []
    try:
        with open_wheel(wheel) as opened:
            results.append(CheckResult(name="archive", faults=()))
            results += [_run(name, check, opened) for name, check in CHECKS.items()]
            if base is not None:
                with open_wheel(base) as original:
                    results.append(_run("base", lineage.against(original), opened))
    except (WheelError, UnsafeArchiveError) as error:
        results.append(_broken("base" if results else "archive", error))
    return Verification(wheel=wheel, results=tuple(results))


def _run(name: str, check: Callable[[Wheel], Iterable[Fault]], opened: Wheel) -> CheckResult:
    try:
        return CheckResult(name=name, faults=tuple(check(opened)))
    except WheelError as error:
        return _broken(name, error)


def _broken(name: str, error: WheelError | UnsafeArchiveError) -> CheckResult:
    fault = Fault(member=error.what, expected="a readable wheel", got=error.why)
    return CheckResult(name=name, faults=(fault,))
