"""Usage: python -m vllm_parallel_worker REQUEST.json, with this package's parent folder on PYTHONPATH.

The request is `run` (checkpoint, degree, dtype, prompts, steps, folder: what was said and the weights of
each process go there; `reads`: another run's folder, whose texts are read) or `compare` (the folders `one` and
`many`); the result goes to `target`.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path

from . import joining, running


def main(request: Path) -> None:
    """Do what the request says."""
    asked = json.loads(request.read_text())
    if "run" in asked:
        found = running.run(asked["run"])
    else:
        found = joining.compare(Path(asked["compare"]["one"]), Path(asked["compare"]["many"]))
    Path(asked["target"]).write_text(json.dumps(found, indent=1) + "\n")


if __name__ == "__main__":
    main(Path(sys.argv[1]))
