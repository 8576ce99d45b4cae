"""What an engine's loaders did with a published checkpoint's names, as verdicts."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Mapping, Sequence
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
    loads = {"main": found["main"], "draft": found["draft"]}
    refusals = [
        f"{which}: {load['refused']}" for which, load in loads.items() if load and "refused" in load
    ]
    if refusals:
        return [
            _result(case, "engine.start", "fail", note="; ".join(refusals)),
            *(_unshown(case, check) for check in CHECKS),
        ]
    return [_taken(case, loads), _filled(case, loads), _fused(case, found), _staged(case, found)]


def _taken(case: Published, loads: Mapping[str, Any]) -> CheckResult:
    main = set(loads["main"]["consumed"])
    draft = set(loads["draft"]["consumed"]) if loads["draft"] else set()
    ahead = {name for name in case.tensors if _ahead(name, case.config)}
    settled = main | draft | (set() if loads["draft"] else ahead)
    wrong = {
        "taken by none": [n for n in case.tensors if n not in settled],
        "taken by both": sorted(main & draft - SHARED),
        "of prediction layers, taken by the main model": sorted(main & ahead),
        "of the main model, taken by the draft": sorted(draft - ahead - SHARED),
    }
    said = f"{len(case.tensors)} names: the main model takes {len(main)}"
    if loads["draft"]:
        said += f", the draft {len(draft)}, {len(main & draft)} of them both"
    elif ahead:
        said += f" and skips {len(ahead)} of prediction layers, for which this release has no model"
    errors = [each["error"] for each in loads.values() if each and each["error"]]
    return _verdict(case, "names.taken", wrong, "names", said, errors)


def _filled(case: Published, loads: Mapping[str, Any]) -> CheckResult:
    wrong = {
        f"of the {which} not filled exactly": [
            f"{name} ({told['got']} of {told['size']})" for name, told in _unfit(load).items()
        ]
        for which, load in loads.items()
        if load
    }
    whole = " and ".join(
        f"{load['parameters']} parameters of the {which} with {load['elements']} elements"
        for which, load in loads.items()
        if load
    )
    return _verdict(case, "names.filled", wrong, "parameters", whole, [])


def _unfit(load: Mapping[str, Any]) -> dict[str, Any]:
    """Parameters that got too much or too little, but for a shared table that was written twice."""
    return {
        name: told
        for name, told in load["unfit"].items()
        if not (told["got"] == len(told["of"]) * told["size"] and SHARED & set(told["of"]))
    }


def _fused(case: Published, found: Mapping[str, Any]) -> CheckResult:
    """Whether the same holds with shared experts among the routed ones, as ROCm's kernels take them."""
    loads = found["fused"]
    if loads is None:
        return _unshown(case, "names.fused", NO_FUSION)
    made = [load for load in loads.values() if load]
    if reasons := [load["refused"] for load in made if "refused" in load]:
        return _unshown(case, "names.fused", reasons[0])
    took, before = _all(loads), _all({"main": found["main"], "draft": found["draft"]})
    wrong = {
        "taken by none": sorted(before - took),
        "not filled exactly": [name for load in made for name in _unfit(load)],
    }
    said = f"{len(took)} names with the shared experts among the routed ones"
    errors = [load["error"] for load in made if load["error"]]
    return _verdict(case, "names.fused", wrong, "names", said, errors)


def _all(loads: Mapping[str, Any]) -> set[str]:
    return {name for load in loads.values() if load for name in load["consumed"]}


def _staged(case: Published, found: Mapping[str, Any]) -> CheckResult:
    stages = found["stages"]
    reasons = [stage["refused"] for stage in stages if "refused" in stage] or [NO_STAGES]
    if not stages or reasons != [NO_STAGES]:
        return _unshown(case, "names.stages", "; ".join(dict.fromkeys(filter(None, reasons))))
    counted = Counter(name for stage in stages for name in stage["consumed"])
    main = set(found["main"]["consumed"])
    wrong = {
        "taken by no stage": sorted(main - counted.keys()),
        "taken by several": sorted(
            n for n, times in counted.items() if times > 1 and n not in SHARED
        ),
        "not the main model's": sorted(counted.keys() - main),
        "not filled exactly": [name for stage in stages for name in _unfit(stage)],
    }
    said = f"{len(stages)} stages: " + " and ".join(str(len(stage["consumed"])) for stage in stages)
    errors = [stage["error"] for stage in stages if stage["error"]]
    return _verdict(case, "names.stages", wrong, "names", said, errors)


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
