"""The first look at an address: an OpenAI-compatible server with its models, or what was found instead."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from typing import Any

from dspatch.conformance.api.server import Server
from dspatch.conformance.api.wire import Answer, GoneError, SpentError, Wire
from dspatch.errors import NotServedError, ServerError

TITLE = re.compile(rb"<title[^>]*>(.*?)</title>", re.S | re.I)


def address(url: str) -> str:
    """The base of an address, without `/v1`; `ServerError` for what is no address of HTTP."""
    import httpx2

    try:
        parsed = httpx2.URL(url)
    except httpx2.InvalidURL as error:
        raise _no_address(url, str(error)) from None
    if parsed.scheme not in ("http", "https") or not parsed.host:
        raise _no_address(url, "it is not http://host or https://host")
    if parsed.userinfo:
        raise _no_address(parsed.host, "it holds a user or a password, which reports would show")
    base = str(parsed.copy_with(query=None, fragment=None)).rstrip("/")
    return base.removesuffix("/v1")


def _no_address(url: str, why: str) -> ServerError:
    return ServerError(
        f"{url} is no address of a server.",
        why=why,
        next="give one like --url http://127.0.0.1:8000",
    )


def meet(wire: Wire, model: str | None) -> Server:
    """The server at the other end, with the model to check: the named one, or the first it lists.

    Raises `ServerError` when nobody answers, when it is no OpenAI-compatible server, or wants a key,
    and `NotServedError` for a model that it does not serve.
    """
    rows = _models(wire, _first(wire))
    names = [row["id"] for row in rows]
    chosen = names[0] if model is None else model
    if chosen not in names:
        raise NotServedError(
            f"{wire.base} does not serve {chosen}.",
            why=f"it serves {', '.join(names)}",
            next=f"--model {names[0]}",
        )
    row = next(row for row in rows if row["id"] == chosen)
    context = row.get("max_model_len")
    server = Server(wire=wire, model=chosen, context=context if isinstance(context, int) else None)
    server.facts["server"] = " ".join(
        filter(None, (str(row.get("owned_by") or ""), _version(wire)))
    )
    return server


def _version(wire: Wire) -> str:
    """What the server says of its version, where it says anything; the API knows no such question."""
    try:
        return str(wire.get("/version").field("version") or "")
    except (GoneError, SpentError):
        return ""


def _first(wire: Wire) -> Answer:
    try:
        return wire.get("/v1/models")
    except GoneError as error:
        raise ServerError(
            f"Nobody answers at {wire.base}.", why=str(error), next=_advice(str(error))
        ) from None


def _advice(why: str) -> str:
    lower = why.lower()
    if "certificate" in lower or "ssl" in lower:
        return "check https and the certificate (SSL_CERT_FILE names an authority of your own)"
    if "timeout" in lower:
        return "check that it is up, or wait longer: --timeout 300"
    return "check that it runs and listens there; `dspatch conformance --api` starts one itself"


def _models(wire: Wire, answer: Answer) -> Sequence[Mapping[str, Any]]:
    if answer.status in (401, 403):
        given = "the key that was given is not accepted" if wire.key else "it wants a key"
        raise ServerError(
            f"{wire.base} answers {answer.status}: {given}.",
            why=answer.told(),
            next="--api-key-env VAR names the variable that holds the key",
        )
    rows = answer.field("data")
    if answer.status != 200 or not isinstance(rows, list):
        raise ServerError(
            f"{wire.base} is no OpenAI-compatible server.",
            why=f"/v1/models gives {_found(answer)}",
            next="give the address without a path behind /v1",
        )
    named = [row for row in rows if isinstance(row, dict) and isinstance(row.get("id"), str)]
    if not named:
        raise ServerError(
            f"{wire.base} serves no model.",
            why=f"/v1/models lists {len(rows)}, none with an id",
            next="start it with a model",
        )
    return named


def _found(answer: Answer) -> str:
    """What came instead of a list of models, in words."""
    title = TITLE.search(answer.body)
    if title:
        words = " ".join(title[1].decode(errors="replace").split())
        return f"{answer.status} and a page titled {words[:80]!r}"
    if not answer.body:
        return f"{answer.status} and nothing"
    return f"{answer.kind or 'something'}, {answer.told(100)}"
