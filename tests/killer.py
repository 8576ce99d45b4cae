"""Run code in a process that kills itself just before its Nth touch of the disk, or its Nth process."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

ROOT = Path(__file__).parents[1]
_TOUCHES = frozenset(
    {
        *(f"os.{name}" for name in ("rename", "remove", "rmdir", "mkdir", "link", "symlink")),
        *("os.truncate", "os.chmod", "subprocess.Popen", "tempfile.mkdtemp", "tempfile.mkstemp"),
    }
)
_WRITES = os.O_WRONLY | os.O_RDWR


def arm(touches: int) -> None:
    """From here on, kill this process before that touch; 0 is before the first."""
    left = touches

    def count(event: str, arguments: tuple[object, ...]) -> None:
        nonlocal left
        writes = event == "open" and isinstance(arguments[2], int) and arguments[2] & _WRITES
        if event in _TOUCHES or writes:
            if left == 0:
                os.kill(os.getpid(), signal.SIGKILL)
            left -= 1

    sys.addaudithook(count)


def run(code: str, **variables: str) -> subprocess.CompletedProcess[str]:
    """Run code in a process of its own."""
    return subprocess.run(
        [sys.executable, "-W", "ignore", "-c", code],
        cwd=ROOT,
        env={**os.environ, **variables},
        capture_output=True,
        text=True,
        check=False,
    )


def killed_everywhere(
    code: str, prepare: Callable[[], object], *, step: int = 1, **variables: str
) -> Iterator[int]:
    """Run `code` again and again, killed some touches later each time, until it ends by itself.

    `prepare` sets the stage before each run; the caller looks at what is left after each.
    """
    for touches in range(0, 10_000, step):
        prepare()
        done = run(f"from tests import killer\nkiller.arm({touches})\n{code}", **variables)
        assert done.returncode in (0, -signal.SIGKILL), done.stderr
        yield touches
        if done.returncode == 0:
            return
