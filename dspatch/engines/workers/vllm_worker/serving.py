"""Usage: python -m vllm_worker.serving ARGUMENT…: vLLM's own server, its threads left on any core."""

from __future__ import annotations

import os
import sys
from collections.abc import Sequence

from . import memory, threads

SERVER = "vllm.entrypoints.openai.api_server"


def main(arguments: Sequence[str]) -> None:
    """Become the server."""
    threads.leave_alone(processes=1)
    os.execv(sys.executable, [sys.executable, "-m", SERVER, *memory.told(arguments)])


if __name__ == "__main__":
    main(sys.argv[1:])
