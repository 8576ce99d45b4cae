"""The faults of a series, patch by patch, and the object that --json prints."""

from __future__ import annotations

from dataclasses import asdict
from typing import TYPE_CHECKING

from dspatch.stages.lint import check
from dspatch.stages.show import relative

if TYPE_CHECKING:
    from dspatch.carry.lint.lint import Fault
    from dspatch.console import Console
    from dspatch.stages.lint import Linted


def linted(done: Linted, console: Console) -> None:
    """Every fault with what to do about it, then the error that they amount to."""
    for path in done.written:
        console.say(f"written: {relative(path)}")
    for fault in done.faults:
        _fault(fault, console)
    if not done.faults:
        where = f" on {', '.join(done.tried)}" if done.tried else "; no tree was looked at"
        console.say(f"{len(done.patches)} patches of {done.engine}: no fault{where}")
    if done.sizes is not None and done.sizes.templates:
        console.say(
            f"templates: {done.sizes.templates} lines, for {done.sizes.rendered} lines "
            f"of {done.sizes.files} new files on {done.sizes.trees} trees"
        )
    console.result(asdict(done))
    check(done)


def _fault(fault: Fault, console: Console) -> None:
    console.say(f"{fault.where}: {fault.what} [{fault.rule}]")
    for line in fault.diff.splitlines():
        console.say(f"    {line}")
    console.say(f"  next: {fault.next}")
