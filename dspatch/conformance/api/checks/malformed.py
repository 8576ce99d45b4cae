"""Wrong requests: refused with a message, and the server lives on and answers as before."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from dspatch.conformance.api.checks.answers import asked
from dspatch.conformance.api.server import CHAT, TEXT, RefusedError, Server
from dspatch.conformance.api.verdict import Looked, Verdict, not_shown
from dspatch.conformance.api.wire import Answer, GoneError
from dspatch.errors import ConformanceError
from dspatch.paths import PACKAGE
from dspatch.tomlfile import load

LONGEST = 1 << 20  # characters of a prompt that is too long for the model


def cases() -> list[Mapping[str, Any]]:
    """The wrong requests, from malformed.toml."""
    found: list[Mapping[str, Any]] = load(
        PACKAGE / "conformance" / "api" / "malformed.toml", ConformanceError
    ).data["case"]
    return found


def refused(server: Server) -> Verdict:
    """A wrong request gets a status of 400 to 499 and a message in JSON; none gets a 5xx."""
    _keep(server)
    looked = Looked(what="wrong requests")
    for name, where, body, must in _requests(server):
        try:
            answer = server.wire.post(where, body)
        except GoneError as error:
            looked.at(f"no answer: {error}", name)
            if server.wire.get("/v1/models").status != 200:
                break
            continue
        looked.at(judged(answer, must), name)
    return looked.verdict()


def _requests(server: Server) -> Iterator[tuple[str, str, Any, str]]:
    plain = {CHAT: server.chat(max_tokens=2), TEXT: server.text(max_tokens=2)}
    kinds = {CHAT: "chat", TEXT: "completion"}
    offered = dict(asked(server))
    for case in cases():
        where = case.get("path", CHAT)
        if kinds[where] in offered:
            yield case["name"], where, _body(case, plain[where], server.model), case["must"]
    if server.context and 4 * server.context <= LONGEST:
        # Beyond the context for any tokenizer that has no token of more than 32 letters.
        words = "x y " * (8 * server.context)
        if "chat" in offered:
            yield "a chat longer than the context", CHAT, server.chat(words), "refuse"
        if "completion" in offered:
            yield "a prompt longer than the context", TEXT, server.text(words), "refuse"


def _body(case: Mapping[str, Any], plain: Mapping[str, Any], model: str) -> Any:
    if "raw" not in case:
        changed = {**plain, **case.get("set", {})}
        changed.pop(case.get("drop", ""), None)
        return changed
    text = case["raw"].replace("MODEL", model)
    if "repeat" in case:
        piece, count = case["repeat"]
        text = text.replace("{}", piece * count)
    if "nest" in case:
        text = text.replace("{}", '{"a": ' * case["nest"] + "1" + "}" * case["nest"])
    return text.encode()


def judged(answer: Answer, must: str) -> str:
    """What is wrong with the answer to a wrong request; empty when nothing is."""
    if answer.status >= 500:
        return answer.told(100)
    if answer.status < 400:
        return f"it is accepted with {answer.status}" if must == "refuse" else ""
    return (
        "" if message(answer) else f"{answer.status} without a message in JSON: {answer.told(60)}"
    )


def message(answer: Answer) -> str:
    """The words of an error, where the API has them or where frameworks put them."""
    value = answer.value
    if not isinstance(value, dict):
        return ""
    error = value.get("error")
    inner = error.get("message") if isinstance(error, dict) else error
    return str(inner or value.get("message") or value.get("detail") or "")


def alive(server: Server) -> Verdict:
    """After all wrong requests, greedy answers are what they were."""
    looked = Looked(what="answers before and after wrong requests")
    before = server.facts.get("before")
    if not before:
        return not_shown("no answer was kept from before")
    for name, body in asked(server, max_tokens=12):
        if name in before:
            looked.at(server.differ(body, before[name], server.whole(body).only), name)
    return looked.verdict()


def _keep(server: Server) -> None:
    """Keep greedy answers from before the wrong requests, for `alive`."""
    kept = {name: server.whole(body).only for name, body in asked(server, max_tokens=12)}
    server.facts["before"] = kept


def unknown(server: Server) -> Verdict:
    """A field that nobody knows is ignored, or refused with a message; never half of it."""
    looked = Looked(what="requests with an unknown field")
    policy = set()
    for name, body in asked(server, max_tokens=8):
        try:
            other = server.whole({**body, "x_nobody_knows": {"a": [1, None]}}).only
        except RefusedError as error:
            policy.add("refused")
            looked.at(judged(error.answer, "refuse"), name)
            continue
        policy.add("ignored")
        looked.at(server.differ(body, server.whole(body).only, other), name)
    return looked.verdict(f"unknown fields are {' or '.join(sorted(policy))}" if policy else "")
