"""Streams: well formed, joined equal to the whole answer, ended once and for the right reason."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from dspatch.conformance.api.said import Said
from dspatch.conformance.api.server import STRANGE, RefusedError, Server, path
from dspatch.conformance.api.verdict import Looked, Verdict, not_shown

SAMPLED = {"temperature": 1.0, "top_p": 0.95, "seed": 11}
CONSTANT = ("id", "model", "object")


def bodies(server: Server, **given: Any) -> Iterator[tuple[str, dict[str, Any]]]:
    """The two kinds of request that a server may know."""
    yield "chat", server.chat(**given)
    yield "completion", server.text(**given)


def models(server: Server) -> Verdict:
    """/v1/models lists what is served, the model under check among it."""
    looked = Looked(what="listed models")
    answer = server.wire.get("/v1/models")
    rows = answer.field("data")
    if answer.status != 200 or not isinstance(rows, list):
        looked.at(f"no list of models: {answer.told()}")
        return looked.verdict()
    for row in rows:
        known = isinstance(row, dict) and isinstance(row.get("id"), str)
        looked.at("" if known else f"a model without an id: {str(row)[:80]}")
    if server.model not in [row.get("id") for row in rows if isinstance(row, dict)]:
        looked.at(f"{server.model} is not listed")
    return looked.verdict()


def plain(server: Server) -> Verdict:
    """Chats, completions, or both answer a plain request."""
    looked = Looked(what="kinds of request that are answered")
    for _ in asked(server):
        looked.at("")
    offers = server.facts["offers"].items()
    refusals = [f"{name}s: {why}" for name, why in offers if why is not True]
    if not looked.times:
        looked.at("; ".join(refusals))
    return looked.verdict("; ".join(refusals))


def form(server: Server) -> Verdict:
    """Every event is JSON, [DONE] is last and said once, and id and model stay."""
    looked = Looked(what="streams")
    for name, body in asked(server):
        said = server.streamed(body)
        changed = [key for key in CONSTANT if len({str(o.get(key)) for o in said.objects}) > 1]
        faults = [*said.faults, *(f"{key} changes within a stream" for key in changed)]
        if name == "chat":
            faults += _role(said)
        looked.at("; ".join(faults[:3]), name)
    return looked.verdict()


def _role(said: Said) -> list[str]:
    first: Mapping[str, Any] = next((o["choices"][0] for o in said.objects if o["choices"]), {})
    role = (first.get("delta") or {}).get("role")
    return [] if role == "assistant" else [f"the first delta has the role {role!r}"]


def asked(server: Server, **given: Any) -> Iterator[tuple[str, Mapping[str, Any]]]:
    """The kinds of request that the server takes; others are noted as not offered."""
    offered = server.facts.setdefault("offers", {})
    for name, body in bodies(server, **given):
        if name not in offered:
            offered[name] = _offered(server, body)
        if offered[name] is True:
            yield name, body


def _offered(server: Server, body: Mapping[str, Any]) -> bool | str:
    try:
        server.whole({**body, "max_tokens": 1})
    except RefusedError as error:
        if error.answer.status >= 500:
            raise
        return f"{path(body)} refuses a plain request: {error}"
    return True


def join_greedy(server: Server) -> Verdict:
    """The pieces of a greedy stream make the whole answer."""
    looked = Looked(what="greedy streams against whole answers")
    for limit in (1, 24, 60):
        for name, body in asked(server, max_tokens=limit):
            _compare(server, looked, f"{name} of {limit}", body)
    for _, body in asked(server, max_tokens=200):
        if "messages" in body:
            strange = server.chat(STRANGE, max_tokens=64)
            _compare(server, looked, "chat with other scripts", strange)
    return looked.verdict(_excused(server))


def join_sampled(server: Server) -> Verdict:
    """The pieces of a sampled stream with a seed make the whole answer with that seed."""
    looked = Looked(what="seeded streams against whole answers")
    for name, body in asked(server, **SAMPLED):
        first, second = server.whole(body).only, server.whole(body).only
        if (first.text, first.reasoning) != (second.text, second.reasoning):
            return not_shown(
                f"{name}: the same seed gives other text, so a stream cannot be compared"
            )
        _compare(server, looked, name, body)
    return looked.verdict()


def _compare(server: Server, looked: Looked, name: str, body: Mapping[str, Any]) -> None:
    whole, streamed = server.whole(body), server.streamed(body)
    looked.at(server.differ(body, whole.only, streamed.only), name)


def _excused(server: Server) -> str:
    count = server.facts.get("excused", 0)
    return (
        f"{count} excused: the model preferred its token by less than {server.margin:g} nats"
        if count
        else ""
    )


def finish_once(server: Server) -> Verdict:
    """Each choice ends once, and nothing comes after its finish_reason."""
    looked = Looked(what="choices")
    for name, body in asked(server, n=2, temperature=0.5, seed=3):
        for said in (server.whole(body), server.streamed(body)):
            for choice in said.choices:
                count = len(choice.finishes)
                looked.at("" if count == 1 else f"{count} finish_reasons", f"{name} {choice.index}")
            looked.at(_after_finish(said), name)
    return looked.verdict()


def _after_finish(said: Said) -> str:
    ended: set[int] = set()
    for value in said.objects:
        for choice in value["choices"]:
            delta = choice.get("delta") or {}
            speaks = choice.get("text") or delta.get("content") or delta.get("tool_calls")
            if choice["index"] in ended and speaks:
                return "words come after the finish_reason"
            ended |= {choice["index"]} if choice.get("finish_reason") else set()
    return ""


def finish_right(server: Server) -> Verdict:
    """`length` where max_tokens cut the answer, `stop` where a stop string or the model's end did."""
    looked = Looked(what="endings")
    for name, body in asked(server, max_tokens=4):
        whole, streamed = server.whole(body).only, server.streamed(body).only
        for choice in (whole, streamed):
            looked.at(_ended(choice.finish, "length"), f"{name} cut by max_tokens")
        for choice in _stopped(server, body, whole.text):
            looked.at(_ended(choice.finish, "stop"), f"{name} cut by a stop string")
        if server.own and name == "chat":
            whole = server.whole({**body, "max_tokens": 200}).only
            looked.at(_ended(whole.finish, "stop"), "chat to its own end")
    return looked.verdict()


def _stopped(server: Server, body: Mapping[str, Any], text: str) -> Iterator[Any]:
    if mark := text.strip()[-2:]:
        stopping = {**body, "stop": [mark], "max_tokens": 60}
        yield from (server.whole(stopping).only, server.streamed(stopping).only)


def _ended(found: str | None, expected: str) -> str:
    return "" if found == expected else f"finish_reason is {found}, not {expected}"
