"""Several clients: mixed requests at once answer as alone, and one that leaves frees its cache."""

from __future__ import annotations

import time
from collections.abc import Mapping
from concurrent.futures import ThreadPoolExecutor
from typing import Any

from dspatch.conformance.api import metrics
from dspatch.conformance.api.checks.answers import asked
from dspatch.conformance.api.said import Said
from dspatch.conformance.api.server import Server, path, said_to
from dspatch.conformance.api.verdict import Looked, Verdict, not_shown

AT_ONCE = 8
LONG = 300
PATIENCE = 15.0  # seconds until a request that was left must be gone


def together(server: Server) -> Verdict:
    """Requests of many kinds at once give what each gives alone."""
    looked = Looked(what=f"requests alone and {AT_ONCE} at once")
    bodies = _mixed(server)
    alone = [server.whole(body).only for body in bodies]
    with ThreadPoolExecutor(AT_ONCE) as pool:
        answers = list(pool.map(lambda pair: _ask(server, *pair), enumerate(bodies)))
    for body, one, other in zip(bodies, alone, answers, strict=True):
        looked.at(server.differ(body, one, other.only), path(body).rpartition("/")[2])
    return looked.verdict()


def _mixed(server: Server) -> list[Mapping[str, Any]]:
    prompts = ["A", "The sky is", "One, two, three, four, five", "x" * 90]
    found: list[Mapping[str, Any]] = []
    for number in range(AT_ONCE):
        prompt = f"{prompts[number % 4]}{number}"
        for _, body in asked(server, max_tokens=8 + 5 * number):
            found.append(said_to(body, prompt))
    return found


def _ask(server: Server, number: int, body: Mapping[str, Any]) -> Said:
    return server.streamed(body) if number % 2 else server.whole(body)


def abort(server: Server) -> Verdict:
    """A client that leaves a stream frees its place and its cache, long before the end."""
    before = metrics.read(server.wire)
    if before is None or before.running is None:
        return not_shown("the server offers no /metrics with running requests")
    if before.running:
        return not_shown(f"{before.running:g} requests of others run, so nothing can be told")
    body = next((body for _, body in reversed(list(asked(server, max_tokens=LONG)))), None)
    if body is None:
        return not_shown("neither chats nor completions are offered")
    looked = Looked(what="streams left after three events")
    for _ in range(2):
        looked.at(_left(server, body, before))
    return looked.verdict(
        f"running {before.running:g}, cache {before.cache if before.cache is not None else 'not told'} before and after"
    )


def _left(server: Server, body: Mapping[str, Any], before: metrics.Load) -> str:
    answer = server.wire.post(path(body), {**body, "stream": True}, leave_after=3)
    if not answer.cut:
        return f"the stream ended before it could be left: {answer.told(60)}"
    ends = time.monotonic() + PATIENCE
    while time.monotonic() < ends:
        now = metrics.read(server.wire)
        if now is not None and now.idle_as(before):
            return _worked(before, now)
        time.sleep(0.3)
    if now is None:
        return "/metrics stopped answering"
    return (
        f"after {PATIENCE:g} s: running {now.running}, cache {now.cache} (before: {before.cache})"
    )


def _worked(before: metrics.Load, now: metrics.Load) -> str:
    """Whether the server went on to the end for nobody."""
    if before.generated is None or now.generated is None:
        return ""
    spent = now.generated - before.generated
    before.generated = now.generated
    return f"it generated {spent:g} tokens for a client that had left" if spent >= LONG else ""
