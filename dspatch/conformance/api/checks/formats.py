"""The output format: each answer has the fields and each stream the chunks that its file says."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from dspatch.conformance.api import formatted
from dspatch.conformance.api.checks.answers import asked
from dspatch.conformance.api.checks.parsed import TOOLS, WEATHER
from dspatch.conformance.api.formatted import Held
from dspatch.conformance.api.server import THINKING, RefusedError, Server
from dspatch.conformance.api.verdict import Looked, Verdict
from dspatch.outputformat import CHUNK, OutputFormat

KINDS = {"chat": "chat.completion", "completion": "text_completion"}


def whole(server: Server) -> Verdict:
    """Answers in one piece have the fields that the output format says."""
    looked, held = Looked(what="answers in the format"), Held()
    for name, body in _bodies(server, ""):
        objects, faults = server.received(body)
        _fields(server, objects, held, streamed=False)
        looked.at("; ".join([*faults, *held.faults][:3]), name)
        held.faults.clear()
    return looked.verdict(_unseen(server, held, ""))


def streamed(server: Server) -> Verdict:
    """Chunks have the fields, and streams the shape, that the output format says."""
    looked, held = Looked(what="streams in the format"), Held()
    for name, body in _bodies(server, CHUNK):
        objects, faults = server.received({**body, "stream": True})
        _fields(server, objects, held, streamed=True)
        rules = formatted.rules_of(_format(server), objects[0] if objects else {}, streamed=True)
        found = [*faults, *formatted.shape(objects, rules), *held.faults]
        looked.at("; ".join(dict.fromkeys(found[:9])), name)
        held.faults.clear()
    return looked.verdict(_unseen(server, held, CHUNK))


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


def _fields(
    server: Server, objects: Sequence[Mapping[str, Any]], held: Held, *, streamed: bool
) -> None:
    for value in objects:
        rules = formatted.rules_of(_format(server), value, streamed=streamed)
        formatted.fields(value, rules, held)


def _unseen(server: Server, held: Held, suffix: str) -> str:
    """The fields that rules make and no answer had: nothing was shown of them."""
    rules = [_format(server).rules(kind + suffix) for kind in KINDS.values()]
    made = {path for one in rules for path in (*one.rename, *one.copy, *one.add)}
    unseen = sorted(made - held.seen)
    return f"in no answer, so not shown: {', '.join(unseen)}" if unseen else ""
