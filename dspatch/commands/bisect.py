"""`dspatch bisect`: where a check of conformance starts or stops passing."""

from __future__ import annotations

import click

from dspatch import options
from dspatch.console import Console


@click.command()
@options.engine
@click.option(
    "--check",
    required=True,
    metavar="NAME",
    help="A check of conformance: golden.fp32, engine.start, …",
)
@click.option(
    "--variant",
    "model",
    required=True,
    metavar="NAME",
    help="The small model, also in one form: deepseek-v2-lite/plain-rope.",
)
@click.option(
    "--good", metavar="REV", help="A release on which the check passes; older or newer than --bad."
)
@click.option("--bad", metavar="REV", help="A release on which it fails.")
@click.option(
    "--set",
    "variables",
    multiple=True,
    metavar="NAME=VALUE",
    help="A variable of the engine's environment, such as VLLM_MLA_DISABLE=1; repeatable.",
)
@click.option(
    "--skip-refused",
    is_flag=True,
    help="A release that refuses the model is no answer, instead of a failure.",
)
@click.option("--cached", is_flag=True, help="Only releases whose environments are in the cache.")
@click.option(
    "--keep-environments", is_flag=True, help="Leave the environments that are made in the cache."
)
@options.fresh
@options.as_json
def bisect(
    engine: str | None,
    check: str,
    model: str,
    good: str | None,
    bad: str | None,
    variables: tuple[str, ...],
    skip_refused: bool,
    cached: bool,
    keep_environments: bool,
    fresh: bool,
    as_json: bool,
) -> None:
    """Find the release from which a check passes, or no longer does.

    Among the releases that have a CPU wheel, stock, by binary search. A release that this machine
    cannot run is passed over, and told why. An environment that is made for a release goes with it;
    results are kept, so that a search that was stopped goes on where it was.

    \b
    dspatch bisect --check golden.fp32 --variant deepseek-v2-lite --bad v0.27.1 --good v0.32.0
    dspatch bisect --check golden.fp32 --variant deepseek-v3 --set VLLM_MLA_DISABLE=1 --cached
    """
    from dspatch.bisect.probe import Asked
    from dspatch.stages import bisect as stage
    from dspatch.stages import show_bisect

    console = Console(as_json=as_json)
    asked = Asked(
        engine=engine or "vllm",
        check=check,
        model=model,
        variables=dict(_pair(each) for each in variables),
        refused_skips=skip_refused,
        fresh=fresh,
        keep=keep_environments,
        cached_only=cached,
    )
    done = stage.run(asked, stage.Ends(good=good, bad=bad), console)
    show_bisect.found(done, console)


def _pair(text: str) -> tuple[str, str]:
    name, sign, value = text.partition("=")
    if not (name and sign):
        raise click.UsageError(f"--set takes NAME=VALUE, not {text!r}")
    return name, value
