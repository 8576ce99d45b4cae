"""`dspatch conformance --url` and `--api`: a running server, or one started here, held against the API's rules."""

from __future__ import annotations

import os
import re
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import closing, contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING

from dspatch import engines, paths, receipt
from dspatch.console import Console
from dspatch.errors import ConformanceError, EngineError, ServerError
from dspatch.job import Job, prepare_work
from dspatch.stages import prove_any, proving
from dspatch.stages.prove_any import Subject
from dspatch.stages.proving import Proven
from dspatch.stages.request import request_of

if TYPE_CHECKING:
    from dspatch.conformance import CheckResult
    from dspatch.conformance.api.server import Server
    from dspatch.engines.serving import Service
    from dspatch.outputformat import OutputFormat

Serves = Callable[..., "Service"]
Seconds = dict[str, float]

SERVED_AS = "small-deepseek"
DEFAULT = "deepseek-v3"  # the model for an engine that no job built


@dataclass(frozen=True, kw_only=True)
class Fitting:
    """How a small model is served where an engine was built for: its dtype, and the form that kernels want.

    `kind` is a table of `gpu` in small.toml, or empty. `margin` and `nats` are a `Server`'s, in that dtype; `share`
    is that of a GPU's memory.
    """

    dtype: str
    kind: str = ""
    margin: float = 0.3
    nats: float = 0.5
    share: float | None = None

    def model(self, name: str) -> str:
        """The small model of that name, in the form that fits unless the name has one."""
        from dspatch.conformance import small

        fits = small.on_gpu([name], self.kind) if self.kind else [name]
        return fits[0]


# The MLA kernels of GPUs take two bytes a number.
FITTING = {
    "cpu": Fitting(dtype=proving.DTYPE, margin=1e-3, nats=1e-3),
    "cuda": Fitting(dtype=proving.GPU_DTYPE, kind="vllm", share=0.3),
}


@dataclass(frozen=True, kw_only=True)
class Limits:
    """What a server may be asked: requests in all, seconds for each, seconds until it is up.

    `client`: also by the official client, in an environment of its own.
    """

    requests: int = 1000
    timeout: float = 60.0
    start: float = 600.0
    client: bool = True


def at_url(
    url: str,
    console: Console,
    limits: Limits,
    *,
    model: str | None = None,
    key_env: str | None = None,
    format: OutputFormat | None = None,
) -> Proven:
    """Check the server at an address, wherever it is; the report goes into the folder of the jobs.

    Raises `ServerError` and `NotServedError` when there is nothing to check.
    """
    from dspatch.conformance import Report
    from dspatch.conformance.api import contact, run
    from dspatch.conformance.api.wire import Wire

    wire = Wire(
        base=contact.address(url), key=_key(key_env), limit=limits.requests, timeout=limits.timeout
    )
    seconds: Seconds = {}
    with closing(wire), console.working("conformance") as step:
        server = replace(contact.meet(wire, model), format=format)
        results = _checked(server, console, limits, step, seconds)
    report = Report(results=results, facts={**run.facts(server), "seconds": seconds})
    prepare_work()
    return proving.told(wire.base, report, paths.work() / "conformance" / _folder(wire.base))


def of_job(job: Job, variants: Sequence[str], console: Console, limits: Limits) -> Proven:
    """The server of a job's wheel, with the first small model that stands for its variants.

    Raises `NoJobError` before build-wheel, `NoGpuError` for a CUDA wheel without a GPU.
    """
    subject, applied = prove_any.of_job(job), receipt.require(job, "apply")
    format = request_of(applied).output_format
    return of_subject(subject, variants or applied["variants"], console, limits, format=format)


def of_subject(
    subject: Subject,
    variants: Sequence[str],
    console: Console,
    limits: Limits,
    *,
    format: OutputFormat | None = None,
) -> Proven:
    """The server of an engine that no job built. Raises `NoGpuError` where it needs a GPU."""
    model = proving.models_for(variants or [DEFAULT])[0]
    service = service_of(subject.engine)
    with prove_any.opened(subject, console) as (python, step):
        return _own(subject, python, service, model, console, limits, step, format)


def _own(
    subject: Subject,
    python: Path,
    service: Serves,
    model: str,
    console: Console,
    limits: Limits,
    step: engines.Progress,
    format: OutputFormat | None,
) -> Proven:
    """Start the engine's server on loopback with a small model; check it, and stop it."""
    from dspatch.conformance import Report
    from dspatch.conformance.api import contact, parsers, run
    from dspatch.conformance.api.wire import Wire

    seconds: Seconds = {}
    begun = time.monotonic()
    with (
        running(subject, service, model, subject.folder, limits, step) as (url, checkpoint),
        closing(Wire(base=url, limit=limits.requests, timeout=limits.timeout)) as wire,
    ):
        seconds["start"] = round(time.monotonic() - begun, 1)
        met = contact.meet(wire, SERVED_AS)
        fits = fitting(subject)
        server = replace(met, own=True, margin=fits.margin, nats=fits.nats, format=format)
        results = _checked(server, console, limits, step, seconds)
    with _clock(seconds, "parsers"):
        results += tuple(parsers.check(python, checkpoint, SERVED_AS, step))
    report = Report(results=results, facts={**run.facts(server), "seconds": seconds})
    return proving.told(subject.name, report, subject.folder / "api")


def fitting(subject: Subject) -> Fitting:
    """How a small model is served by an engine of this build."""
    return FITTING["cpu" if subject.target == "cpu" else "cuda"]


def service_of(engine: str) -> Serves:
    """What says how the engine's server is started; asked before an environment is made for it."""
    service: Serves | None = getattr(engines.get(engine), "service", None)
    if service is None:
        raise EngineError(
            f"the module of {engine} says nothing of a server.",
            why="it has no function `service`",
            next="start the server yourself and give its address: --url",
        )
    return service


@contextmanager
def _clock(seconds: Seconds, name: str) -> Iterator[None]:
    begun = time.monotonic()
    try:
        yield
    finally:
        seconds[name] = round(time.monotonic() - begun, 1)


@contextmanager
def running(
    subject: Subject,
    service: Serves,
    model: str,
    folder: Path,
    limits: Limits,
    step: engines.Progress,
    born: Callable[[int], None] = lambda pid: None,
) -> Iterator[tuple[str, Path]]:
    """The engine's own server on loopback with the small model that speaks: its address, and the checkpoint.

    `born` is told the process that the server's others come from.
    """
    from dspatch.conformance import oracle
    from dspatch.conformance.api import script
    from dspatch.engines import serving

    words = script.words()
    parsers = engines.Parsers(tools=words["tool-parser"], reasoning=words["reasoning-parser"])
    fits = fitting(subject)
    made = script.make(oracle.ensure(step), fits.model(model))
    port = serving.free_port()
    starts = service(
        subject.python(step), made.path, name=SERVED_AS, port=port, parsers=parsers,
        options=engines.Options(dtype=fits.dtype), share=fits.share,
    )  # fmt: skip
    log = folder / "api" / "server.log"
    with serving.started(starts, port, log, timeout=limits.start, progress=step, born=born) as url:
        yield url, made.path


def _checked(
    server: Server, console: Console, limits: Limits, step: engines.Progress, seconds: Seconds
) -> tuple[CheckResult, ...]:
    from dspatch.conformance.api import client, run

    most = run.planned(server) + (client.planned() if limits.client else 0)
    console.note(
        f"conformance: {server.model} at {server.wire.base}: up to"
        f" {min(most, server.wire.limit)} requests, 8 at once at most"
    )
    with _clock(seconds, "checks"):
        results: tuple[CheckResult, ...] = run.check_server(server, progress=step).results
    if limits.client:
        with _clock(seconds, "client"):
            results += tuple(client.check(server, step))
    console.note(f"conformance: {server.wire.count} requests were sent")
    return results


def _key(name: str | None) -> str | None:
    if name is None:
        return None
    if not (key := os.environ.get(name)):
        raise ServerError(
            f"The variable {name} holds no key.",
            why="it is not set, or empty",
            next=f"export {name}=… and run the command again",
        )
    return key


def _folder(base: str) -> str:
    return "api-" + re.sub(r"[^\w.-]+", "-", base.partition("://")[2])


def check(done: Proven) -> None:
    """Raise `ConformanceError` when a check failed, or nothing was shown."""
    failures = done.report.failures()
    if failures or not done.report.ok:
        raise ConformanceError(
            f"{done.name}: {done.report.summary}.",
            why="\n        ".join(f"{one.check}: {one.note}" for one in failures[:6])
            or "nothing was shown",
            next=f"read {done.files[1]}",
        )
