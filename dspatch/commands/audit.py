"""`dspatch audit`: what is known to be wrong with a pin, an installation or a fork."""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from dspatch import options
from dspatch.console import Console

if TYPE_CHECKING:
    from dspatch.audit.checkpoint import Checkpoint
    from dspatch.audit.select import User

TARGETS = ("cpu", "cuda", "rocm", "xpu")
SEVERITIES = ("wrong", "crash", "slow", "missing", "misleading")
_FILE = click.Path(dir_okay=False, path_type=Path)


@click.command()
@click.argument("command", nargs=-1, type=click.UNPROCESSED, metavar="[-- COMMAND...]")
@options.place
@click.option(
    "--base", metavar="REV",
    help="With --repo: the pinned release whose compiled members it shares, for printed commands.",
)  # fmt: skip
@click.option("--model", metavar="FOLDER", help="The model of a checkpoint: config.json and index.")
@options.variant
@click.option(
    "--target", type=click.Choice(TARGETS), help="Where it runs; every target when left out."
)
@click.option("--gpu", metavar="NAME", help="The card: a100, h200, rtx4090, cpu, or sm90.")
@click.option("--native", is_flag=True, help="Read native sources, too: fetches the sdist, once.")
@click.option(
    "--fail-on", type=click.Choice(SEVERITIES), metavar="SEVERITY",
    help=f"Exit with 61 on a finding as grave, or graver: {', '.join(SEVERITIES)}.",
)  # fmt: skip
@click.option(
    "--strict", is_flag=True, help="With --fail-on: what is conditional or unknown counts, too."
)
@click.option("--details", is_flag=True, help="Show conditional findings in full, too.")
@click.option("--sarif", type=_FILE, metavar="FILE", help="Write the result as SARIF 2.1.0.")
@click.option("--explain", metavar="ID", help="Explain one finding, and nothing else.")
@click.option("--all-releases", is_flag=True, help="Every release: which has what.")
@click.option(
    "--finding", "only", multiple=True, metavar="ID", help="With --all-releases: only it."
)
@click.option("--html", type=_FILE, metavar="FILE", help="Write all releases as an HTML page.")
@click.option("--write-ranges", is_flag=True, help="Record which releases have each finding.")
@click.option("--check-ranges", is_flag=True, help="Fail when the record does not hold.")
@options.as_json
def audit(explain: str | None, as_json: bool, **given: Any) -> None:
    """Say what an engine's source is known to compute wrongly, crash on, run slowly or lack.

    Nothing is imported or run: sources are read by their syntax trees, and of a release only the
    files that matter are fetched. After `--`, the command that serves: findings that need an option
    which it has not are left out.

    \b
    dspatch audit --engine vllm --rev v0.10.1 --variant deepseek-v3 --gpu a100
    dspatch audit --rev v0.27.1 --fail-on wrong -- vllm serve MODEL --kv-cache-dtype fp8
    dspatch audit --env .venv/bin/python --model checkpoints/DeepSeek-V3
    dspatch audit --repo ~/vllm --rev my-branch --sarif audit.sarif
    dspatch audit --all-releases --variant deepseek-v3 --html audit.html
    """
    console = Console(as_json=as_json)
    if explain is not None:
        from dspatch.audit import explain as explaining
        from dspatch.stages import show_history

        show_history.explained(explaining.find(explain), console)
    elif any(given[name] for name in ("all_releases", "html", "write_ranges", "check_ranges")):
        _history(console, **given)
    else:
        _one(console, **given)


def _one(
    console: Console,
    *,
    fail_on: Any,
    strict: bool,
    details: bool,
    sarif: Path | None,
    **given: Any,
) -> None:
    from dspatch.audit import sarif as form
    from dspatch.audit.place import Place
    from dspatch.files import write_atomically
    from dspatch.stages import audit as stage
    from dspatch.stages import show_audit as show

    options.check_place(given)
    if given["only"]:
        raise click.UsageError("--finding goes with --all-releases; --explain ID tells one finding")
    if strict and fail_on is None:
        raise click.UsageError("--strict goes with --fail-on")
    checkpoint = _checkpoint(given)
    user = _user(given, checkpoint)
    words = {key: given[key] for key in ("engine", "rev", "repo", "env", "base", "native")}
    place = Place(**words, wanted=given["variants"])
    done = stage.run(place, user, console, checkpoint=checkpoint)
    if sarif is not None:
        write_atomically(sarif, (json.dumps(form.log(done), indent=2) + "\n").encode())
    show.audited(done, console, details=details)
    stage.check(done, fail_on, strict=strict)


def _history(console: Console, **given: Any) -> None:
    from dspatch.audit import explain as explaining
    from dspatch.audit.recorded import path_of
    from dspatch.stages import audit_history as stage
    from dspatch.stages import show_history as show

    options.check_no_place(given)
    alone = [name for name in ("fail_on", "strict", "details", "sarif") if given[name]]
    if alone:
        option = alone[0].replace("_", "-")
        raise click.UsageError(f"--{option} is for one release; leave it out, or name --rev")
    for name in given["only"]:
        explaining.find(name)
    engine = given["engine"] or "vllm"
    ranges = given["write_ranges"] or given["check_ranges"]
    user = None if ranges else _user(given, _checkpoint(given))
    done = stage.run(engine, user, console, only=given["only"], native=given["native"])
    if given["write_ranges"]:
        show.wrote(stage.write_ranges(done.history), path_of(engine), done, console)
    elif given["check_ranges"]:
        show.checked(stage.check_ranges(done.history), done, console)
    elif given["html"]:
        show.wrote(stage.write_page(done.history, given["html"]), given["html"], done, console)
    else:
        show.history(done, console)


def _checkpoint(given: dict[str, Any]) -> Checkpoint | None:
    from dspatch.audit import checkpoint

    if given["model"] is None:
        return None
    if given["variants"]:
        raise click.UsageError("--model says which model it is; leave --variant out")
    return checkpoint.load(given["model"])


def _user(given: dict[str, Any], checkpoint: Checkpoint | None) -> User:
    from dspatch.audit.cards import card
    from dspatch.audit.select import Model, User
    from dspatch.stages.request import known

    if checkpoint is not None:
        models = [Model(variant=checkpoint.variant, config=checkpoint.config)]
    else:
        models = [Model(variant=variant) for variant in known(given["variants"])]
    return User(
        models=tuple(models),
        target=given["target"],
        card=card(given["gpu"]) if given["gpu"] else None,
        command=given["command"] or None,
    )
