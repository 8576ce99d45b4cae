"""What was found about a server, as a table of its checks and as the object that --json prints."""

from __future__ import annotations

from dspatch.console import Console
from dspatch.stages.prove_api import check
from dspatch.stages.proving import Proven
from dspatch.stages.show import relative

HEADERS = ("CHECK", "VERDICT", "WHAT WAS SEEN")


def checked(done: Proven, console: Console) -> None:
    """The checks, the counts and the files; then the error that a failed one amounts to."""
    console.table(HEADERS, [(one.check, one.status, one.note) for one in done.report.results])
    console.say(f"conformance: {done.report.summary}")
    console.say(f"report: {', '.join(relative(path) for path in done.files)}")
    console.result({"server": done.name, "report": done.report.as_dict(), "files": done.files})
    check(done)
