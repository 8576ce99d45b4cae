"""`dspatch bench`: what engines measure: noise and false alarms of the checks, load, leaks, where time goes."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING

import click

from dspatch import options
from dspatch.commands import together
from dspatch.commands.groups import bench
from dspatch.console import Console

if TYPE_CHECKING:
    from dspatch.bench.alarms import Plan
    from dspatch.stages.prove_any import Subject


def _engine_of(what: str, *, required: bool = True) -> Callable[[options.Command], options.Command]:
    """--engine and --of: the one engine that is measured."""
    place = click.option(
        "--of", "place", required=required, metavar="PYTHON|WHEEL",
        help=f"{what}: a Python or virtual environment that has it, or a wheel.",
    )  # fmt: skip
    return lambda command: options.engine(place(command))


def _server(command: options.Command) -> options.Command:
    """--engine, --of, --model: the engine whose server is measured, and what it serves."""
    model = click.option(
        "--model", default="deepseek-v3", show_default=True, metavar="NAME",
        help="The small model that is served, as `conformance --variant` names it.",
    )  # fmt: skip
    return _engine_of("The engine")(model(command))


def _output(name: str, what: str) -> Callable[[options.Command], options.Command]:
    return click.option(
        "-o", "--output", type=click.Path(path_type=Path, dir_okay=False), metavar="FILE",
        default=Path(name), show_default=True, help=what,
    )  # fmt: skip


def _subjects(envs: tuple[str, ...], wheels: tuple[Path, ...], engine: str | None) -> list[Subject]:
    from dspatch.stages import prove_any

    name = engine or "vllm"
    found = [prove_any.in_environment(each, name) for each in envs]
    found += [prove_any.of_wheel(each, name) for each in wheels]
    if not found:
        raise click.UsageError("name an engine with --env or --wheel")
    return found


def _one(place: str, engine: str | None) -> Subject:
    """A Python, an environment's folder or a wheel, by what it is."""
    from dspatch.stages import prove_any

    name = engine or "vllm"
    if place.endswith(".whl"):
        return prove_any.of_wheel(Path(place), name)
    return prove_any.in_environment(place, name)


@bench.command("calibrate")
@options.engine
@click.option(
    "--env", "envs", multiple=True, metavar="PYTHON",
    help="A sound engine: what this Python, or virtual environment, has; repeatable.",
)  # fmt: skip
@click.option(
    "--wheel", "wheels", multiple=True, metavar="FILE", type=click.Path(path_type=Path),
    help="A sound engine: this wheel, in an environment of its own; repeatable.",
)  # fmt: skip
@click.option(
    "--dtype", "dtypes", multiple=True, metavar="NAME",
    help="What the engines compute in; repeatable. float32, bfloat16 and float16 when left out.",
)  # fmt: skip
@options.variant
@click.option(
    "--assume-healthy", is_flag=True,
    help="Do not ask that an engine passes in float32 first.",
)  # fmt: skip
@_output("tolerance.toml", "Where the table goes.")
@options.as_json
def calibrate(
    engine: str | None,
    envs: tuple[str, ...],
    wheels: tuple[Path, ...],
    dtypes: tuple[str, ...],
    variants: tuple[str, ...],
    assume_healthy: bool,
    output: Path,
    as_json: bool,
) -> None:
    """Measure what the checks of conformance accept, and write tolerance.toml.

    Noise is what sound engines give: other orders of the same sums, batches, chunks, threads. The
    fault is the weakest planted one that each check must catch. Where the two are too close, the
    row has no tolerance, and the check shows nothing. `conformance` reads the table that ships, and
    before it the one that DSPATCH_TOLERANCES names.

    \b
    dspatch bench calibrate --env .venv/bin/python --dtype bfloat16 -o tolerance.toml
    DSPATCH_TOLERANCES=tolerance.toml dspatch conformance --env .venv/bin/python --dtype bfloat16
    """
    from dspatch.stages import calibrate as stage
    from dspatch.stages import show_calibrate

    console = Console(as_json=as_json)
    wanted = stage.Wanted(
        dtypes=dtypes or stage.DTYPES, models=variants, assume_healthy=assume_healthy
    )
    subjects = _subjects(envs, wheels, engine)
    show_calibrate.written(stage.run(subjects, wanted, output.resolve(), console), console)


OF_ALARMS = (
    (
        "prepare",
        ("place", "engine", "output"),
        "--of, --engine and --output go with a count: --prepare runs no engine and counts nothing",
    ),
)


@bench.command("alarms")
@_engine_of("A sound engine", required=False)
@click.option(
    "--checkpoints", type=click.IntRange(min=1), default=20, show_default=True,
    help="Each with weights of its own.",
)  # fmt: skip
@click.option(
    "--prompt-sets", type=click.IntRange(min=1), default=10, show_default=True,
    help="Of each checkpoint, no two alike.",
)  # fmt: skip
@click.option(
    "--seed", type=click.IntRange(min=1), default=100, show_default=True,
    help="That of the first checkpoint and the first set; another one draws others.",
)  # fmt: skip
@click.option(
    "--dtype", metavar="NAME",
    help="What the engine computes in.  [default: float32, on GPUs bfloat16]",
)  # fmt: skip
@options.variant
@click.option(
    "--prepare", metavar="FOLDER", type=click.Path(path_type=Path, file_okay=False),
    help="Run no engine: make golden results, to be taken to a machine that cannot make them.",
)  # fmt: skip
@_output("alarms.json", "Where the count goes; one that was stopped goes on from there.")
@options.as_json
def alarms(
    engine: str | None,
    place: str | None,
    checkpoints: int,
    prompt_sets: int,
    seed: int,
    dtype: str | None,
    variants: tuple[str, ...],
    prepare: Path | None,
    output: Path,
    as_json: bool,
) -> None:
    """Count how often the checks of conformance fail a sound engine.

    Small models of twenty shapes in turn, each checkpoint drawn by a seed of its own and run on
    many sets of prompts in one start of the engine; every check is held to the tolerance that
    `conformance` holds it to. A check that fails is a false alarm, if the engine is sound: exit
    code 74. Of n pairs without one, fewer than 3/n fail with 95 % confidence.

    \b
    dspatch bench alarms --of .venv/bin/python
    dspatch bench alarms --of .venv --dtype bfloat16 --checkpoints 4 --prompt-sets 5
    dspatch bench alarms --prepare goldens --checkpoints 4 --prompt-sets 5
    """
    from dspatch.bench.alarms import Plan
    from dspatch.stages import alarms as stage
    from dspatch.stages import show_alarms

    together.check(OF_ALARMS)
    console = Console(as_json=as_json)
    plan = Plan(
        models=variants, dtype=dtype or "", checkpoints=checkpoints, prompt_sets=prompt_sets,
        seed=seed,
    )  # fmt: skip
    if prepare is not None:
        _prepare(stage.settled(plan), prepare, console)
        return
    if place is None:
        raise click.UsageError("name a sound engine with --of, or a folder with --prepare")
    subject = _one(place, engine)
    show_alarms.told(stage.run(subject, plan, output.resolve(), console), console)


def _prepare(plan: Plan, folder: Path, console: Console) -> None:
    from dspatch.stages import prepare as stage
    from dspatch.stages import proving

    proving.need_tolerances(plan.dtype)
    proving.need_dtype(plan.models, plan.dtype)
    cases = [case for cases in plan.drawn() for case in cases]
    asked = f"--dtype {plan.dtype} --checkpoints {plan.checkpoints} --prompt-sets {plan.prompt_sets} --seed {plan.seed}"
    named = "".join(f" --variant {model}" for model in plan.models)
    command = f"bench alarms --of PYTHON {asked}{named}"
    stage.told(stage.run(cases, folder.resolve(), console, drawn=True), console, command)


@bench.command("load")
@_server
@click.option(
    "--against", metavar="PYTHON|WHEEL",
    help="The peer that takes turns with it; without it the same engine, which shows the spread.",
)  # fmt: skip
@click.option(
    "--rounds", type=click.IntRange(min=2), default=5, show_default=True, metavar="N",
    help="How many rounds each server gets.",
)  # fmt: skip
@click.option(
    "--requests", type=click.IntRange(min=1), default=24, show_default=True, metavar="N",
    help="Requests of a round.",
)  # fmt: skip
@click.option(
    "--concurrency", type=click.IntRange(min=1), default=4, show_default=True, metavar="N",
    help="Requests at once.",
)  # fmt: skip
@click.option(
    "--prompt-tokens", type=click.IntRange(1, 400), default=128, show_default=True, metavar="N",
    help="Tokens of each prompt.",
)  # fmt: skip
@click.option(
    "--output-tokens", type=click.IntRange(2, 100), default=32, show_default=True, metavar="N",
    help="Tokens of each answer.",
)  # fmt: skip
@options.as_json
def load(
    engine: str | None,
    place: str,
    model: str,
    against: str | None,
    rounds: int,
    as_json: bool,
    **shape: int,
) -> None:
    """Measure how fast a server answers under load, beside a peer.

    Both servers run on loopback with one small model; guidellm, in an environment of its own, loads
    them in turns. They count as different only where every pair of rounds says so, and by more than
    two rounds of one server are apart. A small model shows the engine's overhead, not a GPU's speed.

    \b
    dspatch bench load --of patched.whl --against .venv-stock
    """
    from dspatch.bench.generator import Load
    from dspatch.stages import load as stage
    from dspatch.stages import show_load

    console = Console(as_json=as_json)
    peer = _one(against, engine) if against else None
    wanted = stage.Wanted(load=Load(**shape), rounds=rounds, model=model)
    show_load.told(stage.run(_one(place, engine), peer, wanted, console), console)


OF_SOAK = (
    (
        "url",
        ("model", "engine"),
        "--model and --engine go with --of: --url names a server that runs",
    ),
)


@bench.command("soak")
@_engine_of("The engine whose server is started", required=False)
@click.option(
    "--model", default="deepseek-v3", show_default=True, metavar="NAME",
    help="With --of: the small model that is served.",
)  # fmt: skip
@click.option("--url", metavar="URL", help="A server that runs on this machine; with --pid.")
@click.option("--pid", type=click.IntRange(min=1), metavar="N", help="With --url: its process.")
@click.option(
    "--minutes", type=click.FloatRange(min=0.05), default=30.0, show_default=True, metavar="N",
    help="How long; hours are better.",
)  # fmt: skip
@click.option(
    "--pause", type=click.FloatRange(min=0), default=0.0, show_default=True, metavar="SECONDS",
    help="Between two cycles, for a low rate over a long time.",
)  # fmt: skip
@options.as_json
def soak(
    engine: str | None,
    place: str | None,
    model: str,
    url: str | None,
    pid: int | None,
    minutes: float,
    pause: float,
    as_json: bool,
) -> None:
    """Load a server for a long time, and tell whether it grows or drifts.

    Prompts and answers of many lengths, and clients that leave early, in cycles; after each the
    server comes to rest, and its memory, on the machine and on GPUs, its open files and its KV
    blocks in use are read. Memory counts as leaking when the lower 95 % bound of its slope is above
    1 GiB a day. The same greedy prompts are asked first and last.

    \b
    dspatch bench soak --of .venv/bin/python --minutes 60 --pause 5
    dspatch bench soak --url http://127.0.0.1:8000 --pid 4711 --minutes 240
    """
    from dspatch.bench.soaking import Plan
    from dspatch.stages import show_soak
    from dspatch.stages import soak as stage

    together.check(OF_SOAK)
    if (place is None) == (url is None) or (url is None) != (pid is None):
        raise click.UsageError("give --of, or --url with --pid")
    console, plan = Console(as_json=as_json), Plan(seconds=minutes * 60, pause=pause)
    if url is not None and pid is not None:
        show_soak.told(stage.at_url(url, pid, plan, console), console)
        return
    assert place is not None
    show_soak.told(stage.of_subject(_one(place, engine), model, plan, console), console)


@bench.command("profile")
@_server
@click.option(
    "--requests", type=click.IntRange(1, 100), default=8, show_default=True, metavar="N",
    help="How many are profiled, after one that is not.",
)  # fmt: skip
@click.option(
    "--nsight", is_flag=True,
    help="Count the kernels of a GPU, and the bytes that they move, with Nsight Compute (ncu).",
)  # fmt: skip
@options.as_json
def profile(
    engine: str | None, place: str, model: str, requests: int, nsight: bool, as_json: bool
) -> None:
    """Show which operators and kernels an engine's time goes to.

    Its server runs on loopback with a small model, and profiles itself with torch's profiler; the
    trace is read, and kept for viewers of such traces. With --nsight it is Nsight Compute that times
    each kernel and counts the bytes of memory that it reads and writes.

    \b
    dspatch bench profile --of .venv/bin/python
    dspatch bench profile --of .venv/bin/python --nsight --requests 2
    """
    from dspatch.stages import profile as stage
    from dspatch.stages import show_profile

    console = Console(as_json=as_json)
    done = stage.run(_one(place, engine), model, requests, console, counters=nsight)
    show_profile.told(done, console)
