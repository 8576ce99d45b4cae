"""The options that commands share, with their completions."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, TypeVar

import click
from click.shell_completion import CompletionItem

Command = TypeVar("Command", bound=Callable[..., Any])

TARGETS = ("cpu", "cuda")


def complete_rev(
    ctx: click.Context, param: click.Parameter, incomplete: str
) -> list[CompletionItem]:
    """The pinned revisions that begin as typed."""
    from dspatch import pins

    found = pins.pinned(ctx.params.get("engine") or "vllm")
    return [CompletionItem(pin.rev) for pin in found if pin.rev.startswith(incomplete)]


def _complete_variant(
    ctx: click.Context, param: click.Parameter, incomplete: str
) -> list[CompletionItem]:
    from dspatch import variants

    return [CompletionItem(name) for name in variants.names() if name.startswith(incomplete)]


def _complete_engine(
    ctx: click.Context, param: click.Parameter, incomplete: str
) -> list[CompletionItem]:
    from dspatch import pins

    return [CompletionItem(name) for name in pins.engines() if name.startswith(incomplete)]


def _target(context: click.Context, _: click.Parameter, given: str | None) -> str:
    """The target that was given, or the one an engine is for that is not for CPUs."""
    engine = context.params.get("engine")
    return given or (_home(engine) if engine else "cpu")


def _home(name: str) -> str:
    from dspatch import pins
    from dspatch.errors import DspatchError

    try:
        targets = pins.engine(name).targets
    except DspatchError:
        return "cpu"  # The command itself says what is wrong with the engine.
    return "cpu" if "cpu" in targets or not targets else targets[0]


# Eager, so that it is known when --target looks for its default.
engine = click.option(
    "--engine",
    metavar="NAME",
    is_eager=True,
    shell_complete=_complete_engine,
    help="Engine; vllm when left out.",
)
rev = click.option(
    "--rev",
    metavar="REV",
    shell_complete=complete_rev,
    help="Pinned release (v0.27.1), or with --repo or --source git any commit, tag or branch.",
)
target = click.option(
    "--target",
    type=click.Choice(TARGETS),
    callback=_target,
    help="Where the wheel will run; cpu when left out, where the engine has it.",
)
variant = click.option(
    "--variant",
    "variants",
    multiple=True,
    metavar="NAME",
    shell_complete=_complete_variant,
    help="Model to serve, by name or by its config.json; repeatable. Without it: the whole"
    " DeepSeek family.",
)
as_json = click.option(
    "--json", "as_json", is_flag=True, help="Print the result as one JSON object."
)
source = click.option(
    "--source",
    type=click.Choice(["auto", "git", "sdist", "wheel"]),
    default="auto",
    show_default=True,
    help="Where the pinned source is taken from; auto says which it took.",
)
repo = click.option(
    "--repo",
    metavar="URL|PATH",
    help="Take the revision from this git repository: a fork or a clone.",
)
base = click.option(
    "--base",
    metavar="REV",
    help="Pinned release whose compiled members serve a revision that is no release.",
)
discard = click.option(
    "--discard-edits", is_flag=True, help="Drop edits made by hand in the job's tree."
)
output_format = click.option(
    "--output-format",
    metavar="FILE",
    type=click.Path(path_type=Path, exists=True, dir_okay=False),
    help="Serve answers in the format that this file describes; a job of its own.",
)
extra = click.option(
    "--with",
    "extra",
    multiple=True,
    metavar="PATCH",
    help="Also this patch, which no job has unasked; a job of its own. Repeatable.",
)
without_extensions = click.option(
    "--without-extensions",
    is_flag=True,
    help="Compile nothing: operators run in PyTorch alone, and no compiler is needed.",
)
fresh = click.option(
    "--fresh", is_flag=True, help="Measure again although nothing changed since the last report."
)


def job(command: Command) -> Command:
    """--engine, --rev, --target, --variant, --with, --output-format, --json: which job is meant."""
    for option in reversed((engine, rev, target, variant, extra, output_format, as_json)):
        command = option(command)
    return command


def sources(command: Command) -> Command:
    """--source, --repo, --base: where the source comes from."""
    for option in reversed((source, repo, base)):
        command = option(command)
    return command


def place(command: Command) -> Command:
    """--engine, --rev, --repo, --env: where the engine's source is that is asked."""
    for option in reversed((
        engine,
        click.option(
            "--rev", metavar="REV", shell_complete=complete_rev,
            help="A release, pinned or not; with --repo any commit, tag or branch.",
        ),
        click.option("--repo", metavar="URL|PATH", help="A fork or a clone; without --rev, a work tree."),
        click.option("--env", metavar="PYTHON", help="What this Python, or virtual environment, has."),
    )):  # fmt: skip
        command = option(command)
    return command


def check_place(given: Mapping[str, Any]) -> None:
    """Raise for a place that is two at once."""
    if given["env"] is not None and (given["rev"] or given["repo"]):
        raise click.UsageError("--env names an installation; leave --rev and --repo out")


def check_no_place(given: Mapping[str, Any]) -> None:
    """Raise for a place where all releases are meant."""
    if any(given[name] for name in ("rev", "repo", "env")):
        raise click.UsageError("all releases are read; leave --rev, --repo and --env out")
