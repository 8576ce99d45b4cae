"""`dspatch patch matrix`: what becomes of each patch on each published release."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import click

from dspatch import options
from dspatch.commands.groups import patch
from dspatch.console import Console


def _one(_: click.Context, option: click.Parameter, given: tuple[Path, ...]) -> Path | None:
    """The document that an option names; click takes the last of several and says nothing of the others."""
    if len(given) > 1:
        raise click.UsageError(f"{option.opts[0]} takes one document; run it again for the next")
    return given[0] if given else None


@patch.command("matrix")
@options.engine
@options.rev
@click.option(
    "--target", "targets", multiple=True, type=click.Choice(options.TARGETS),
    help="Repeatable; every target when left out.",
)  # fmt: skip
@options.variant
@click.option("--native", is_flag=True, help="Read native sources, too: fetches sdists, once.")
@click.option("--pre", "prereleases", is_flag=True, help="Try prereleases, too.")
@click.option("--yanked", is_flag=True, help="Try releases that were taken back, too.")
@click.option("--summary", is_flag=True, help="One release in a few lines; needs --rev.")
@click.option("--markdown", is_flag=True, help="Print the table as Markdown.")
@click.option(
    "--write", multiple=True, callback=_one, type=click.Path(dir_okay=False, path_type=Path), metavar="FILE",
    help="Write the table into a document, between its marks.",
)  # fmt: skip
@click.option(
    "--check", multiple=True, callback=_one, type=click.Path(exists=True, dir_okay=False, path_type=Path),
    metavar="FILE", help="Fail when a document claims what is not measured.",
)  # fmt: skip
@options.as_json
def patch_matrix(
    engine: str | None,
    rev: str | None,
    summary: bool,
    markdown: bool,
    write: Path | None,
    check: Path | None,
    as_json: bool,
    **given: Any,
) -> None:
    """Try every patch on every published release, without downloading releases.

    Python is read from remote wheels, one member at a time. A cell that was measured before is not
    measured again until its patch or the release changes.

    \b
    dspatch patch matrix --engine vllm
    dspatch patch matrix --summary --rev v0.30.0 --variant deepseek-v3
    dspatch patch matrix --native --write docs/support.md
    dspatch patch matrix --check docs/support.md
    """
    from dspatch.stages import matrix as stage
    from dspatch.stages import show_matrix as show
    from dspatch.stages import support

    if summary and rev is None:
        raise click.UsageError("--summary answers for one release: name it with --rev")
    if rev is not None and (write or check):
        raise click.UsageError("--write and --check are about all releases; leave --rev out")
    if write and check:
        raise click.UsageError("one of --write and --check: a table just written holds")
    console = Console(as_json=as_json)
    wanted = stage.Wanted(engine=engine or "vllm", rev=rev, **given)
    done = stage.run(wanted, console)
    if write:
        show.wrote(support.write(done, write, native=wanted.native), write, done, console)
    elif check:
        show.checked(support.check(done, check), check, done, console)
    else:
        (show.summary if summary else show.markdown if markdown else show.matrix)(done, console)
