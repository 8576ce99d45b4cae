"""Have the vLLM that is installed leave threads on any core, in the words of its release."""

from __future__ import annotations

import os
from importlib.util import find_spec
from pathlib import Path

VARIABLE = "VLLM_CPU_OMP_THREADS_BIND"
# Where releases read it; which of these there are depends on the release.
READERS = ("utils/ompmultiprocessing.py", "v1/worker/cpu_worker.py", "worker/cpu_worker.py")
# The message of 0.20 that reads a list of cores for each process, also where there is none.
FAULT = "core ids={self.cpu_lists[i]}"


def leave_alone(processes: int = 0) -> None:
    """Set the variable for an engine with so many processes of its own, or with none."""
    found = find_spec("vllm")
    if found and found.origin:
        os.environ[VARIABLE] = word(Path(found.origin).parent, processes)


def word(package: Path, processes: int) -> str:
    """What the variable says to a vLLM whose package is in this folder.

    `nobind`; `all` to releases that take that for a list of cores, and die of it. Those that die of having
    no list where they start processes get all cores that this one may use, for each of them.
    """
    sources = [path.read_text() for name in READERS if (path := package / name).is_file()]
    if processes and any(FAULT in source for source in sources):
        cores = ",".join(map(str, sorted(os.sched_getaffinity(0))))
        return "|".join([cores] * processes)
    return "nobind" if any('"nobind"' in source for source in sources) else "all"
