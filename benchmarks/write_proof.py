"""Keep what `dspatch run` found of a job as a proof in docs/proofs, which the support table reads.

    python benchmarks/write_proof.py dspatch-work/jobs/vllm-0.13.0-cpu-deepseek --machine "2-core x86, under load"

Prints the table of the models for the page beside it, which says in words what else was seen.
"""

from __future__ import annotations

import argparse
import datetime
import json
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parents[1]
COLUMNS = ("golden.fp32", "golden.routes", "decode.paged", "prefill.chunked", "prefix.hit")
KEYS = ("check", "dtype", "measured", "note", "status", "tolerance", "unit", "variant")


def proof(job: Path, machine: str) -> dict[str, Any]:
    """What a proof holds, from a job's receipts and report."""
    applied, built = (_read(job / "receipts" / f"{n}.json") for n in ("apply", "build-wheel"))
    report, of = _read(job / "report" / "report.json"), applied["job"]
    variants = "".join(f" --variant {name}" for name in of["variants"])
    return {
        "command": f"dspatch run --engine {of['engine']} --rev v{of['rev']} --target {of['target']}{variants}",
        "date": datetime.datetime.now(tz=datetime.UTC).date().isoformat(),
        "machine": machine,
        "job": of,
        "tree": applied["patched"]["tree"],
        "patches": [each["name"] for each in applied["patches"]],
        "wheel": {key: built["wheel"][key] for key in ("version", "sha256")},
        "facts": report["facts"],
        "summary": report["summary"],
        "results": [{key: each[key] for key in KEYS} for each in report["results"]],
    }


def table(held: dict[str, Any]) -> list[str]:
    """A row a model: its checks and what they measured."""
    rows = []
    for name in dict.fromkeys(each["variant"] for each in held["results"]):
        mine = {each["check"]: each for each in held["results"] if each["variant"] == name}
        passed = sum(each["status"] == "pass" for each in mine.values())
        seen = [mine[key]["measured"] if key in mine else None for key in COLUMNS]
        told = ["not shown" if each is None else f"{each:.2g}" for each in seen]
        rows.append(f"| {name} | {passed} of {len(mine)} | {' | '.join(told)} |")
    return rows


def _read(path: Path) -> Any:
    return json.loads(path.read_text(encoding="utf-8"))


def main() -> None:
    """Write the proof of a job's folder."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("job", type=Path)
    parser.add_argument("--machine", required=True)
    asked = parser.parse_args()
    held = proof(asked.job, asked.machine)
    of = held["job"]
    name = "-".join([of["engine"], of["rev"], of["target"], *of["variants"]])
    path = ROOT / "docs" / "proofs" / f"{name}.json"
    path.write_text(json.dumps(held, indent=1, ensure_ascii=False) + "\n", encoding="utf-8")
    print(path, held["summary"], held["wheel"], held["tree"], *table(held), sep="\n")


if __name__ == "__main__":
    main()
