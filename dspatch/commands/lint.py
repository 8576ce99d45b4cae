"""`dspatch patch lint`: every fault of the patches at once."""

from __future__ import annotations

import click

from dspatch import options
from dspatch.commands.groups import patch
from dspatch.console import Console


@patch.command("lint")
@click.argument("names", nargs=-1, metavar="[NAME]...")
@options.engine
@click.option(
    "--quick", is_flag=True, help="Look at the patch folders only, at no tree: nothing is fetched."
)
@click.option("--write", is_flag=True, help="Bring goldens and recorded uses up to date first.")
@options.as_json
def patch_lint(
    names: tuple[str, ...], engine: str | None, quick: bool, write: bool, as_json: bool
) -> None:
    """Check the patches: words, templates, diffs, goldens, and what each pin shows of them.

    \b
    dspatch patch lint --engine vllm
    dspatch patch lint --engine vllm cpu-mla --write
    """
    from dspatch.stages import lint, show_lint

    if quick and write:
        raise click.UsageError("--write needs the trees that --quick leaves out")
    linted = lint.run(engine or "vllm", names, Console(as_json=as_json), quick=quick, write=write)
    show_lint.linted(linted, Console(as_json=as_json))
