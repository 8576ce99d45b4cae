"""`dspatch serve doctor`: what a log, or a machine, shows to be wrong, and what helps."""

from __future__ import annotations

from typing import Any

import click

from dspatch import options
from dspatch.commands.groups import serve
from dspatch.console import Console


@serve.command()
@click.argument("log", required=False)
@options.engine
@click.option("--rev", metavar="REV", help="The engine's release, where the log does not say it.")
@click.option("--env", metavar="PYTHON", help="The Python, or virtual environment, that serves.")
@click.option("--model", metavar="FOLDER", help="The checkpoint: its config.json and index.")
@options.as_json
def doctor(as_json: bool, **given: Any) -> None:
    """Name the causes that a log shows, the first one first, and what helps.

    LOG is a file, packed or not, or `-` for stdin. Without one, the machine is looked at only. Exits with
    68 when causes were found, with 69 for a failure that no known cause explains.

    \b
    dspatch serve doctor server.log
    vllm serve MODEL 2>&1 | tee server.log | dspatch serve doctor -
    kubectl logs POD --previous | dspatch serve doctor - --model checkpoints/DeepSeek-V3
    dspatch serve doctor --env .venv/bin/python
    """
    from dspatch.stages import doctor as stage
    from dspatch.stages import show_doctor as show

    console = Console(as_json=as_json)
    done = stage.run(stage.Asked(**given), console)
    show.examined(done, console)
    stage.check(done)
