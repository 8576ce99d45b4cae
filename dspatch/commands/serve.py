"""`dspatch serve flags` and `serve metrics`: command lines, dashboards and alert rules held against a release."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from dspatch import options
from dspatch.commands.groups import serve
from dspatch.console import Console

if TYPE_CHECKING:
    from dspatch.audit.place import Place

_FILE = click.Path(exists=True, dir_okay=False, path_type=Path)


@serve.command()
@click.argument("command", nargs=-1, type=click.UNPROCESSED, metavar="-- COMMAND...")
@options.place
@click.option("--write-ranges", is_flag=True, help="Record which releases have each name.")
@click.option("--check-ranges", is_flag=True, help="Fail when the record does not hold.")
@options.as_json
def flags(
    command: tuple[str, ...], write_ranges: bool, check_ranges: bool, as_json: bool, **given: Any
) -> None:
    """Check a server's command line, and the variables in front of it, against a release.

    Options and variables are read from the release's source; nothing is installed or imported. Each
    word is known, deprecated, unknown or wrong, with the releases that have it and what replaces it.
    Exits with 66 when a word is unknown, wrong or cannot be decided.

    \b
    dspatch serve flags --engine vllm --rev v0.27.1 -- vllm serve MODEL --warmup-steps 3
    dspatch serve flags --rev v0.33.0 -- VLLM_USE_V1=0 vllm serve MODEL -tp 8
    dspatch serve flags --env .venv/bin/python -- vllm serve MODEL --swap-space 4
    dspatch serve flags --engine lmdeploy --rev v0.13.0 -- lmdeploy serve api_server MODEL --tp 8
    """
    console = Console(as_json=as_json)
    if write_ranges or check_ranges:
        options.check_no_place(given)
        if command:
            raise click.UsageError("all releases are read; leave the command out")
        _ranges(given["engine"] or "vllm", console, write=write_ranges)
        return
    if not command:
        raise click.UsageError("write the command behind --")
    from dspatch.stages import serveflags as stage
    from dspatch.stages import show_serveflags as show

    done = stage.of_command(_place(given), command, console)
    show.checked(done, console)
    stage.check(done)


@serve.command()
@click.argument("files", nargs=-1, required=True, type=_FILE, metavar="FILE...")
@options.place
@options.as_json
def metrics(files: tuple[Path, ...], as_json: bool, **given: Any) -> None:
    """Check the metrics of dashboards and alert rules against a release.

    Grafana's JSON and Prometheus' YAML are searched for the engine's metrics. Each is held against what
    the release exports, suffixes (_total, _bucket, _sum, _count) included. Exits with 66 when one is
    unknown, wrong or cannot be decided.

    \b
    dspatch serve metrics --engine vllm --rev v0.27.1 dashboard.json alerts.yaml
    """
    from dspatch.stages import serveflags as stage
    from dspatch.stages import show_serveflags as show

    console = Console(as_json=as_json)
    done = stage.of_files(_place(given), files, console)
    show.checked(done, console)
    stage.check(done)


def _place(given: dict[str, Any]) -> Place:
    from dspatch.audit.place import Place

    options.check_place(given)
    return Place(**{key: given[key] for key in ("engine", "rev", "repo", "env")})


def _ranges(engine: str, console: Console, *, write: bool) -> None:
    from dspatch.serve.known import path_of
    from dspatch.stages import serveranges as stage
    from dspatch.stages import show_serveflags as show

    done = stage.run(engine, console)
    if write:
        show.wrote(done.known, path_of(engine), stage.write(done), done.seconds, console)
    else:
        stage.check(done)
        show.holds(done.known, engine, console)
