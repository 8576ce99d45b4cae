"""Requests drawn by schemathesis from the server's own description; none of them may give a 5xx."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

import schemathesis
from hypothesis import HealthCheck, Phase, given, seed, settings

Outcome = tuple[int, str]


def tried(asked: Mapping[str, Any], key: str) -> tuple[str, str, int]:
    """What was looked at, what was wrong, and how many requests that took."""
    headers = {"authorization": f"Bearer {key}"}
    schema = schemathesis.openapi.from_url(
        f"{asked['url']}/openapi.json", headers=headers, timeout=asked["timeout"]
    )
    operations = [each.ok() for each in schema.get_all_operations()]
    chosen = [one for one in operations if one.path in asked["operations"]]
    seen, wrong, share = 0, [], asked["budget"] // max(1, len(chosen))
    for operation in chosen:
        outcomes = list(_outcomes(operation, asked, headers, min(asked["examples"], share)))
        seen += len(outcomes)
        bad = [words for status, words in outcomes if status >= 500 or status == 0]
        wrong += (
            [f"{operation.method.upper()} {operation.path}: {bad[0]} ({len(bad)} such)"]
            if bad
            else []
        )
    return f"{seen} requests drawn for {len(chosen)} operations", "; ".join(wrong), seen + 1


def _outcomes(
    operation: Any, asked: Mapping[str, Any], headers: Mapping[str, str], count: int
) -> Iterator[Outcome]:
    found: list[Outcome] = []

    @seed(1)
    @settings(
        max_examples=count,
        deadline=None,
        database=None,
        phases=[Phase.generate],
        suppress_health_check=list(HealthCheck),
    )
    @given(case=operation.as_strategy())
    def draw(case: Any) -> None:
        if len(found) >= count:
            return
        _bounded(case, asked["model"])
        try:
            answer = case.call(headers=dict(headers), timeout=asked["timeout"])
        except Exception as error:
            found.append((0, f"no answer: {type(error).__name__}"))
            return
        found.append((answer.status_code, f"{answer.status_code} for {_short(case.body)}"))

    if count > 0:
        draw()
    yield from found


def _bounded(case: Any, model: str) -> None:
    """Ask the model that is there, and for little."""
    if isinstance(case.body, dict):
        case.body["model"] = model
        for name in ("max_tokens", "max_completion_tokens", "n", "best_of", "min_tokens"):
            if isinstance(case.body.get(name), int) and case.body[name] > 2:
                case.body[name] = 2
        case.body.pop("ignore_eos", None)


def _short(body: Any) -> str:
    text = repr(body)
    return text if len(text) < 200 else f"{text[:200]}…"
