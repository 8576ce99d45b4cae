"""The official client and schemathesis, in an environment that dspatch makes, against a server."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from dspatch.conformance.api.server import Server
from dspatch.conformance.api.verdict import ApiResult, Verdict, not_shown, row
from dspatch.conformance.report import Status
from dspatch.conformance.workers.client_worker import OFFICIAL
from dspatch.engines import Progress, environment, worker
from dspatch.errors import ConformanceError, DspatchError, EngineEnvironmentError
from dspatch.paths import PACKAGE
from dspatch.tomlfile import load

WORKER = PACKAGE / "conformance" / "workers" / "client_worker"
NAMES = (*(f"client.{name}" for name in OFFICIAL), "schema.drawn")
TIMEOUT = 600.0


def settings() -> Mapping[str, Any]:
    """Requirements and bounds, from client.toml."""
    return load(PACKAGE / "conformance" / "api" / "client.toml", ConformanceError).data


def planned() -> int:
    """The most requests that these send: the client's own, and those drawn for each operation."""
    chosen = settings()
    return sum(OFFICIAL.values()) + len(chosen["operations"]) * int(chosen["examples"]) + 1


def check(server: Server, progress: Progress) -> list[ApiResult]:
    """What the official client accepts, and what requests from the server's description give."""
    progress("the official client and schemathesis")
    try:
        rows = _asked(server, progress)
    except EngineEnvironmentError as error:
        rows = _none(f"the client's environment could not be made: {error.why}")
    except DspatchError as error:
        last = (error.why or error.what).splitlines()[-1]
        rows = _none(f"the client's process ended: {last}")
    server.wire.count += sum(row.get("requests", 0) for row in rows)
    return [_result(one, server.model) for one in rows]


def _none(why: str) -> list[Mapping[str, Any]]:
    return [{"check": name, "what": "", "skipped": why} for name in NAMES]


def _asked(server: Server, progress: Progress) -> list[Mapping[str, Any]]:
    chosen = settings()
    made = environment.ensure("client", chosen["requirements"], progress=progress)
    asked = {
        "url": server.wire.base,
        "model": server.model,
        "timeout": server.wire.timeout,
        "budget": server.wire.limit - server.wire.count,
        "operations": chosen["operations"],
        "examples": chosen["examples"],
    }
    key = {"DSPATCH_API_KEY": server.wire.key or ""}
    found: list[Mapping[str, Any]] = worker.ask(
        made.python, WORKER, asked, env=key, timeout=TIMEOUT
    )
    return found


def _result(one: Mapping[str, Any], model: str) -> ApiResult:
    if "skipped" in one:
        verdict = not_shown(one["skipped"])
    else:
        status: Status = "fail" if one["wrong"] else "pass"
        verdict = Verdict(status=status, evidence=one["evidence"], reason=one["wrong"])
    return row(one["check"], one["what"], model, verdict)
