"""What running engines show of every fault that the series mends, for the audit to be held against.

    python benchmarks/audit_truth.py --out docs/proofs/audit-truth.json

For each proven pin the conformance suite runs small models on the stock base wheel, on the patched wheel,
and on one wheel for each patch that is left out of the series, so that one fault shows alone. A benchmark
variable is set for one run more. What is in the file already is not run again; `--models` narrows it.
"""

from __future__ import annotations

import argparse
import datetime
import json
import os
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from dspatch import files, pins, series
from dspatch.conformance import suite
from dspatch.conformance.report import CheckResult
from dspatch.engines.environment import for_wheel
from dspatch.index import download

MODELS = (
    "deepseek-v2-lite", "deepseek-v2", "deepseek-v2.5", "deepseek-v3", "deepseek-v2-lite/plain-rope",
    "deepseek-v3/plain-rope", "deepseek-v2-lite/odd-heads", "deepseek-v3/saved",
)  # fmt: skip
# Of each pin, the patches that mend a wrong result, a crash or a lack which shows on any processor.
WITHOUT = {
    "v0.26.0": ("cpu-mla-weights", "cpu-rope-strides", "v3-topk-method", "cpu-mla"),
    "v0.27.1": ("cpu-rope-strides", "v3-topk-method", "cpu-mla-weights", "cpu-mla"),
    "v0.32.0": ("cpu-mla-head-dims", "cpu-rope-strides", "cpu-slot-mapping", "v3-topk-method"),
}
FULL_HEADS = {"VLLM_MLA_DISABLE": "1"}
SIMULATED = {"VLLM_MOE_ROUTING_SIMULATION_STRATEGY": "uniform_random"}


def main() -> None:
    """Fill in what the file has not yet."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--rev", choices=WITHOUT, action="append")
    parser.add_argument("--models", nargs="*", default=MODELS)
    parser.add_argument("--once", action="store_true", help="end after one run")
    given = parser.parse_args()
    done = json.loads(given.out.read_text()) if given.out.is_file() else {}
    for rev in given.rev or reversed(WITHOUT):
        for name, words in situations(rev):
            if name in done.setdefault(rev, {}):
                continue
            print(f"{rev} {name}", flush=True)
            done[rev][name] = seen(rev, given.models, **words)
            files.write_atomically(given.out, (json.dumps(done, indent=1) + "\n").encode())
            if given.once:
                return


def situations(rev: str) -> Iterator[tuple[str, dict[str, Any]]]:
    """What is run of a pin: by name, the patch that is left out (all: `*`) and the variables set."""
    yield "patched", {"left_out": ""}
    for patch in WITHOUT[rev]:
        yield f"without {patch}", {"left_out": patch}
    yield "stock", {"left_out": "*"}
    yield "stock, VLLM_MLA_DISABLE=1", {"left_out": "*", "variables": FULL_HEADS}
    (variable,) = SIMULATED.items()
    yield f"patched, {'='.join(variable)}", {"left_out": "", "variables": SIMULATED}


def seen(
    rev: str, models: Sequence[str], *, left_out: str, variables: dict[str, str] | None = None
) -> dict[str, Any]:
    """What the suite says of one wheel: which checks each model fails, and how it was refused."""
    with tempfile.TemporaryDirectory() as folder, set_to(variables or {}):
        try:
            wheel = stock(rev) if left_out == "*" else built(rev, left_out, Path(folder))
        except subprocess.CalledProcessError as error:
            return {"not-built": error.stdout.decode().strip().splitlines()[-1]}
        environment = for_wheel("vllm", wheel)
        kept = left_out in ("", "*")
        try:
            report = suite.run(python=environment.python, out=Path(folder) / "out", variants=MODELS)
        finally:
            if not kept:  # half a gigabyte that nothing asks for again
                shutil.rmtree(environment.path)
        return {
            "date": datetime.datetime.now(datetime.UTC).date().isoformat(),
            "wheel": {"name": wheel.name, "sha256": files.sha256(wheel)},
            "models": {model: told(report.results, model) for model in models},
        }


def stock(rev: str) -> Path:
    """The base wheel of a pin."""
    base = pins.base_for(pins.load("vllm", rev), "cpu")
    return download(base.project, base.filename, base.sha256)


def less(patch: str) -> str:
    """The lines of an own series that leave a patch out, and with it those that edit what it brings."""
    shipped = series.layered("vllm")
    brought = {file.path for file in shipped.patch(patch).files}
    resting = (p.name for p in shipped.patches if any(e.file in brought for e in p.edits))
    return "".join(f"!{name}\n" for name in dict.fromkeys((patch, *resting)))


def built(rev: str, left_out: str, folder: Path) -> Path:
    """The wheel of a pin with the series, less one patch."""
    layer = folder / "patches" / "vllm"
    layer.mkdir(parents=True)
    (layer / "series").write_text(less(left_out) if left_out else "")
    (layer / "traits.toml").write_text("")
    env = {**os.environ, "DSPATCH_WORK": str(folder / "work")}
    if left_out:
        env["DSPATCH_PATCHES"] = str(layer.parent)
    dspatch = [sys.executable, "-m", "dspatch"]
    for words in (["apply", "--rev", rev, "--json"], ["build-wheel", "--json"]):
        subprocess.run([*dspatch, *words], env=env, check=True, capture_output=True)
    (wheel,) = folder.glob("work/jobs/*/dist/*.whl")
    return wheel


@contextmanager
def set_to(variables: dict[str, str]) -> Iterator[None]:
    """Variables of the environment, set inside this block."""
    os.environ |= variables
    try:
        yield
    finally:
        for name in variables:
            del os.environ[name]


def told(results: tuple[CheckResult, ...], model: str) -> dict[str, Any]:
    """The checks that a model fails, by how far it is off, or the words of its refusal."""
    failed = [each for each in results if each.variant == model and each.status == "fail"]
    return {
        each.check: each.note
        if each.measured is None
        else f"{each.measured:.3g} {each.unit}".strip()
        for each in failed
    }


if __name__ == "__main__":
    main()
