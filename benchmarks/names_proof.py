"""Keep what `dspatch conformance --names` found of several wheels as one proof in docs/proofs/names.json.

    python benchmarks/names_proof.py dspatch-work/conformance/*/report-names/report.json --machine "2-core x86"

Prints the table of the page that says so in words.
"""

from __future__ import annotations

import argparse
import datetime
import json
from pathlib import Path
from typing import Any

from dspatch.conformance.taken import CHECKS

ROOT = Path(__file__).parents[1]
KEYS = ("check", "measured", "note", "status", "variant")


def run(report: Path) -> dict[str, Any]:
    """What was found of one wheel."""
    found = json.loads(report.read_text(encoding="utf-8"))
    results = [{key: each[key] for key in KEYS} for each in found["results"]]
    facts = {key: found["facts"][key] for key in ("vllm", "torch", "drafts")}
    return {**facts, "summary": found["summary"], "results": results}


def _version(held: dict[str, Any]) -> tuple[int, ...]:
    return tuple(int(part) for part in held["vllm"].partition("+")[0].split("."))


def table(held: dict[str, Any]) -> list[str]:
    """A row a checkpoint: the verdicts, and which loader took how many names."""
    release = held["vllm"].partition("+")[0]
    rows = []
    for name in dict.fromkeys(each["variant"] for each in held["results"]):
        mine = {each["check"]: each for each in held["results"] if each["variant"] == name}
        said = next(
            (mine[check]["note"] for check in ("engine.start", "names.taken") if check in mine), ""
        )
        told = [mine[check]["status"] if check in mine else "not asked" for check in CHECKS]
        rows.append(f"| {release} | {name} | {' | '.join(told)} | {said} |")
    return rows


def main() -> None:
    """Write the proof."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("reports", type=Path, nargs="+")
    parser.add_argument("--machine", required=True)
    asked = parser.parse_args()
    runs = sorted(map(run, asked.reports), key=_version)
    proof = {
        "command": "dspatch conformance --names --env PYTHON --variant …",
        "date": datetime.datetime.now(tz=datetime.UTC).date().isoformat(),
        "machine": asked.machine,
        "runs": runs,
    }
    path = ROOT / "docs" / "proofs" / "names.json"
    path.write_text(json.dumps(proof, indent=1, ensure_ascii=False) + "\n", encoding="utf-8")
    print(*(row for each in runs for row in table(each)), sep="\n")


if __name__ == "__main__":
    main()
