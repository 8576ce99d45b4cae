"""`dspatch bench profile`: which operators and kernels an engine's time goes to, by a profiler."""

from __future__ import annotations

import json
import os
import shutil
import signal
import time
from collections.abc import Callable, Sequence
from contextlib import closing, suppress
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from dspatch import engines, paths
from dspatch.audit import environment
from dspatch.bench import nsight, processes, soaking, trace
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
WRITING = 300.0  # seconds that a profiler may take to write what it has
ASKING = 300.0  # seconds in which requests are begun under a profiler; the rest are left out
FEW = 4  # tokens of an answer whose kernels are counted one by one
REQUESTS = 200  # to a server, with those that start and stop its profiler
TORCH, NSIGHT = "torch's profiler, the engine's own", "Nsight Compute"


@dataclass(frozen=True, kw_only=True)
class Way:
    """What is put before and after a server's command, and into its environment, to have it profiled."""

    by: str
    before: tuple[str, ...] = ()
    after: tuple[str, ...] = ()
    variables: dict[str, str]

    def of(self, plain: Service) -> Service:
        """The same server, profiled."""
        argv = (*self.before, *plain.argv, *self.after)
        return replace(plain, argv=argv, env={**plain.env, **self.variables})


@dataclass(frozen=True, kw_only=True)
class Profiled:
    """The profile of a server under a few requests, by what it was made, and the files that hold it.

    `left_out` says what was asked for and is not in it.
    """

    name: str
    by: str
    requests: int
    profile: Profile
    files: tuple[Path, ...]
    left_out: tuple[str, ...] = ()

    @property
    def verdict(self) -> str:
        """Its sums, in words."""
        found = self.profile
        sums = {"operators": found.total, f"{found.launches:,} kernels": found.counted}
        told = [f"{value / 1e3:.1f} ms in {name}" for name, value in sums.items() if value]
        asked = "one request" if self.requests == 1 else f"{self.requests} requests"
        return "; ".join([", ".join([*told, asked]), *self.left_out])


def run(
    subject: Subject, model: str, requests: int, console: Console, *, counters: bool = False
) -> Profiled:
    """Start the engine's server with a profiler, ask it once to warm up, profile, and read the result.

    With `counters` Nsight Compute counts its kernels, otherwise it profiles itself. Raises
    `ProfileError` when that cannot be, or nothing was left.
    """
    prove_any.need_machine(subject)
    service = prove_api.service_of(subject.engine)
    ncu = _need_counters(subject) if counters else ""
    prepare_work()
    folder = paths.work() / "bench" / "profile"
    with locked(folder, "a profile"), console.working("profile") as step:
        traces = folder / "traces"
        shutil.rmtree(traces, ignore_errors=True)
        traces.mkdir()
        root = environment.find(subject.python(step), subject.engine).root
        log = traces / "kernels.csv"
        way = counting(root, ncu, log) if counters else profiling(root, traces)

        def profiled(*given: Any, **named: Any) -> Service:
            return way.of(service(*given, **named))

        asked = _observed(subject, profiled, model, requests, folder, step, counters)
        found = nsight.read(log) if counters else trace.of_folder(traces)
    left = _left_out(found, requests - asked, counters)
    return _written(subject.name, way.by, asked, found, folder, left)


def _left_out(found: Profile, requests: int, counters: bool) -> tuple[str, ...]:
    """What is not in a profile: requests for which there was no time, kernels behind the last one that is counted."""
    late = f"left out: {requests} requests, not begun within {ASKING:g} s"
    full = counters and found.launches >= nsight.LAUNCHES
    last = f"left out: all kernels behind the first {nsight.LAUNCHES} that a process ran"
    return (*([late] if requests else ()), *([last] if full else ()))


def _need_counters(subject: Subject) -> str:
    if subject.target == "cpu":
        raise ProfileError(
            f"{subject.name} runs no kernel of a GPU.",
            why="Nsight Compute counts those",
            next="leave --nsight out: torch's profiler shows the operators",
        )
    return nsight.program()


def profiling(root: Path, traces: Path) -> Way:
    """What makes a vLLM installed in `root` profile itself: an option where it has one, else variables."""
    if OPTION in _text(root / "vllm" / "engine" / "arg_utils.py"):
        config = {
            "profiler": "torch",
            "torch_profiler_dir": str(traces),
            "torch_profiler_with_stack": False,
        }
        return Way(by=TORCH, after=(OPTION, json.dumps(config)), variables={})
    variables = {"VLLM_TORCH_PROFILER_DIR": str(traces), "VLLM_TORCH_PROFILER_WITH_STACK": "0"}
    return Way(by=TORCH, variables=variables)


def counting(root: Path, ncu: str, log: Path) -> Way:
    """What makes Nsight Compute count the kernels of a vLLM installed in `root`, as that starts and stops it.

    Raises `ProfileError` for a release that cannot.
    """
    if '"cuda"' not in _text(root / "vllm" / "config" / "profiler.py"):
        raise ProfileError(
            "this release cannot tell Nsight Compute when to count.",
            why=f"its {OPTION} knows no profiler `cuda`",
            next="leave --nsight out: torch's profiler shows the kernels, without the bytes they move",
        )
    config = json.dumps({"profiler": "cuda"})
    return Way(by=NSIGHT, before=nsight.command(ncu, log), after=(OPTION, config), variables={})


def _text(path: Path) -> str:
    return path.read_text(encoding="utf-8") if path.is_file() else ""


def _observed(
    subject: Subject,
    service: prove_api.Serves,
    model: str,
    requests: int,
    folder: Path,
    step: engines.Progress,
    whole: bool,
) -> int:
    """How many requests the server answered, profiled; `whole` when a profiler writes at the end of all processes."""
    plan, pids = Plan(seconds=0, output_tokens=FEW) if whole else Plan(seconds=0), list[int]()
    prompts = [" ".join(soaking.WORDS[: 1 + n % 10] * 6) for n in range(requests)]
    running = prove_api.running(
        subject, service, model, folder, prove_api.Limits(), step, pids.append
    )
    with running as (url, _), closing(Wire(base=url, limit=REQUESTS, timeout=WRITING)) as wire:
        try:
            _answered(wire, prompts[:1], plan)
            _turn(wire, "start_profile")
            step(f"profiling {requests} requests")
            asked = _in_time(lambda prompt: _answered(wire, [prompt], plan), prompts, ASKING)
            step("the profiler writes what it has")
            _turn(wire, "stop_profile")
            if whole:
                _end(pids[0])
        finally:
            if whole:
                _kill(pids[0])
    return asked


def _in_time(ask: Callable[[str], None], prompts: Sequence[str], seconds: float) -> int:
    """Ask one after the other until the time is over, the first one always; returns how many were asked."""
    ends = time.monotonic() + seconds
    for number, prompt in enumerate(prompts):
        if number and time.monotonic() >= ends:
            return number
        ask(prompt)
    return len(prompts)


def _answered(wire: Wire, prompts: Sequence[str], plan: Plan) -> None:
    try:
        soaking.answers(wire, prove_api.SERVED_AS, prompts, plan)
    except GoneError as error:
        raise ProfileError(
            "the server did not answer under its profiler.",
            why=str(error) or f"within {WRITING:g} s",
            next="read the server's log, or ask less of it: --requests 1",
        ) from None


def _end(pid: int) -> None:
    """Ask the server under a profiler to end, and wait until the profiler has, with what it had to write."""
    below = (one for one in processes.tree(pid) if processes.program(one) not in nsight.OWN)
    server = next(below, None)
    if server is not None:
        with suppress(ProcessLookupError):
            os.kill(server, signal.SIGTERM)
    _until(lambda: not processes.alive(pid), WRITING)
    if processes.alive(pid):
        raise ProfileError(
            "the profiler did not end with the server.",
            why=f"it was asked to, and still ran after {WRITING:g} s; it writes at its end",
            next="read the server's log, or ask less of it: --requests 1",
        )


def _kill(pid: int) -> None:
    """Kill all that came from a process, also what a profiler put into a session of its own."""
    for one in [*processes.tree(pid)][1:]:
        with suppress(ProcessLookupError):
            os.kill(one, signal.SIGKILL)


def _until(done: Callable[[], bool], seconds: float) -> None:
    ends = time.monotonic() + seconds
    while not done() and time.monotonic() < ends:
        time.sleep(0.2)


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


def _written(
    name: str, by: str, requests: int, found: Profile, folder: Path, left: tuple[str, ...] = ()
) -> Profiled:
    from dspatch.bench import page
    from dspatch.stages import show_profile

    files = (folder / "profile.json", folder / "profile.html")
    done = Profiled(name=name, by=by, requests=requests, profile=found, files=files, left_out=left)
    page.write(files, as_dict(done), show_profile.page_of(done))
    return done


def as_dict(done: Profiled) -> dict[str, Any]:
    """The whole result as JSON values."""
    return {
        "server": done.name,
        "by": done.by,
        "requests": done.requests,
        "left_out": done.left_out,
        "total_microseconds": done.profile.total,
        **asdict(done.profile),
    }
