"""Several processes beside one: the same log-probabilities, and weights that make up the whole ones."""

from __future__ import annotations

import math
import shutil
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from dspatch import engines, sharding
from dspatch.conformance import given, oracle, small, statistic, tolerance
from dspatch.conformance.report import CheckResult, Report, Status
from dspatch.conformance.small import Case
from dspatch.engines import Options, vllm, worker
from dspatch.errors import EngineError, ProcessError

WORKER = vllm.WORKERS / "vllm_parallel_worker"
# There a typical token judges, too, in less than float32; here only the order of sums is another.
LIKE = "logits.topk"


def cases(variants: Sequence[str], checkpoints: Sequence[Path], degree: int) -> list[Case]:
    """The models to run; raises `ParallelError` for the first that so many processes cannot share."""
    found = [*map(small.case, variants), *map(given.case, checkpoints)]
    for case in found:
        sharding.refuse(case.name, case.config, degree)
    return found


def run(
    models: Sequence[Case],
    degree: int,
    *,
    python: Path,
    out: Path,
    engine: str = vllm.NAME,
    options: Options,
    progress: engines.Progress = engines.silent,
) -> Report:
    """Run each model on one process and on `degree`, and hold the two against each other.

    Raises `EngineError` for an engine that this is not known of, `CheckpointError` for a damaged
    checkpoint of the user's own, and what the oracle raises.
    """
    if engine != vllm.NAME:
        raise EngineError(
            f"several processes of {engine} cannot be held against one.",
            why=f"only {vllm.NAME}'s workers can be asked for their weights",
            next="leave out --tp",
        )
    judge = oracle.ensure(progress)
    judge.need_whole([case for case in models if case.source is not None])
    made = judge.checkpoints(models, progress)
    results: list[CheckResult] = []
    facts: dict[str, Any] = {"engine": engine, "processes": degree}
    for case, one in zip(models, made, strict=True):
        progress(f"{case.name}: {degree} processes, then one")
        folder = out / f"tp-{case.name.replace('/', '-')}"
        shutil.rmtree(folder, ignore_errors=True)
        _log(folder).unlink(missing_ok=True)
        try:
            found = _measured(python, one.given, degree, folder, options)
        except ProcessError as error:
            results += _refused(case.name, options.dtype, error)
            continue
        facts |= found["facts"]
        facts |= {f"{case.name} {on}": told for on, told in found["runs"].items()}
        results += judged(case.name, options.dtype, found)
        shutil.rmtree(folder)
    return Report(results=tuple(results), facts=facts)


def judged(name: str, dtype: str, found: Mapping[str, Any]) -> list[CheckResult]:
    """The verdicts on one model's measures, as `joining.compare` gives them."""
    wrong = [*found["lost"], *found["blind"]]
    whole: Status = "pass" if found["split"] and not wrong else "fail"
    held = f"{found['split']} of {found['weights']} split, each put together again bit by bit"
    lost = f"not put together: {', '.join(found['lost'])}" if found["lost"] else ""
    blind = f"exchanged shards go unseen: {', '.join(found['blind'])}" if found["blind"] else ""
    return [
        _logprobs(name, dtype, found),
        CheckResult(
            check="tp.weights", variant=name, dtype=dtype, status=whole, measured=len(wrong),
            tolerance=0, unit="tensors",
            note="; ".join(filter(None, (lost, blind))) or (held if found["split"] else "none is split"),
        ),
    ]  # fmt: skip


def _logprobs(name: str, dtype: str, found: Mapping[str, Any]) -> CheckResult:
    """Whether the log-probabilities are near; where no tolerance decides, only that they are numbers.

    A fault that was planted in the same engine must be farther away than the limit.
    """
    device = str(found.get("facts", {}).get("device", "cpu"))
    row = tolerance.row(LIKE, dtype, device)
    limit = row.value if row else None
    off = _off(dtype, found)
    notes = [f"{found['compared']} compared; {found['equal']} of {found['texts']} texts equal"]
    if limit is None:
        notes.insert(0, tolerance.why_none(LIKE, dtype, device))
    else:
        notes.append(f"the limit is that of {LIKE}")
    # Written so that NaN fails.
    near = math.isfinite(off) if limit is None else off <= limit
    seen, told = _spoiled(dtype, found["spoiled"], limit)
    status: Status = "pass" if limit is not None and seen != "not-shown" else "not-shown"
    return CheckResult(
        check="tp.logprobs", variant=name, dtype=dtype,
        status=status if found["compared"] and near and row and seen != "fail" else "fail",
        measured=off, tolerance=limit, unit=_unit(dtype) if row else "", note="; ".join([*notes, told]),
    )  # fmt: skip


def _unit(dtype: str) -> str:
    typical = statistic.narrow(LIKE, dtype)
    return "nats, median token of the median prompt" if typical else "nats"


def _off(dtype: str, found: Mapping[str, Any]) -> float:
    return float(found["typical" if statistic.narrow(LIKE, dtype) else "worst"])


def _spoiled(
    dtype: str, found: Mapping[str, Any] | None, limit: float | None
) -> tuple[Status, str]:
    """Whether the engine without one of its sums is seen, and by how much."""
    if found is None:
        return "not-shown", "no sum over the processes could be left out, to see that it shows"
    off = _off(dtype, found)
    if limit is not None and off <= limit:
        return (
            "fail",
            f"without the sum over attention's parts as good ({off:.2g}): the check is blind",
        )
    return "pass", f"without the sum over attention's parts {off:.2g}"


def _refused(name: str, dtype: str, error: ProcessError) -> list[CheckResult]:
    start = CheckResult(
        check="engine.start", variant=name, dtype=dtype, status="fail", note=error.why
    )
    rest = [
        CheckResult(
            check=check, variant=name, dtype=dtype, status="not-shown",
            note="the engine did not run this model",
        )
        for check in ("tp.logprobs", "tp.weights")
    ]  # fmt: skip
    return [start, *rest]


def _measured(
    python: Path, checkpoint: Path, degree: int, folder: Path, options: Options
) -> dict[str, Any]:
    places = {"one": str(folder / "1"), "many": str(folder / str(degree))}
    wanted = {
        "checkpoint": str(checkpoint), "dtype": options.dtype, "prompts": small.prompts(),
        "steps": small.steps(),
    }  # fmt: skip
    # One process reads what several wrote: where rounding turns a token, texts of their own would part.
    asked = {
        degree: {**wanted, "degree": degree, "folder": places["many"]},
        1: {**wanted, "degree": 1, "folder": places["one"], "reads": places["many"]},
    }
    ran = {count: _ask(python, {"run": one}, folder, options) for count, one in asked.items()}
    own = ("attention", "heads", "sums", "seconds")
    facts = {key: value for key, value in ran[degree].items() if key not in own}
    told = {"on 1 process": _of_run(ran[1]), f"on {degree} processes": _of_run(ran[degree])}
    return {**_ask(python, {"compare": places}, folder, options), "facts": facts, "runs": told}


def _of_run(ran: Mapping[str, Any]) -> dict[str, Any]:
    """What a report says of one run: attention, its heads in each process, what adds up, seconds."""
    told = {key: " or ".join(map(str, ran[key])) for key in ("attention", "heads", "sums")}
    seconds = {f"seconds to {what}": count for what, count in ran["seconds"].items()}
    return {**{key: value for key, value in told.items() if value}, **seconds}


def environment(options: Options) -> dict[str, str]:
    """The environment variables of a run on several processes, all of them on this machine."""
    return {
        **vllm.environment(options),
        "VLLM_ENABLE_V1_MULTIPROCESSING": "1",
        # A process that was forked cannot use a GPU that its parent has asked for.
        "VLLM_WORKER_MULTIPROC_METHOD": "spawn",
        # A function of ours runs in the workers.
        "VLLM_ALLOW_INSECURE_SERIALIZATION": "1",
        "VLLM_HOST_IP": "127.0.0.1",
        "GLOO_SOCKET_IFNAME": "lo",
        "NCCL_SOCKET_IFNAME": "lo",
        "OMP_NUM_THREADS": "1",
    }


def _ask(python: Path, asked: Mapping[str, Any], folder: Path, options: Options) -> Any:
    env, log = environment(options), _log(folder)
    return worker.ask(python, WORKER, asked, env=env, log=log, timeout=options.timeout)


def _log(folder: Path) -> Path:
    """Beside the folder, which goes when all is well."""
    return folder.with_name(f"{folder.name}.log")
