"""`dspatch patch rebase`: take the series to another revision, and resolve what conflicts."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import click

from dspatch import options
from dspatch.commands import words
from dspatch.commands.groups import patch
from dspatch.console import Console

if TYPE_CHECKING:
    from dspatch.job import Job
    from dspatch.stages.rebase import Rebased

_STEPS = ("continue", "skip", "abort")


@patch.command("rebase")
@click.argument("names", nargs=-1, metavar="[NAME]...")
@options.job
@click.option(
    "--onto", metavar="REV", shell_complete=options.complete_rev, help="Revision to take it to."
)
@click.option(
    "--repo",
    metavar="URL|PATH",
    help="Upstream's git: revisions that are no pins come from it, and the history of a local clone"
    " explains conflicts.",
)
@options.base
@click.option("--dry-run", is_flag=True, help="Say what would come of it; touch no job.")
@click.option("--continue", "step", flag_value="continue", help="Go on; the conflict is resolved.")
@click.option("--skip", "step", flag_value="skip", help="Go on without the patch in conflict.")
@click.option("--abort", "step", flag_value="abort", help="Put everything back.")
def rebase(
    names: tuple[str, ...], step: str | None, dry_run: bool, as_json: bool, **given: Any
) -> None:
    """Take the series, or the patches named, from --rev to --onto.

    Each patch goes on by its text, merged three-way, and by its edits run again; both are compared.
    A conflict is explained and stands in the job's tree with markers: resolve it there, `git add`
    the files, and --continue. The resolution is kept as the patch's form for that revision.

    \b
    dspatch patch rebase --rev v0.27.1 --onto v0.32.0
    dspatch patch rebase --rev v0.27.1 --onto v0.32.0 cpu-mla --dry-run
    dspatch patch rebase --continue
    """
    from dspatch.stages import rebase as stage
    from dspatch.stages import show_rebase as show

    console = Console(as_json=as_json)
    if step is not None:
        if names or dry_run:
            raise click.UsageError(f"--{step} takes neither names nor --dry-run")
        _go_on(step, given, console)
    elif dry_run:
        show.dry_run(stage.tried(_wanted(given, names), console), console)
    else:
        show.rebased(stage.start(_wanted(given, names), console), console)


def _go_on(step: str, given: dict[str, Any], console: Console) -> None:
    from dspatch.stages import rebase as stage
    from dspatch.stages import show_rebase as show

    job = _job(given)
    if step == "abort":
        show.aborted(job, stage.abort(job), console)
        return
    done: Rebased = stage.resume(job, console) if step == "continue" else stage.skip(job, console)
    show.rebased(done, console)


def _wanted(given: dict[str, Any], names: tuple[str, ...]) -> Any:
    from dspatch.carry.rebase.rebasestate import Wanted

    if given["output_format"] is not None or given["extra"]:
        raise click.UsageError(
            "a rebase takes the patches of every job: no --with, no --output-format"
        )
    if given["onto"] is None:
        raise click.UsageError("--onto is needed, for example --onto v0.32.0")
    return Wanted(
        engine=given["engine"] or "vllm",
        # The job applied last is where the series is known to stand.
        rev=given["rev"] or words.last_request().rev,
        onto=given["onto"],
        target=given["target"],
        variants=given["variants"],
        repo=given["repo"],
        base=given["base"],
        names=names,
    )


def _job(given: dict[str, Any]) -> Job:
    from dspatch import paths
    from dspatch.stages import rebase as stage

    return stage.job_under_way(
        paths.work(),
        onto=given["onto"] or given["rev"],
        target=given["target"],
        variants=given["variants"],
    )
