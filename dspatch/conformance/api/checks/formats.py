"""The output format: each answer has the fields and each stream the chunks that its file says."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from dspatch.conformance.api import formatted
from dspatch.conformance.api.checks.answers import asked
from dspatch.conformance.api.checks.parsed import TOOLS, WEATHER
from dspatch.conformance.api.formatted import KINDS
from dspatch.conformance.api.server import THINKING, RefusedError, Server
from dspatch.conformance.api.verdict import Looked, Verdict
from dspatch.outputformat import CHUNK, OutputFormat, Rules

SHOWN = 9  # faults of one answer


def whole(server: Server) -> Verdict:
    """Answers in one piece have the fields that the output format says."""
    return _held(server, Looked(what="answers in the format"), streamed=False)


def streamed(server: Server) -> Verdict:
    """Chunks have the fields, and streams the shape, that the output format says."""
    return _held(server, Looked(what="streams in the format"), streamed=True)


def _held(server: Server, looked: Looked, *, streamed: bool) -> Verdict:
    suffix = CHUNK if streamed else ""
    seen: set[str] = set()
    for name, body in _bodies(server, suffix):
        objects, faults = server.received({**body, "stream": True} if streamed else body)
        rules = [formatted.rules_of(_format(server), one, streamed=streamed) for one in objects]
        found = [*faults]
        if streamed:
            found += formatted.shape(objects, rules[0] if rules else Rules())
        for pair in zip(objects, rules, strict=True):
            found += formatted.fields(*pair, seen)
        looked.at("; ".join([*dict.fromkeys(found)][:SHOWN]), name)
    return looked.verdict(_unseen(server, seen, suffix))


def _bodies(server: Server, suffix: str) -> Iterator[tuple[str, Mapping[str, Any]]]:
    """Requests whose answers show the fields of each kind that the format speaks of."""
    for name, body in asked(server):
        if KINDS[name] + suffix not in _format(server).objects:
            continue
        yield name, body
        yield f"{name} of two", {**body, "n": 2, "temperature": 0.5, "seed": 3}
        if name == "chat":
            yield "chat with reasoning", {**body, **THINKING, "max_tokens": 120}
            if _takes_tools(server):
                yield "chat with tools", server.chat(WEATHER, tools=TOOLS, max_tokens=200)
        if suffix:
            yield f"{name} with usage", {**body, "stream_options": {"include_usage": True}}


def _takes_tools(server: Server) -> bool:
    if "tools" not in server.facts:
        try:
            server.whole(server.chat(WEATHER, tools=TOOLS, max_tokens=1))
            server.facts["tools"] = True
        except RefusedError:
            server.facts["tools"] = False
    return bool(server.facts["tools"])


def _format(server: Server) -> OutputFormat:
    assert server.format is not None, "there is no format to look for"
    return server.format


def _unseen(server: Server, seen: set[str], suffix: str) -> str:
    """The fields that rules make and no answer had: nothing was shown of them."""
    rules = [_format(server).rules(kind + suffix) for kind in KINDS.values()]
    made = {path for one in rules for path in (*one.rename, *one.copy, *one.add)}
    unseen = sorted(made - seen)
    return f"in no answer, so not shown: {', '.join(unseen)}" if unseen else ""
