"""The command line: groups and commands that parse, call one function and print its result."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

import click

from dspatch import __version__, ending, options
from dspatch.commands import audit as _audit
from dspatch.commands import bench as _bench
from dspatch.commands import bisect as _bisect
from dspatch.commands import conformance as _conformance
from dspatch.commands import doctor as _doctor
from dspatch.commands import edit as _edit
from dspatch.commands import exchange as _exchange
from dspatch.commands import groups, words
from dspatch.commands import inspect as _inspect
from dspatch.commands import lint as _lint
from dspatch.commands import matrix as _matrix
from dspatch.commands import pin as _pin
from dspatch.commands import rebase as _rebase
from dspatch.commands import serve as _serve
from dspatch.commands import wheel as _wheel
from dspatch.console import Console
from dspatch.errors import DspatchError


@click.group(context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 100})
@click.version_option(__version__, prog_name="dspatch")
@click.option("--traceback", is_flag=True, help="Show the traceback of an error.")
def cli(traceback: bool) -> None:
    """Patch, rebuild and prove pinned LLM inference engines for DeepSeek models.

    \b
    dspatch run --engine vllm --rev v0.27.1 --target cpu
    """


@cli.command()
@options.job
@options.without_extensions
@options.sources
@options.discard
@options.fresh
@click.option(
    "--reference-ops", is_flag=True, help="Prove with the plain-PyTorch twin of every operator."
)
def run(
    reference_ops: bool,
    fresh: bool,
    discard_edits: bool,
    without_extensions: bool,
    as_json: bool,
    **given: Any,
) -> None:
    """Go from a pin to a proven wheel.

    One after the other: apply, build-wheel, wheel verify, conformance. A release without a wheel
    for the target is compiled here, where its pin says how.

    \b
    dspatch run --engine vllm --rev v0.27.1 --target cpu
    dspatch run --engine vllm --rev v0.32.0 --variant deepseek-v3
    dspatch run --engine vllm --rev v0.6.0 --target cpu
    """
    from dspatch.stages import pipeline, proving, show

    console = Console(as_json=as_json)
    wanted = proving.Wanted(reference_ops=reference_ops, fresh=fresh)
    done = pipeline.run(
        words.request(given), console, wanted,
        discard_edits=discard_edits, without_extensions=without_extensions,
    )  # fmt: skip
    show.whole_run(done, console)


@cli.command()
@options.job
@options.sources
@options.discard
@click.option("--dry-run", is_flag=True, help="Render and print the diffs; touch no job.")
def apply(dry_run: bool, discard_edits: bool, as_json: bool, **given: Any) -> None:
    """Apply the patch series to a pinned revision, all or nothing.

    \b
    dspatch apply --engine vllm --rev v0.27.1
    dspatch apply --engine vllm --rev v0.27.1 --dry-run > series.diff
    """
    from dspatch.stages import apply as stage
    from dspatch.stages import show

    console = Console(as_json=as_json)
    if dry_run:
        show.dry_run(*stage.compute(words.request(given), console), console)
    else:
        show.applied(stage.run(words.request(given), console, discard_edits=discard_edits), console)


@cli.command()
@options.job
@options.discard
def unapply(discard_edits: bool, as_json: bool, **given: Any) -> None:
    """Take the series off a job's tree again.

    \b
    dspatch unapply
    """
    from dspatch.stages import apply as stage

    job = words.job(given)
    changed = stage.undo(job, discard_edits=discard_edits)
    console = Console(as_json=as_json)
    console.say(f"{job.id}: {job.tree} is pristine" + ("" if changed else "; it was already"))
    console.result({"job": str(job.id), "tree": job.tree, "changed": changed})


@cli.command("build-wheel")
@options.job
@options.without_extensions
@click.option(
    "--delta",
    is_flag=True,
    help="Also write a small file that makes it of an installed base wheel.",
)
@click.option(
    "--mode",
    type=click.Choice(["overlay", "source"]),
    help="On upstream's own wheel, or compiled here from the patched tree; overlay, where the pin has a wheel.",
)
@click.option(
    "--device", metavar="NAME", help="With --mode source: cpu, cuda or empty; the target."
)
@click.option("--torch", metavar="VERSION", help="With --mode source: build with this torch.")
@click.option(
    "--jobs", type=click.IntRange(min=1), help="With --mode source: so many compilers at once."
)
@click.option(
    "--arch",
    "archs",
    metavar="NAME",
    multiple=True,
    help="With --mode source: a CUDA architecture, such as 90a. Repeatable.",
)
@click.option(
    "--clones",
    type=click.Path(exists=True, file_okay=False, path_type=Path),
    help="With --mode source: a folder with clones of the projects whose sources the build fetches.",
)
def build_wheel(
    delta: bool,
    without_extensions: bool,
    mode: str | None,
    device: str | None,
    torch: str | None,
    jobs: int | None,
    archs: tuple[str, ...],
    clones: Path | None,
    as_json: bool,
    **given: Any,
) -> None:
    """Build the wheel of an applied job.

    Without arguments, of the job applied last.

    \b
    dspatch build-wheel
    dspatch build-wheel --engine vllm --rev v0.27.1 --target cuda --delta
    dspatch build-wheel --engine vllm --rev v0.6.0 --target cpu --mode source
    dspatch build-wheel --engine lmdeploy --rev v0.16.0 --mode source --arch 90a
    """
    from dspatch.stages import build as stage
    from dspatch.stages import compiling, show, show_wheel
    from dspatch.stages import delta as thin

    console = Console(as_json=as_json)
    how = compiling.How(device=device, torch=torch, jobs=jobs, archs=archs, clones=clones)
    if mode != "source" and how != compiling.How():
        raise click.UsageError(
            "--device, --torch, --jobs, --arch and --clones go with --mode source."
        )
    job = words.job(given)
    chosen = how if mode == "source" else None if mode == "overlay" else stage.usual(job)
    if delta and chosen is not None:
        thin.refuse_compiled()
    done = stage.run(job, console, chosen, without_extensions=without_extensions)
    if delta:
        show_wheel.thin(thin.run(done, console), console)
    else:
        show.built(done, console)


@cli.command()
@options.job
def status(as_json: bool, **given: Any) -> None:
    """Show where each job stands.

    Which stages it has been through, and whether they still hold.

    \b
    dspatch status
    """
    from dspatch.job import all_jobs
    from dspatch.stages import show

    named = given["engine"] or given["rev"]
    show.status([words.job(given)] if named else all_jobs(), Console(as_json=as_json))


# Importing these modules registers their commands on the groups.
_REGISTERED = (
    _bench,
    _doctor,
    _edit,
    _exchange,
    _inspect,
    _lint,
    _matrix,
    _pin,
    _rebase,
    _serve,
    _wheel,
)
for group in (groups.bench, groups.pin, groups.patch, groups.serve, groups.wheel):
    cli.add_command(group)
cli.add_command(_audit.audit)
cli.add_command(_bisect.bisect)
cli.add_command(_conformance.conformance)


@cli.command()
@click.argument("shell", type=click.Choice(["bash", "zsh", "fish"]))
def completion(shell: str) -> None:
    """Print the completion script of a shell.

    \b
    dspatch completion bash >> ~/.bashrc
    """
    from click.shell_completion import get_completion_class

    found = get_completion_class(shell)
    assert found is not None
    click.echo(found(cli, {}, "dspatch", "_DSPATCH_COMPLETE").source())


def main(argv: list[str] | None = None) -> None:
    """Run the command line; an expected error ends with its own exit code and no traceback."""
    arguments = sys.argv[1:] if argv is None else argv
    try:
        with ending.ended_with_us():
            cli.main(arguments, prog_name="dspatch", standalone_mode=True)
    except (DspatchError, OSError) as caught:
        from dspatch import files

        error = files.told(caught) if isinstance(caught, OSError) else caught
        if error is None or "--traceback" in arguments:
            raise
        if "--json" in arguments and not error.follows_result:
            click.echo(json.dumps(error.as_dict(), indent=2))
        else:
            click.echo(
                click.style("error: ", fg="red", bold=True, reset=True) + str(error), err=True
            )
        sys.exit(error.exit_code)
