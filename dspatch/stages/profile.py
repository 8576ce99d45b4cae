"""`dspatch bench profile`: which operators and kernels an engine's time goes to, by its own profiler."""

from __future__ import annotations

import json
import shutil
from contextlib import closing
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from dspatch import engines, paths
from dspatch.audit import environment
from dspatch.bench import soaking, trace
from dspatch.bench.soaking import Plan
from dspatch.bench.trace import Profile
from dspatch.conformance.api.wire import GoneError, Wire
from dspatch.console import Console
from dspatch.errors import ProfileError
from dspatch.job import locked, prepare_work
from dspatch.stages import prove_any, prove_api
from dspatch.stages.prove_any import Subject

if TYPE_CHECKING:
    from dspatch.engines.serving import Service

OPTION = "--profiler-config"
WRITING = 300.0  # seconds that an engine may take to write its traces
REQUESTS = 200  # to a server, with those that start and stop its profiler


@dataclass(frozen=True, kw_only=True)
class Profiled:
    """The profile of a server under a few requests, and the files that hold it."""

    name: str
    requests: int
    profile: Profile
    files: tuple[Path, ...]


def run(subject: Subject, model: str, requests: int, console: Console) -> Profiled:
    """Start the engine's server with its profiler, ask it once to warm up, profile, and read the trace.

    Raises `ProfileError` when the engine refuses to profile or leaves no trace.
    """
    prove_any.need_machine(subject)
    service = prove_api.service_of(subject.engine)
    prepare_work()
    folder = paths.work() / "bench" / "profile"
    with locked(folder, "a profile"), console.working("profile") as step:
        traces = folder / "traces"
        shutil.rmtree(traces, ignore_errors=True)
        traces.mkdir()
        python = subject.python(step)
        added = profiling(environment.find(python, subject.engine).root, traces)

        def with_profiler(*given: Any, **named: Any) -> Service:
            plain = service(*given, **named)
            return replace(plain, argv=plain.argv + added[0], env={**plain.env, **added[1]})

        _observed(python, with_profiler, model, requests, folder, step)
        found = trace.of_folder(traces)
    return _written(subject.name, requests, found, folder)


def profiling(root: Path, traces: Path) -> tuple[tuple[str, ...], dict[str, str]]:
    """What makes a vLLM installed in `root` profile: an option where it has one, else variables."""
    parser = root / "vllm" / "engine" / "arg_utils.py"
    if parser.is_file() and OPTION in parser.read_text(encoding="utf-8"):
        config = {
            "profiler": "torch",
            "torch_profiler_dir": str(traces),
            "torch_profiler_with_stack": False,
        }
        return (OPTION, json.dumps(config)), {}
    return (), {"VLLM_TORCH_PROFILER_DIR": str(traces), "VLLM_TORCH_PROFILER_WITH_STACK": "0"}


def _observed(
    python: Path,
    service: prove_api.Serves,
    model: str,
    requests: int,
    folder: Path,
    step: engines.Progress,
) -> None:
    plan = Plan(seconds=0)
    prompts = [" ".join(soaking.WORDS[: 1 + n % 10] * 6) for n in range(requests)]
    running = prove_api.running(python, service, model, folder, prove_api.Limits(), step)
    with running as (url, _), closing(Wire(base=url, limit=REQUESTS, timeout=WRITING)) as wire:
        soaking.answers(wire, prove_api.SERVED_AS, prompts[:1], plan)
        _turn(wire, "start_profile")
        step(f"profiling {requests} requests")
        soaking.answers(wire, prove_api.SERVED_AS, prompts, plan)
        step("the engine writes its traces")
        _turn(wire, "stop_profile")


def _turn(wire: Wire, what: str) -> None:
    try:
        answer = wire.post(f"/{what}", b"")
    except GoneError as error:
        raise ProfileError(
            f"the server did not answer /{what}.", why=str(error), next="read the server's log"
        ) from None
    if answer.status != 200:
        raise ProfileError(
            f"the server refused /{what}.",
            why=answer.told(),
            next="profile a release that has the engine's own torch profiler",
        )


def _written(name: str, requests: int, found: Profile, folder: Path) -> Profiled:
    from dspatch.bench import page
    from dspatch.stages import show_profile

    files = (folder / "profile.json", folder / "profile.html")
    done = Profiled(name=name, requests=requests, profile=found, files=files)
    page.write(files, as_dict(done), show_profile.page_of(done))
    return done


def as_dict(done: Profiled) -> dict[str, Any]:
    """The whole result as JSON values."""
    return {
        "server": done.name,
        "requests": done.requests,
        "total_microseconds": done.profile.total,
        **asdict(done.profile),
    }
