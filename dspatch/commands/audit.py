"""`dspatch audit`: what is known to be wrong with a pin, an installation or a fork."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import click

from dspatch import options
from dspatch.console import Console

if TYPE_CHECKING:
    from dspatch.audit.select import User

TARGETS = ("cpu", "cuda", "rocm", "xpu")


@click.command()
@options.engine
@options.rev
@click.option(
    "--target", type=click.Choice(TARGETS), help="Where it runs; every target when left out."
)
@options.variant
@click.option("--gpu", metavar="NAME", help="The card: a100, h200, rtx4090, cpu, or sm90.")
@options.repo
@click.option("--native", is_flag=True, help="Read native sources, too: fetches the sdist, once.")
@click.option(
    "--fail-on",
    type=click.Choice(("wrong", "crash", "slow", "missing", "misleading")),
    help="Exit with 61 when a finding is as grave as this, or graver; the order is as listed.",
)
@click.option("--fail-on-unknown", is_flag=True, help="With --fail-on: unknown counts as found.")
@options.as_json
def audit(
    engine: str | None,
    rev: str | None,
    repo: str | None,
    native: bool,
    fail_on: Any,
    fail_on_unknown: bool,
    as_json: bool,
    **given: Any,
) -> None:
    """Say what an engine's source is known to compute wrongly, crash on, run slowly or lack.

    Nothing is imported or run: the source is read by its syntax tree, of a release only the files
    that matter.

    \b
    dspatch audit --engine vllm --rev v0.10.1 --variant deepseek-v3 --gpu a100
    """
    from dspatch.stages import audit as stage
    from dspatch.stages import show_audit as show

    console = Console(as_json=as_json)
    place = stage.Place(rev=rev, repo=repo, native=native)
    done = stage.run(engine or "vllm", place, _user(**given), console)
    show.audited(done, console)
    stage.check(done, fail_on, unknown_too=fail_on_unknown)


def _user(variants: tuple[str, ...], target: str | None, gpu: str | None) -> User:
    from dspatch.audit.cards import card
    from dspatch.audit.select import Model, User
    from dspatch.stages import audit as stage

    models = tuple(Model(variant=variant) for variant in stage.served(variants))
    return User(models=models, target=target, card=card(gpu) if gpu else None)
