"""The oracle: transformers in float32, in a pinned environment, checked against a second model."""

from __future__ import annotations

import json
import os
import tempfile
import tomllib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from dspatch import paths
from dspatch.audit.environment import distributions, interpreter
from dspatch.conformance import checkpoint, small
from dspatch.conformance.checkpoint import Checkpoint
from dspatch.conformance.small import Case
from dspatch.engines import Observed, Progress, environment, silent, worker
from dspatch.engines.environment import Environment
from dspatch.errors import CheckpointError, ProcessError

WORKERS = Path(__file__).with_name("workers")

# Raised by hand when the worker computes other golden results for the same checkpoint.
GENERATION = 2
SHOWN = 3  # tensors that are wrong in one way


@dataclass(frozen=True, kw_only=True)
class Golden:
    """A checkpoint and the file of its golden results."""

    checkpoint: Checkpoint
    path: Path


@dataclass(frozen=True, kw_only=True)
class Oracle:
    """The Python that measures, and the requirements of those that golden results are made with.

    Its `environment` has exactly these; where `DSPATCH_ORACLE` named the Python there is none, and
    it `makes` any only with the pinned transformers.
    """

    python: Path
    requirements: tuple[str, ...]
    environment: Environment | None = None
    makes: bool = True

    @property
    def identity(self) -> str:
        """What golden results are cached by, beside the checkpoint."""
        return checkpoint.digest([GENERATION, list(self.requirements)])

    def golden(self, cases: Sequence[Case], progress: Progress = silent) -> list[Golden]:
        """Checkpoints and golden results of the cases, computed once and cached."""
        found = [self._golden(case) for case in cases]
        missing = [one for one in found if not (one.path.is_file() and one.checkpoint.complete)]
        if missing and not self.makes:
            self._draw_again(missing)
        elif missing:
            progress(
                f"computing golden results for {', '.join(g.checkpoint.case.name for g in missing)}"
            )
            tasks = [g.checkpoint.task() for g in missing if not g.checkpoint.complete]
            self.work(tasks + [_golden_task(g) for g in missing])
        return found

    def checkpoints(self, cases: Sequence[Case], progress: Progress = silent) -> list[Checkpoint]:
        """Checkpoints of the cases alone, for those who hold engines against each other, made once and cached.

        Raises `CheckpointError` where `DSPATCH_ORACLE` named a Python that makes none and there is no recipe.
        """
        found = [checkpoint.of(case, written_with=self.identity) for case in cases]
        missing = [one for one in found if not one.complete]
        absent = [one for one in missing if not (self.makes or one.recipe.is_file())]
        if absent:
            raise _not_kept([one.case.name for one in absent])
        if missing:
            progress(f"drawing the weights of {', '.join(one.case.name for one in missing)}")
            self.work([one.task() if self.makes else one.remake() for one in missing])
        return found

    def _draw_again(self, missing: Sequence[Golden]) -> None:
        """Checkpoints by their recipes; `CheckpointError` where recipe or golden results are missing."""
        absent = [g for g in missing if not (g.path.is_file() and g.checkpoint.recipe.is_file())]
        if absent:
            raise _not_kept([one.checkpoint.case.name for one in absent])
        self.work([one.checkpoint.remake() for one in missing])

    def margins(self, golden: Sequence[Golden]) -> list[float]:
        """How nearly a router chooses other experts on any text of each: the least margin, of a score."""
        with tempfile.TemporaryDirectory(prefix="dspatch-margins-") as folder:
            targets = [Path(folder) / f"{number}.json" for number in range(len(golden))]
            self.work(
                [
                    {
                        "kind": "margin",
                        "golden": str(one.path),
                        "checkpoint": str(one.checkpoint.weights),
                        "target": str(target),
                    }
                    for one, target in zip(golden, targets, strict=True)
                ]
            )
            return [float(json.loads(target.read_text())) for target in targets]

    def inspect(self, cases: Sequence[Case]) -> list[str]:
        """What is wrong with the tensors of each checkpoint of the user's own, in words, or nothing."""
        with tempfile.TemporaryDirectory(prefix="dspatch-inspect-") as folder:
            targets = [Path(folder) / f"{number}.json" for number in range(len(cases))]
            tasks = [
                {
                    "kind": "inspect",
                    "source": str(c.source),
                    "config": dict(c.config),
                    "target": str(t),
                }
                for c, t in zip(cases, targets, strict=True)
            ]
            if tasks:
                self.work(tasks)
            return [_faults(json.loads(target.read_text())) for target in targets]

    def need_whole(self, cases: Sequence[Case]) -> None:
        """Raise `CheckpointError` for the first checkpoint of the user's own that `inspect` finds damaged."""
        for case, wrong in zip(cases, self.inspect(cases), strict=True):
            if wrong:
                raise CheckpointError(
                    f"{case.source} does not hold the model that its config.json says.",
                    why=wrong,
                    next="save it whole, with all of its tensors in this shape",
                )

    def measure(
        self, pairs: Sequence[tuple[Golden, Observed]], limits: Mapping[str, float], dtype: str
    ) -> list[Mapping[str, Any]]:
        """The numbers of each engine run beside the golden results; the worker documents them.

        Of `limits` `band` is the relative difference up to which a result is right, `times` how many times plain
        torch's own error an operation's may be off by the engine's own input; `dtype` is what the engines computed in.
        """
        targets = [observed.tensors.with_name("measure.json") for _, observed in pairs]
        self.work(
            [
                {
                    "kind": "measure",
                    "golden": str(golden.path),
                    "checkpoint": str(golden.checkpoint.weights),
                    "stored": str(stored) if (stored := golden.checkpoint.stored) else "",
                    "result": str(observed.tensors),
                    "loaded": observed.facts.get("loaded_in", str(observed.tensors)),
                    "target": str(target),
                    "limits": dict(limits),
                    "dtype": dtype,
                    "scale": golden.checkpoint.case.config["routed_scaling_factor"],
                }
                for (golden, observed), target in zip(pairs, targets, strict=True)
            ]
        )
        return [json.loads(target.read_text()) for target in targets]

    def _golden(self, case: Case) -> Golden:
        made = checkpoint.of(case, written_with=self.identity)
        key = checkpoint.digest(
            [made.key, self.identity, small.prompts(case.dice), small.steps(), small.late()]
        )
        return Golden(
            checkpoint=made, path=paths.cache() / "golden" / f"{case.variant}-{key}.safetensors"
        )

    def work(self, tasks: Sequence[Mapping[str, Any]]) -> None:
        """Have the worker do tasks, as it documents them; `CheckpointError` when it fails."""
        with tempfile.TemporaryDirectory(prefix="dspatch-oracle-") as folder:
            asked = {"tasks": list(tasks)}
            try:
                worker.run(
                    self.python, WORKERS / "oracle_worker", asked, Path(folder), env=variables()
                )
            except ProcessError as error:
                raise CheckpointError(
                    "The oracle did not finish its work.", why=error.why, next=self._remedy()
                ) from None

    def _remedy(self) -> str:
        if self.environment is None:
            return f"see that {self.python} (DSPATCH_ORACLE) has torch, safetensors and numpy"
        return f"mend the cause, or remove {self.environment.path} to have it made anew"


def ensure(progress: Progress = silent) -> Oracle:
    """The oracle, with its environment made when it is not in the cache.

    `DSPATCH_ORACLE` names a Python to measure with instead, on a machine that cannot make one: it
    needs torch, safetensors and numpy. Without the pinned transformers checkpoints and golden results
    must then be in the cache; with it what it makes is known by the versions that it has.
    """
    wanted = requirements()
    if given := os.environ.get("DSPATCH_ORACLE"):
        python = interpreter(given)
        own = _versions(python)
        makes = _pinned(own, wanted)
        return Oracle(python=python, requirements=own if makes else wanted, makes=makes)
    made = environment.ensure("oracle", wanted, progress=progress)
    return Oracle(python=made.python, requirements=wanted, environment=made)


def _versions(python: Path) -> tuple[str, ...]:
    """What a Python has of the oracle's requirements, in these words."""
    names = [one.partition("==")[0] for one in requirements()]
    found = distributions(python, names)
    # A build's own part (+cpu, +cu130) is no other version.
    return tuple(f"{name}=={found[name][0].partition('+')[0]}" for name in names if name in found)


def _pinned(own: Sequence[str], wanted: Sequence[str]) -> bool:
    """Whether golden results may be made with these: all are there, and transformers is the pinned one.

    What torch rounds otherwise the oracle's own controls see; what transformers computes wrongly, too, but
    then every model fails.
    """
    asked = next(one for one in wanted if one.startswith("transformers=="))
    return len(own) == len(wanted) and asked in own


def _not_kept(names: Sequence[str]) -> CheckpointError:
    return CheckpointError(
        f"There are no golden results of {', '.join(names)} in {paths.cache()}.",
        why="DSPATCH_ORACLE names a Python without the pinned transformers: it measures, and makes none",
        next="make them on a machine with an index, and take the folder along as DSPATCH_CACHE: dspatch"
        f" {_preparing(names)}",
    )


def _preparing(names: Sequence[str]) -> str:
    """The command that makes them; cases of a count of false alarms have a `#` in their names."""
    if any("#" in name for name in names):
        return (
            "bench alarms --prepare FOLDER, with the same --checkpoints, --prompt-sets and --seed"
        )
    return f"conformance --prepare FOLDER {' '.join(f'--variant {name}' for name in names)}"


def requirements() -> tuple[str, ...]:
    """What the oracle's environment installs."""
    data = tomllib.loads(Path(__file__).with_name("oracle.toml").read_text())
    return tuple(data["requirements"])


def _faults(found: Mapping[str, Sequence[str]]) -> str:
    """The tensors that are wrong: how many in which way, and the first ones by name."""
    told = [
        f"{len(names)} {what}: {', '.join(names[:SHOWN])}{', …' if len(names) > SHOWN else ''}"
        for what, names in found.items()
        if names
    ]
    return "; ".join(told)


def _golden_task(golden: Golden) -> dict[str, Any]:
    return {
        "kind": "golden",
        "checkpoint": str(golden.checkpoint.path),
        "prompts": small.prompts(golden.checkpoint.case.dice),
        "steps": small.steps(),
        "late": small.late(),
        "target": str(golden.path),
    }


def variables() -> dict[str, str]:
    """The environment variables of the worker: off the network, and kind to a busy machine."""
    return {
        "PYTHONPATH": str(WORKERS),
        "HF_HUB_OFFLINE": "1",
        "TRANSFORMERS_VERBOSITY": "error",
        # Waiting threads must not hold the cores of a busy machine.
        "OMP_WAIT_POLICY": "PASSIVE",
    }
