"""How often the checks of conformance fail a sound engine: many checkpoints, many sets of prompts.

    python ci/false_alarms.py --env PYTHON [--variant deepseek-v3] [--dtype float32] [--checkpoints 20]
        [--prompts 10] [-o FILE]

Every checkpoint has weights of its own and every set prompts of its own; each pair is one start of the
engine with all checks. Exit status 1 when a check failed. Of n pairs without a failure the rate of
false alarms is below 3/n with 95 % confidence (the rule of three). Golden results are kept in the
cache, so that a night that was stopped goes on with what it has.
"""

from __future__ import annotations

import argparse
import json
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path

from dspatch.audit.environment import interpreter
from dspatch.conformance import small, suite
from dspatch.conformance.report import CheckResult
from dspatch.conformance.small import Case
from dspatch.conformance.statistic import rank
from dspatch.engines import Options

FIRST = 100  # seeds that nothing else uses


def main() -> int:
    """Run all pairs, tell the failures and the bound."""
    asked = _arguments()
    pairs = [
        pair for name in asked.variant for pair in cases(name, asked.checkpoints, asked.prompts)
    ]
    began = time.monotonic()
    with tempfile.TemporaryDirectory(prefix="dspatch-alarms-") as folder:
        report = suite.of_cases(
            pairs,
            python=interpreter(asked.env),
            out=Path(folder),
            options=Options(dtype=asked.dtype),
            progress=lambda text: print(text[:100], file=sys.stderr),
        )
    found = told(report.results, len(pairs)) | {"seconds": round(time.monotonic() - began)}
    print(json.dumps(found, indent=1))
    if asked.output is not None:
        asked.output.write_text(json.dumps({**found, "facts": dict(report.facts)}, indent=1) + "\n")
    return 1 if found["failed"] else 0


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawTextHelpFormatter
    )
    parser.add_argument("--env", required=True, metavar="PYTHON")
    parser.add_argument("--variant", action="append", metavar="NAME")
    parser.add_argument("--dtype", default="float32", metavar="NAME")
    parser.add_argument("--checkpoints", type=int, default=20, metavar="N")
    parser.add_argument("--prompts", type=int, default=10, metavar="N")
    parser.add_argument("-o", "--output", type=Path, metavar="FILE")
    asked = parser.parse_args()
    asked.variant = asked.variant or ["deepseek-v3"]
    return asked


def cases(name: str, checkpoints: int, prompts: int) -> Iterator[Case]:
    """Every checkpoint with every set of prompts, each under a name of its own."""
    usual = small.case(name)
    for checkpoint in range(checkpoints):
        for prompt in range(prompts):
            own = f"{usual.name}#{checkpoint}.{prompt}"
            yield replace(usual, name=own, seed=FIRST + checkpoint, dice=FIRST + prompt)


def told(results: Sequence[CheckResult], pairs: int) -> dict[str, object]:
    """How many checks passed, failed or showed nothing, the failures, and what that bounds."""
    counts = Counter(result.status for result in results)
    failures = [f"{r.variant}: {r.check}: {r.note}" for r in results if r.status == "fail"]
    wrong = len({r.variant for r in results if r.status == "fail"})
    bound = None if wrong else 3 / pairs
    return {
        "pairs": pairs,
        "passed": counts["pass"],
        "not-shown": counts["not-shown"],
        "failed": len(failures),
        "pairs-with-a-failure": wrong,
        "rate-below-at-95-percent": bound,
        "largest": _largest(results),
        "failures": failures,
    }


def _largest(results: Sequence[CheckResult]) -> dict[str, list[float]]:
    """Of each check that has a tolerance the largest number, and the tolerance."""
    found: dict[str, list[float]] = {}
    for one in results:
        if one.measured is not None and one.tolerance is not None:
            before = found.get(one.check, [0.0])[0]
            found[one.check] = [max(before, rank(one.measured)), one.tolerance]
    return found


if __name__ == "__main__":
    sys.exit(main())
