"""What an engine's loaders did with a published checkpoint's names, as verdicts."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from dspatch.conformance.published import Published
from dspatch.conformance.report import CheckResult, Status

DTYPE = "bfloat16"
LAYER = re.compile(r"model\.layers\.(\d+)\.")
CHECKS = ("names.taken", "names.filled", "names.fused", "names.stages")
# What the main model and the one that drafts for it may both take: they are one table in use.
SHARED = frozenset({"model.embed_tokens.weight", "lm_head.weight"})
SHOWN = 3
NO_FUSION = "this release puts no shared experts among the routed ones"
NO_STAGES = "this release divides no model among stages"


def judged(case: Published, found: Mapping[str, Any]) -> list[CheckResult]:
    """The verdicts on one checkpoint, as the worker loaded it."""
    loads = _made(found)
    if refusals := [
        f"{which}: {load['refused']}" for which, load in loads.items() if "refused" in load
    ]:
        return [
            _result(case, "engine.start", "fail", note="; ".join(refusals)),
            *(_unshown(case, check) for check in CHECKS),
        ]
    return [
        _taken(case, loads),
        _filled(case, loads),
        _fused(case, loads, found["fused"]),
        _staged(case, loads["main"], found["stages"]),
    ]


def _made(found: Mapping[str, Any]) -> dict[str, Any]:
    """The loads of the main model, and of the draft where there is one."""
    return {which: found[which] for which in ("main", "draft") if found[which]}


def _taken(case: Published, loads: Mapping[str, Any]) -> CheckResult:
    main = set(loads["main"]["consumed"])
    draft = set(loads["draft"]["consumed"]) if "draft" in loads else set()
    ahead = {name for name in case.tensors if _ahead(name, case.config)}
    settled = main | draft | (set() if "draft" in loads else ahead)
    wrong = {
        "taken by none": [n for n in case.tensors if n not in settled],
        "taken by both": sorted(main & draft - SHARED),
        "of prediction layers, taken by the main model": sorted(main & ahead),
        "of the main model, taken by the draft": sorted(draft - ahead - SHARED),
    }
    said = f"{len(case.tensors)} names: the main model takes {len(main)}"
    if "draft" in loads:
        said += f", the draft {len(draft)}, {len(main & draft)} of them both"
    elif ahead:
        said += f" and skips {len(ahead)} of prediction layers, for which this release has no model"
    return _verdict(case, "names.taken", wrong, "names", said, _errors(loads.values()))


def _filled(case: Published, loads: Mapping[str, Any]) -> CheckResult:
    wrong = {
        f"of the {which} not filled exactly": [
            f"{name} ({told['got']} of {told['size']})" for name, told in _unfit(load).items()
        ]
        for which, load in loads.items()
    }
    whole = " and ".join(
        f"{load['parameters']} parameters of the {which} with {load['elements']} elements"
        for which, load in loads.items()
    )
    return _verdict(case, "names.filled", wrong, "parameters", whole, [])


def _unfit(load: Mapping[str, Any]) -> dict[str, Any]:
    """Parameters that got too much or too little, but for a shared table that was written twice."""
    return {
        name: told
        for name, told in load["unfit"].items()
        if not (told["got"] == len(told["of"]) * told["size"] and SHARED & set(told["of"]))
    }


def _fused(
    case: Published, loads: Mapping[str, Any], found: Mapping[str, Any] | None
) -> CheckResult:
    """Whether the same holds with shared experts among the routed ones, as ROCm's kernels take them."""
    if found is None:
        return _unshown(case, "names.fused", NO_FUSION)
    fused = _made(found)
    if reasons := [load["refused"] for load in fused.values() if "refused" in load]:
        return _unshown(case, "names.fused", reasons[0])
    took, before = _all(fused), _all(loads)
    wrong = {
        "taken by none": sorted(before - took),
        "not filled exactly": [name for load in fused.values() for name in _unfit(load)],
    }
    said = f"{len(took)} names with the shared experts among the routed ones"
    return _verdict(case, "names.fused", wrong, "names", said, _errors(fused.values()))


def _all(loads: Mapping[str, Any]) -> set[str]:
    return {name for load in loads.values() for name in load["consumed"]}


def _errors(loads: Iterable[Mapping[str, Any]]) -> list[str]:
    return [load["error"] for load in loads if load["error"]]


def _staged(
    case: Published, main: Mapping[str, Any], stages: Sequence[Mapping[str, Any]]
) -> CheckResult:
    reasons = [stage["refused"] for stage in stages if "refused" in stage]
    if reasons or not stages:
        return _unshown(case, "names.stages", "; ".join(dict.fromkeys(reasons)) or NO_STAGES)
    counted = Counter(name for stage in stages for name in stage["consumed"])
    whole = set(main["consumed"])
    wrong = {
        "taken by no stage": sorted(whole - counted.keys()),
        "taken by several": sorted(
            n for n, times in counted.items() if times > 1 and n not in SHARED
        ),
        "not the main model's": sorted(counted.keys() - whole),
        "not filled exactly": [name for stage in stages for name in _unfit(stage)],
    }
    said = f"{len(stages)} stages: " + " and ".join(str(len(stage["consumed"])) for stage in stages)
    return _verdict(case, "names.stages", wrong, "names", said, _errors(stages))


def _ahead(name: str, config: Mapping[str, Any]) -> bool:
    layer = LAYER.match(name)
    return layer is not None and int(layer[1]) >= config["num_hidden_layers"]


def _verdict(
    case: Published,
    check: str,
    wrong: Mapping[str, Sequence[str]],
    unit: str,
    said: str,
    errors: Sequence[str],
) -> CheckResult:
    count = sum(map(len, wrong.values())) + len(errors)
    told = [*errors, *(f"{what}: {_some(names)}" for what, names in wrong.items() if names)]
    return _result(
        case,
        check,
        "fail" if count else "pass",
        measured=count,
        tolerance=0,
        unit=unit,
        note="; ".join(told) or said,
    )


def _some(names: Sequence[str]) -> str:
    rest = len(names) - SHOWN
    return ", ".join(names[:SHOWN]) + (f" and {rest} more" if rest > 0 else "")


def _unshown(case: Published, check: str, why: str = "") -> CheckResult:
    return _result(case, check, "not-shown", note=why or "the engine did not make this model")


def _result(case: Published, check: str, status: Status, **more: Any) -> CheckResult:
    return CheckResult(check=check, variant=case.name, dtype=DTYPE, status=status, **more)
