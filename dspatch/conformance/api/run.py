"""Run the checks of a server one after the other, and tell what was shown when it dies."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

from dspatch.conformance.api import checks, formatted
from dspatch.conformance.api.said import MalformedError
from dspatch.conformance.api.server import RefusedError, Server
from dspatch.conformance.api.verdict import ApiResult, Check, Verdict, not_shown, row
from dspatch.conformance.api.wire import GoneError, SpentError
from dspatch.conformance.report import Report
from dspatch.engines import Progress, silent


def check_server(
    server: Server, *, chosen: Sequence[Check] = (), progress: Progress = silent
) -> Report:
    """Every check on one server. One that dies fails the check that it dies in; the rest is not shown."""
    results = tuple(_results(server, chosen or fitting(server), progress))
    return Report(results=results, facts=facts(server))


def fitting(server: Server) -> Sequence[Check]:
    """The checks for a server: where it has an output format, those of the format too, soon."""
    if server.format is None:
        return checks.ALL
    return (*checks.ALL[:2], *checks.OF_FORMATS, *checks.ALL[2:])


def planned(server: Server) -> int:
    """The most requests that the checks may send."""
    return sum(check.requests for check in fitting(server))


def facts(server: Server) -> dict[str, Any]:
    """What is known about the server and the run."""
    offers = server.facts.get("offers", {})
    known = {
        "server": server.facts.get("server") or "says nothing of itself",
        "url": server.wire.base,
        "model": server.model,
        "context": server.context,
    }
    if server.format is not None:
        known["output format"] = server.format.name
    told = {f"{name}s": "yes" if value is True else value for name, value in offers.items()}
    return {
        **known,
        **told,
        "requests": server.wire.count,
        "excused by rounding": server.facts.get("excused", 0),
    }


def _results(server: Server, chosen: Sequence[Check], progress: Progress) -> Iterator[ApiResult]:
    dead = ""
    for check in chosen:
        progress(f"{check.id}: {check.what}")
        verdict = not_shown(dead) if dead else _looked(server, check)
        if verdict.status == "fail" and not dead and not _answers(server):
            dead = f"the server stopped answering during {check.id}"
            verdict = Verdict(
                status="fail",
                evidence=verdict.evidence,
                reason=f"the server stopped answering: {verdict.reason}",
            )
        yield row(check.id, check.what, server.model, verdict)


def _looked(server: Server, check: Check) -> Verdict:
    if server.format is not None and (gone := formatted.blind(check.id, server.format)):
        return not_shown(f"the output format drops {gone}")
    try:
        return check.look(server)
    except RefusedError as error:
        if error.answer.status < 500:
            return not_shown(f"the server refused what this check asks: {error}")
        return Verdict(status="fail", evidence="", reason=f"a plain request got {error}")
    except MalformedError as error:
        return Verdict(status="fail", evidence="", reason=str(error))
    except GoneError as error:
        return Verdict(status="fail", evidence="", reason=f"no answer: {error}")
    except SpentError as error:
        return not_shown(f"{error}; --max-requests allows more")


def _answers(server: Server) -> bool:
    try:
        return server.wire.get("/v1/models").status < 500
    except GoneError:
        return False
    except SpentError:
        return True
