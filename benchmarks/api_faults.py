"""Which checks of a server see which broken rule: a right server, and one for each rule that it may break.

PYTHONPATH=. python benchmarks/api_faults.py docs/proofs/api-faults.md
"""

from __future__ import annotations

import sys
from pathlib import Path

from dspatch.conformance.api import checks, run
from dspatch.conformance.api.checks import load
from tests.unit.apikit import asking, serving
from tests.unit.test_api_checks import FAULTS


def seen(fault: str) -> dict[str, str]:
    """The verdict of every check on a server with a fault."""
    with serving(fault) as url, asking(url) as server:
        return {result.check: result.status for result in run.check_server(server).results}


def main(target: Path) -> None:
    """Try every fault and write the table."""
    load.PATIENCE = 1.0
    clean = seen("")
    right = sum(status == "pass" for status in clean.values())
    lines = [
        "# Which checks see which broken rule",
        "",
        "A small server over real HTTP breaks one rule at a time; all checks are run on it."
        " Written by `PYTHONPATH=. python benchmarks/api_faults.py docs/proofs/api-faults.md`.",
        "",
        f"Without a fault {right} of {len(checks.ALL)} checks pass.",
        "",
        "| broken rule | caught by | also by |",
        "| --- | --- | --- |",
    ]
    for fault, named in FAULTS.items():
        failed = [name for name, status in seen(fault).items() if status == "fail"]
        others = ", ".join(f"`{name}`" for name in failed if name != named)
        caught = f"`{named}`" if named in failed else f"**missed by** `{named}`"
        lines.append(f"| {fault} | {caught} | {others} |")
        print(lines[-1], flush=True)
    target.parent.mkdir(parents=True, exist_ok=True)
    target.write_text("\n".join(lines) + "\n")


if __name__ == "__main__":
    main(Path(sys.argv[1]))
