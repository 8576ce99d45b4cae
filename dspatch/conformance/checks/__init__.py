"""The checks: one function each, by the name that reports and tolerance.toml use."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from inspect import signature
from typing import Any

from dspatch.conformance import refused as refusals
from dspatch.conformance import tolerance
from dspatch.conformance.checks import cache, golden, greedy, indexer, inside, probes, weights
from dspatch.conformance.checks.seen import Seen, Verdict
from dspatch.conformance.report import CheckResult, Status

Check = Callable[..., Verdict]

CHECKS: dict[str, Check] = {
    "oracle.sane": golden.sane,
    "weights.coverage": weights.coverage,
    "weights.values": weights.values,
    "weights.quantised": weights.quantised,
    "golden.fp32": golden.fp32,
    "golden.routes": golden.routes,
    "indexer.choices": indexer.choices,
    "layers.local": probes.layers,
    "layers.ladder": probes.ladder,
    "layers.inside": inside.operations,
    "routes.replayed": probes.replayed,
    "kernels.route": probes.routers,
    "kernels.quantised": probes.products,
    "rope.table": probes.rotation,
    "logits.kl": golden.divergence,
    "logits.topk": golden.best,
    "greedy.forced": greedy.forced,
    "decode.paged": cache.decode,
    "decode.late": probes.late,
    "decode.scored": cache.scored,
    "longctx.passkey": probes.passkey,
    "inv.selfkl": probes.selfkl,
    "sampling.distribution": probes.distribution,
    "sampling.seed": probes.seeds,
    "prefill.chunked": cache.chunked,
    "prefix.hit": cache.prefix,
    "batch.mixed": cache.batch,
    "cache.latent": cache.latent,
}


# Checks that a model without this key in its config has nothing to show to.
NEEDS = {
    "indexer.choices": "index_topk",
    "weights.quantised": "stored",
    "kernels.quantised": "stored",
    "longctx.passkey": "passkey",
}


# And those that one with this key is not asked for.
UNLESS = {"sampling.distribution": "stored", "sampling.seed": "stored"}
# Of engines that read prompts by requests of their own: what comes after one of these.
READS_APART = ("decode.scored",)
# What no prompt has a part in: of one load each says one thing.
OF_LOAD = (
    "weights.coverage",
    "weights.values",
    "weights.quantised",
    "kernels.route",
    "kernels.quantised",
    "rope.table",
    "cache.latent",
)
# All that a model whose weights were made by hand is held to: its layers and experts say nothing else.
BY_HAND = ("weights.coverage", "weights.values", "rope.table", "longctx.passkey")


def fitting(
    config: Mapping[str, Any], names: Sequence[str] = (), *, reads_apart: bool = False
) -> list[str]:
    """The named checks, or all, that a model with this config can be held to, and an engine of this kind."""
    known = BY_HAND if "passkey" in config else tuple(CHECKS)
    return [
        name
        for name in names or CHECKS
        if name in known
        and (reads_apart or name not in READS_APART)
        and (name not in NEEDS or NEEDS[name] in config)
        and UNLESS.get(name, "") not in config
    ]


def prompted(config: Mapping[str, Any]) -> list[str]:
    """The checks that other prompts say more about."""
    return [name for name in fitting(config, reads_apart=True) if name not in OF_LOAD]


def judge(seen: Seen, names: Sequence[str] = ()) -> list[CheckResult]:
    """The named checks, or all, on what was seen."""
    apart = bool(seen.facts.get("reads_apart"))
    return [_one(name, seen) for name in fitting(seen.config, names, reads_apart=apart)]


def engine(name: str, seen: Seen, status: Status, note: str) -> CheckResult:
    """What the engine itself did: `engine.start`, and `engine.run` where it stopped half way."""
    return CheckResult(check=name, variant=seen.variant, dtype=seen.dtype, status=status, note=note)


def refused(seen: Seen, why: str) -> list[CheckResult]:
    """The results of a model that the engine did not run: one failure, unless it refused with a reason."""
    rest = unshown(seen, "the engine did not run this model")
    if refusals.is_one(why):
        return [engine("engine.start", seen, "not-shown", f"{refusals.TOLD}{why}"), *rest]
    return [engine("engine.start", seen, "fail", why), *rest]


def unshown(seen: Seen, why: str) -> list[CheckResult]:
    """Every check of a model that nothing can be shown of."""
    return [engine(name, seen, "not-shown", why) for name in fitting(seen.config)]


def _one(name: str, seen: Seen) -> CheckResult:
    limit = tolerance.find(name, seen.dtype, seen.scale(name))
    value = math.inf if limit is None else limit.limit
    check = CHECKS[name]
    verdict = check(seen, value) if "limit" in signature(check).parameters else check(seen)
    if limit is None:
        return _unjudged(name, seen, verdict)
    return CheckResult(
        check=name,
        variant=seen.variant,
        dtype=seen.dtype,
        status=_status(verdict, limit.limit),
        measured=verdict.measured,
        tolerance=limit.limit,
        unit=limit.unit,
        note=verdict.unseen or verdict.note,
    )


def _unjudged(name: str, seen: Seen, verdict: Verdict) -> CheckResult:
    """A measure that nothing is held against: where nobody measured it fails, else it shows nothing."""
    usable = not (verdict.wrong or verdict.unseen)
    known = tolerance.row(name, seen.dtype, seen.scale(name))
    why = tolerance.why_none(name, seen.dtype, seen.scale(name))
    return CheckResult(
        check=name,
        variant=seen.variant,
        dtype=seen.dtype,
        status="fail" if known is None else "not-shown",
        measured=verdict.measured if usable else None,
        unit=known.unit if known else verdict.unit,
        note=why if usable else f"{why}; {verdict.unseen or verdict.note}",
    )


def _status(verdict: Verdict, limit: float) -> Status:
    if verdict.unseen:
        return "not-shown"
    # Written so that NaN fails.
    within = verdict.measured is not None and verdict.measured <= limit
    return "pass" if within and not verdict.wrong else "fail"
