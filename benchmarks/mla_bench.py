"""One process's measurements of MLA decode: each kernel held to fp64, then timed in CUDA graphs."""

from __future__ import annotations

import statistics
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

from benchmarks.mla_call import LATENT, PAGE, ROPE, SCALE, Call
from benchmarks.mla_clock import Clock

MOST = 2048  # slots a token, as DeepSeek-V3.2 has it
POOL = 300_000_000  # bytes of inputs that one replay reads at least, or 50 calls
OURS, AGAIN, BF16 = "ours", "ours again", "ours bf16"


@dataclass(frozen=True, kw_only=True)
class Row:
    """One shape: microseconds a call of each kernel, median of the replays; bytes and operations.

    kernel: ours; where fp8 is held against bf16, that of bf16, too.
    """

    heads: int
    batch: int
    tokens: int
    q_len: int
    kernel: str
    bytes: int
    flops: int
    calls: int
    plan_us: float
    us: dict[str, float]
    best_us: dict[str, float]
    wrong: dict[str, list[str]]
    failed: dict[str, str] = field(default_factory=dict)


@dataclass(frozen=True, kw_only=True)
class Size:
    """What one shape reads and computes, and how often it is called and on how many inputs."""

    bytes: int
    flops: int
    calls: int
    inputs: int

    @classmethod
    def of(cls, heads: int, batch: int, tokens: int, q_len: int, mode: str) -> Size:
        """The size of a shape; one that fits the L2 gets inputs that do not, together."""
        read = min(tokens, MOST) if mode == "sparse" else tokens
        row = (LATENT + ROPE) * (1 if mode == "fp8" else 2)
        size = batch * (read * row + q_len * heads * (2 * LATENT + ROPE) * 2)
        filling = -(-POOL // size)
        calls = max(20, min(50, filling))
        return cls(
            bytes=size,
            flops=2 * batch * heads * q_len * read * (2 * LATENT + ROPE),
            calls=calls,
            inputs=min(calls, max(3, filling)),
        )


@dataclass(frozen=True, kw_only=True)
class Ours:
    """One of our kernels on the steps of a shape: its name, its calls, and what plans a step."""

    kernel: str
    calls: list[Call]
    plan: Callable[[], None]


@dataclass(frozen=True, kw_only=True)
class Subject:
    """A kernel on a shape: a call for each input, and the step that its first call is held to."""

    calls: list[Call]
    step: Any


class Bench:
    """One process's measurements.

    kernel: ours where it serves a shape, in the place of the one that is chosen. beside: another of
    ours in the same rows.
    """

    def __init__(
        self, kernels: Any, peers: Any, mode: str, kernel: str | None, beside: Sequence[str] = ()
    ) -> None:
        import torch

        self.torch = torch
        self.kernels = kernels
        self.peers = peers
        self.mode = mode
        self.kernel = kernel
        self.beside = beside
        self.clock = Clock()

    def checked(self, heads: int, batch: int, tokens: int) -> dict[str, list[str]]:
        """What is wrong with each kernel on a shape, held to fp64; nothing is timed."""
        _, subjects = self._subjects(heads, batch, tokens, 1, 1)
        wrong: dict[str, list[str]] = {}
        for name, subject in subjects.items():
            try:
                wrong[name] = self._wrong(subject)
            except Exception as error:  # one that refuses a shape is named, not hidden
                wrong[name] = [_told(error)]
        return wrong

    def row(self, heads: int, batch: int, tokens: int, q_len: int = 1) -> Row:
        """Measure one shape; all requests are of equal length."""
        size = Size.of(heads, batch, tokens, q_len, self.mode)
        ours, subjects = self._subjects(heads, batch, tokens, q_len, size.inputs)
        graphs, wrong, failed = self._captured(subjects, size.calls)
        plan_us = self.clock.median(self.clock.graph([ours.plan] * 50)) / 50
        times = self.clock.in_turns(graphs, size.calls)
        kernel = ours.kernel
        del graphs, subjects, ours
        self.torch.cuda.empty_cache()
        return Row(
            heads=heads,
            batch=batch,
            tokens=tokens,
            q_len=q_len,
            kernel=kernel,
            bytes=size.bytes,
            flops=size.flops,
            calls=size.calls,
            plan_us=plan_us,
            us={name: statistics.median(t) for name, t in times.items()},
            best_us={name: min(t) for name, t in times.items()},
            wrong=wrong,
            failed=failed,
        )

    def _captured(
        self, subjects: dict[str, Subject], calls: int
    ) -> tuple[dict[str, Any], dict[str, list[str]], dict[str, str]]:
        """A graph of each kernel, what is wrong with its results, and which of them failed."""
        graphs: dict[str, Any] = {}
        wrong: dict[str, list[str]] = {}
        failed: dict[str, str] = {}
        for name, subject in subjects.items():
            some = subject.calls
            try:
                wrong[name] = self._wrong(subject)
                graphs[name] = self.clock.graph([some[i % len(some)] for i in range(calls)])
            except Exception as error:  # a peer that refuses a shape is named, not hidden
                failed[name] = _told(error)
                if name == OURS:
                    raise
        return {**graphs, AGAIN: graphs[OURS]}, wrong, failed

    def _steps(
        self, heads: int, batch: int, tokens: int, q_len: int, count: int, fp8: bool
    ) -> list[Any]:
        from tests.mla import cases

        made: dict[str, Any] = {"heads": heads, "q_len": q_len, "page": PAGE, "device": "cuda"}
        steps = (cases.step([tokens] * batch, **made, fp8=fp8, seed=seed) for seed in range(count))
        if self.mode == "sparse":
            return [cases.sparse(step, MOST, seed=seed) for seed, step in enumerate(steps)]
        return list(steps)

    def _subjects(
        self, heads: int, batch: int, tokens: int, q_len: int, count: int
    ) -> tuple[Ours, dict[str, Subject]]:
        """Ours, and every kernel on the steps of a shape."""
        fp8 = self.mode == "fp8"
        steps = self._steps(heads, batch, tokens, q_len, count, fp8)
        ours = self._ours(steps, self.kernel)
        found = {OURS: Subject(calls=ours.calls, step=steps[0])}
        for kernel in self.beside:
            if kernel != ours.kernel:
                beside = self._ours(steps, kernel)
                found[f"ours, {kernel}"] = Subject(calls=beside.calls, step=steps[0])
        if fp8:
            others = self._steps(heads, batch, tokens, q_len, count, False)
            bf16 = self._ours(others, self.kernel)
            found[BF16] = Subject(calls=bf16.calls, step=others[0])
            name = f"{ours.kernel}, bf16 {bf16.kernel}"
            ours = Ours(kernel=name, calls=ours.calls, plan=ours.plan)
        calls = [self.peers.calls(self.mode, step, tokens) for step in steps]
        for name in calls[0]:
            found[name] = Subject(calls=[each[name] for each in calls], step=steps[0])
        return ours, found

    def _ours(self, steps: list[Any], kernel: str | None) -> Ours:
        """Our calls; one decoder and one plan, as all layers of a step share it."""
        choice = self.choice(steps[0].shape, kernel)
        shape = self.kernels.Shape(**steps[0].shape)
        decoder = self.kernels.Decoder(shape, "cuda", len(steps[0].lengths), choice=choice)
        plan = lambda: decoder.plan(steps[0].lengths, steps[0].table)  # noqa: E731
        plan()

        def call(s: Any, out: Any, lse: Any) -> Call:
            return lambda: decoder(s.q, s.cache, s.table, s.lengths, SCALE, out, lse, s.scale)

        calls = [call(step, *step.result()) for step in steps]
        return Ours(kernel=choice.kernel, calls=calls, plan=plan)

    def choice(self, shape: dict[str, Any], kernel: str | None) -> Any:
        """What serves a shape, of one kernel where that does, else the one that is chosen."""
        card = self.kernels.Card.of(self.torch.device("cuda"))
        made = self.kernels.Shape(**shape)
        fitting = self.kernels.choices(made, card.capability, card.shared_memory)
        wanted = [choice for choice in fitting if choice.kernel == (kernel or choice.kernel)]
        return (wanted or fitting)[0]

    def _wrong(self, subject: Subject) -> list[str]:
        """What is wrong with the first call's results, in the first and the last request."""
        from tests.mla import cases

        out, lse = subject.calls[0]()
        some = sorted({0, len(subject.step.lengths) - 1})
        want, want_lse = cases.truth(self.kernels.reference, subject.step.of(some))
        return cases.faults(out[some], want_lse if lse is None else lse[some], want, want_lse)


def _told(error: Exception) -> str:
    return f"{type(error).__name__}: {str(error)[:200]}"
