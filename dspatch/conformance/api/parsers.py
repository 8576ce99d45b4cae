"""An engine's parsers on texts cut in every way: the stream's join must be the whole parse, and right."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from dspatch import engines
from dspatch.conformance.api import texts
from dspatch.conformance.api.texts import Text
from dspatch.conformance.api.verdict import ApiResult, Verdict, row
from dspatch.conformance.report import Status
from dspatch.engines import worker
from dspatch.errors import ProcessError
from dspatch.paths import PACKAGE

WORKER = PACKAGE / "engines" / "workers" / "parser_worker"
RANDOM = 16  # random ways of cutting a text, beside the systematic ones
RULE = "However a text is cut, the stream joins to the whole parse, and both are right"
TIMEOUT = 900.0


def check(python: Path, tokenizer: Path, model: str, progress: engines.Progress) -> list[ApiResult]:
    """A result for each parser of the engine that `python` has; `tokenizer` is a folder with one."""
    chosen = texts.every()
    progress(f"parsers: {len(chosen)} texts, each cut in every way")
    try:
        found = _asked(python, tokenizer, chosen)
    except ProcessError as error:
        last = (error.why or error.what).splitlines()[-1]
        found = [{"error": last} for _ in chosen]
    names = dict.fromkeys(text.check for text in chosen)
    pairs = list(zip(chosen, found, strict=True))
    return [result(name, model, [p for p in pairs if p[0].check == name]) for name in names]


def _asked(python: Path, tokenizer: Path, chosen: Sequence[Text]) -> list[Mapping[str, Any]]:
    cases = [text.task() for text in chosen]
    asked = {"tokenizer": str(tokenizer), "cases": cases, "random": RANDOM}
    found: list[Mapping[str, Any]] = worker.ask(python, WORKER, asked, timeout=TIMEOUT)
    return found


def result(name: str, model: str, pairs: Sequence[tuple[Text, Mapping[str, Any]]]) -> ApiResult:
    """The result of one parser, from its texts and what the worker found of each."""
    errors = [found["error"] for _, found in pairs if "error" in found]
    tried = [(text, found) for text, found in pairs if "error" not in found]
    ways = sum(found["tried"] for _, found in tried)
    wrong = [*errors, *_whole(tried), *_cut(tried)]
    status: Status = "fail" if wrong else "pass"
    if errors and not tried:
        status, wrong = "not-shown", [f"the parser could not be run: {errors[0]}"]
    evidence = f"{len(tried)} texts, cut in {ways} ways"
    verdict = Verdict(status=status, evidence=evidence, reason="; ".join(wrong))
    return row(name, RULE, model, verdict)


def _whole(tried: Sequence[tuple[Text, Mapping[str, Any]]]) -> Iterator[str]:
    """What the parser makes of whole texts and should not."""
    for text, found in tried:
        if fault := untrue(text, found["whole"]):
            yield f"{text.name}: {fault}"


def _cut(tried: Sequence[tuple[Text, Mapping[str, Any]]]) -> Iterator[str]:
    """How many streams are not the whole parse, and the first of them."""
    other = [(text, found) for text, found in tried if found["different"]]
    if not other:
        return
    single = [text.name for text, found in other if not found["single"]]
    by_token = f"token by token {', '.join(single)}" if single else "none of them token by token"
    ways = sum(found["different"] for _, found in other)
    text, found = other[0]
    first = found["first"][0]
    yield (
        f"{len(other)} texts stream as something else in {ways} ways, {by_token}; {text.name}:"
        f" {_parting(found['whole'], first['said'])} when cut as {' | '.join(first['pieces'])[-110:]!r}"
    )


def untrue(text: Text, said: Mapping[str, Any]) -> str:
    """How a parse is not what the text means; empty when it is."""
    if said["reasoning"] != text.reasoning:
        return f"reasoning is {said['reasoning'][:40]!r}, not {text.reasoning[:40]!r}"
    calls = [(name, _value(arguments)) for name, arguments in said["calls"]]
    if calls != list(text.calls):
        return f"the calls are {said['calls']}, not {[list(call) for call in text.calls]}"
    if said["content"].strip() != text.content.strip():
        return f"content is {said['content'][:40]!r}, not {text.content[:40]!r}"
    return ""


def _value(arguments: str) -> Any:
    try:
        return json.loads(arguments, strict=False)
    except ValueError:
        return arguments


def _parting(whole: Mapping[str, Any], said: Mapping[str, Any]) -> str:
    part = next(part for part in ("reasoning", "calls", "content") if whole[part] != said[part])
    return f"{part} {said[part]!r} for {whole[part]!r}"
