"""What quantised weights lose against those before: one engine's answers to the same prompts, by both."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

from dspatch import engines, identify
from dspatch.conformance import given, oracle, small
from dspatch.conformance.oracle import Oracle
from dspatch.conformance.small import Case
from dspatch.engines import Observed, Options, Progress, Trial
from dspatch.errors import CheckpointError, EngineError

SEPARATOR = "#"  # between the name of a set of prompts and the number of a prompt in it
Prompts = Mapping[str, Sequence[Sequence[int]]]


@dataclass(frozen=True, kw_only=True)
class Row:
    """What one checkpoint loses on one set of prompts, over `tokens` positions.

    `kl_mean`, `kl_p99` and `kl_max` are in nats, `top1` the share of positions at which both find the
    same token the likeliest.
    """

    checkpoint: str
    prompts: str
    tokens: int
    kl_mean: float
    kl_p99: float
    kl_max: float
    top1: float


@dataclass(frozen=True, kw_only=True)
class Size:
    """A checkpoint's bytes on disk, beside those of the one before, and bits for each of its numbers."""

    checkpoint: str
    stored: str
    bytes: int
    share: float
    bits: float


@dataclass(frozen=True, kw_only=True)
class Lost:
    """The rows of every checkpoint and set of prompts, and what is known about engine and oracle."""

    before: str
    rows: tuple[Row, ...]
    sizes: tuple[Size, ...]
    facts: Mapping[str, Any]

    def as_dict(self) -> dict[str, Any]:
        """As JSON values."""
        return asdict(self)


def prompts_of(file: Path | None, vocabulary: int) -> Prompts:
    """Sets of prompts (lists of token ids) by name: those of a JSON file, or random ones.

    Raises `CheckpointError` for a file that holds none, or tokens that the model does not have.
    """
    if file is None:
        return {name: [ids] for name, ids in small.prompts().items()}
    try:
        found = identify.read_object(file)
    except (OSError, ValueError) as error:
        raise _no_prompts(file, str(error)) from None
    longest = Options.max_model_len - small.steps()
    for name, texts in found.items():
        if SEPARATOR in name or "/" in name or not isinstance(texts, list) or not texts:
            raise _no_prompts(file, f"{name!r} is no set: a list of lists of token ids")
        if not all(_is_prompt(ids, longest, vocabulary) for ids in texts):
            raise _no_prompts(
                file,
                f"{name!r} has a prompt that is not 2 to {longest} whole numbers below {vocabulary}",
            )
    return found


def _is_prompt(ids: Any, longest: int, vocabulary: int) -> bool:
    whole = isinstance(ids, list) and all(type(one) is int for one in ids)
    return whole and 2 <= len(ids) <= longest and 0 <= min(ids) <= max(ids) < vocabulary


def _no_prompts(file: Path, why: str) -> CheckpointError:
    return CheckpointError(
        f"{file} holds no prompts.",
        why=why,
        next='write sets of prompts as token ids: {"code": [[12, 7, 9], [3, 4]], "chat": [[5, 8]]}',
    )


def run(
    *,
    before: Path,
    after: Sequence[Path],
    prompts: Path | None,
    python: Path,
    out: Path,
    engine: str = "vllm",
    progress: Progress = engines.silent,
) -> Lost:
    """Run every checkpoint's weights in float32 and compare the answers; quantised ones are read first.

    So only what the stored numbers lose is measured, whichever processor has kernels for them. Raises
    `CheckpointError` for a checkpoint that is damaged or another model, `EngineError` where one does not run.
    """
    cases = _named([given.case(before), *(given.case(folder, quantised=True) for folder in after)])
    first, *others = cases
    for other in others:
        _need_alike(first, other)
    judge = oracle.ensure(progress)
    judge.need_whole(cases)
    sets = prompts_of(prompts, first.config["vocab_size"])
    progress(f"reading {', '.join(case.name for case in cases)}")
    folders = [_weights(judge, case) for case in cases]
    weights = (folders[0] / "model.safetensors").stat().st_size // 4
    pairs = zip(cases, folders, strict=True)
    trials = [_trial(case, sets, folder) for case, folder in pairs]
    chosen = engines.get(engine)
    ran = chosen.observe(python, trials, out=out, options=Options(), progress=progress)
    _need_run(ran)
    rows = [
        Row(checkpoint=case.name, prompts=name, **numbers)
        for case, found in zip(others, _measured(judge, ran), strict=True)
        for name, numbers in found.items()
    ]
    for one in ran:
        one.tensors.unlink(missing_ok=True)
    return Lost(
        before=first.name,
        rows=tuple(rows),
        sizes=tuple(_sizes(cases, weights)),
        facts={"engine": engine, **ran[0].known},
    )


def _named(cases: Sequence[Case]) -> list[Case]:
    """Folders that are called alike, by the ones that they lie in, too."""
    names = [case.name for case in cases]
    return [
        replace(case, name=f"{case.source.parent.name}/{case.name}")
        if case.source and names.count(case.name) > 1
        else case
        for case in cases
    ]


def _need_alike(first: Case, other: Case) -> None:
    wrong = [key for key in first.config if first.config[key] != other.config.get(key)]
    if wrong:
        raise CheckpointError(
            f"{other.source} is not the model in {first.source}, quantised.",
            why=", ".join(
                f"{k} is {other.config.get(k)!r}, not {first.config[k]!r}" for k in wrong
            ),
            next="name the checkpoint that it was made from: --quantised-against FOLDER",
        )


def _weights(judge: Oracle, case: Case) -> Path:
    """The folder of a checkpoint's weights in float32, from the cache where it was read before."""
    from dspatch.conformance import checkpoint

    made = checkpoint.of(case, written_with=judge.identity)
    if not made.complete:
        judge.work([made.task()])
    return made.path


def _trial(case: Case, sets: Prompts, folder: Path) -> Trial:
    named = {
        f"{name}{SEPARATOR}{number}": list(ids)
        for name, texts in sets.items()
        for number, ids in enumerate(texts)
    }
    return Trial(
        name=case.name, checkpoint=folder, config=case.config, prompts=named, steps=small.steps(),
        sparse_layers=case.sparse_layers, only_alone=True,
    )  # fmt: skip


def _need_run(ran: Sequence[Observed]) -> None:
    for one in ran:
        if one.error:
            raise EngineError(
                f"the engine did not run {one.trial.name}.",
                why=one.error,
                next="see that it runs the model: dspatch conformance --checkpoint FOLDER",
            )


def _measured(judge: Oracle, ran: Sequence[Observed]) -> list[dict[str, dict[str, Any]]]:
    first, *others = ran
    targets = [one.tensors.with_name("loss.json") for one in others]
    judge.work(
        [
            {
                "kind": "loss",
                "before": str(first.tensors),
                "after": str(one.tensors),
                "target": str(target),
            }
            for one, target in zip(others, targets, strict=True)
        ]
    )
    return [json.loads(target.read_text()) for target in targets]


def _sizes(cases: Sequence[Case], weights: int) -> list[Size]:
    """The size of each checkpoint of so many weights, beside the first."""
    whole = _bytes(cases[0])
    return [
        Size(
            checkpoint=case.name, stored=case.stored or "unquantised", bytes=_bytes(case),
            share=_bytes(case) / whole, bits=8 * _bytes(case) / weights,
        )
        for case in cases
    ]  # fmt: skip


def _bytes(case: Case) -> int:
    assert case.source is not None
    return sum(path.stat().st_size for path in given.tensors(case.source))
