"""`dspatch pin`: releases known by hash."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import click

from dspatch import options
from dspatch.commands import words
from dspatch.commands.groups import pin
from dspatch.console import Console


@pin.command("add")
@options.engine
@options.rev
@click.option(
    "--target", "targets", multiple=True, type=click.Choice(options.TARGETS), help="Repeatable."
)
@click.option(
    "--accept", multiple=True, metavar="PATH=REASON", help="Accept a difference of a base wheel."
)
@click.option(
    "--torch", metavar="VERSION", help="Compile targets without a base wheel, with this torch."
)
@click.option(
    "--from-source",
    multiple=True,
    type=click.Choice(options.TARGETS),
    help="Compile this target, also where a base wheel is published; repeatable.",
)
@click.option(
    "--setting",
    "settings",
    multiple=True,
    metavar="NAME=VALUE: REASON",
    help="Set a variable for what is compiled; repeatable.",
)
@click.option(
    "--bound",
    "bounds",
    multiple=True,
    metavar="REQUIREMENT: REASON",
    help="Narrow what the wheels ask for; repeatable.",
)
@click.option(
    "--override",
    "overrides",
    multiple=True,
    metavar="REQUIREMENT: REASON",
    help="Replace what a base wheel asks for and cannot have; repeatable.",
)
@options.as_json
def pin_add(
    engine: str | None,
    rev: str | None,
    targets: tuple[Any, ...],
    accept: tuple[str, ...],
    torch: str | None,
    from_source: tuple[Any, ...],
    settings: tuple[str, ...],
    bounds: tuple[str, ...],
    overrides: tuple[str, ...],
    as_json: bool,
) -> None:
    """Write the pin of a release: find its files, fetch and check them, note their hashes.

    \b
    dspatch pin add --engine vllm --rev v0.33.0
    dspatch pin add --engine vllm --rev v0.6.0 --torch 2.13.0 --bound "transformers<5: untried"
    dspatch pin add --engine vllm --rev v0.11.2 --override "triton==3.4.0: torch 2.8.0 needs it"
    """
    from dspatch.stages import pinning, show

    console = Console(as_json=as_json)
    named = words.named(engine, rev)
    done = pinning.add(
        *named,
        targets,
        accept,
        console,
        torch=torch,
        from_source=from_source,
        settings=settings,
        bounds=bounds,
        overrides=overrides,
    )
    show.pin_added(done, console)


@pin.command("list")
@options.engine
@options.as_json
def pin_list(engine: str | None, as_json: bool) -> None:
    """List the pins.

    \b
    dspatch pin list --engine vllm
    """
    from dspatch.stages import pinning, show

    show.pins(pinning.listed(engine), Console(as_json=as_json))


@pin.command("show")
@options.engine
@options.rev
@options.as_json
def pin_show(engine: str | None, rev: str | None, as_json: bool) -> None:
    """Show one pin: sources, base wheels, what they need, which differences are accepted.

    \b
    dspatch pin show --engine vllm --rev v0.27.1
    """
    from dspatch import pins
    from dspatch.stages import show

    show.pin(pins.load(*words.named(engine, rev)), Console(as_json=as_json))


@pin.command("mirror")
@click.argument("folder", type=click.Path(file_okay=False, path_type=Path))
@options.engine
@click.option(
    "--rev", "revs", multiple=True, metavar="REV", help="Pinned release (v0.27.1); repeatable."
)
@click.option(
    "--target",
    "targets",
    multiple=True,
    type=click.Choice(options.TARGETS),
    help="Repeatable; cpu.",
)
@options.variant
@click.option("--jobs", is_flag=True, help="Mirror for every job that was applied here.")
@click.option(
    "--conformance/--no-conformance",
    default=True,
    help="With or without what conformance installs: gigabytes of torch.",
)
@click.option("--check", is_flag=True, help="Verify every file of the mirror; fetch nothing.")
@options.as_json
def pin_mirror(
    folder: Path,
    engine: str | None,
    revs: tuple[str, ...],
    targets: tuple[str, ...],
    variants: tuple[str, ...],
    jobs: bool,
    conformance: bool,
    check: bool,
    as_json: bool,
) -> None:
    """Write all that jobs need into FOLDER, for runs without a network.

    Sources, base wheels and every package that the environments install, by hash. Without --rev and
    --jobs, for the jobs that it was written for. A run then uses it alone: DSPATCH_MIRROR=FOLDER.

    \b
    dspatch pin mirror mirror --engine vllm --rev v0.27.1
    dspatch pin mirror mirror --check
    """
    from dspatch.pins import mirror as mirrors
    from dspatch.stages import mirror, show_mirror

    console = Console(as_json=as_json)
    if check:
        show_mirror.checked(folder, mirrors.check(folder), console)
        return
    wanted = mirror.named(engine or "vllm", revs, targets, variants)
    wanted += mirror.applied() if jobs else []
    wanted = wanted or mirror.known(folder)
    show_mirror.written(mirror.run(folder, wanted, console, prove=conformance), console)
