"""A process that has dspatch loaded and forks for each command, so that hundreds can be killed in a minute."""

from __future__ import annotations

import ctypes
import importlib
import json
import os
import pkgutil
import signal
import subprocess
import sys
import time
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parents[1]
PR_SET_CHILD_SUBREAPER = 36


@dataclass(frozen=True)
class Ended:
    """How a command ended: its exit code (-9 when it was killed), its seconds, what it printed."""

    code: int
    seconds: float
    said: str


class Zygote:
    """Runs commands of dspatch in a folder, each in a fork that may be killed."""

    def __init__(self, folder: Path, environment: dict[str, str]) -> None:
        self._process = subprocess.Popen(
            [sys.executable, "-m", "tests.zygote", str(folder)],
            cwd=ROOT,
            env=environment,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )

    def run(
        self,
        *words: str,
        touches: int | None = None,
        after: float | None = None,
        fault: str | None = None,
    ) -> Ended:
        """Run one command; kill it before that touch of the disk, or all of it after those seconds.

        `fault` is code that is run in the fork first, to break what it runs.
        """
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        asked = {"words": words, "touches": touches, "after": after, "fault": fault}
        self._process.stdin.write(json.dumps(asked) + "\n")
        self._process.stdin.flush()
        return Ended(**json.loads(self._process.stdout.readline()))

    def close(self) -> None:
        self._process.communicate()


def _preload() -> None:
    """Import what commands import when they need it."""
    import dspatch

    for module in pkgutil.walk_packages(dspatch.__path__, "dspatch."):
        if "worker" not in module.name and not module.name.endswith("__main__"):
            importlib.import_module(module.name)
    for name in ("git.cmd", "jinja2", "tomlkit", "rich.console", "rich.progress", "rich.table"):
        importlib.import_module(name)


def _serve(folder: str) -> None:
    # Orphaned git processes come to us, so that none is still writing when we answer.
    ctypes.CDLL(None).prctl(PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0)
    _preload()
    os.chdir(folder)
    said = Path(folder) / "said.txt"
    for line in sys.stdin:
        asked = json.loads(line)
        started = time.monotonic()
        pid = os.fork()
        if pid == 0:
            _child(asked, said)
        code = _waited(pid, asked["after"])
        seconds = time.monotonic() - started
        answer: dict[str, Any] = {"code": code, "seconds": seconds, "said": said.read_text()}
        print(json.dumps(answer), flush=True)


def _child(asked: dict[str, Any], said: Path) -> None:
    from dspatch.cli import main

    code = 70
    try:
        os.setsid()
        out = os.open(said, os.O_WRONLY | os.O_CREAT | os.O_TRUNC)
        for stream in (1, 2):
            os.dup2(out, stream)
        if asked["fault"]:
            exec(asked["fault"], {})
        if asked["touches"] is not None:
            from tests import killer

            killer.arm(asked["touches"])
        main(asked["words"])
        code = 0
    except SystemExit as end:
        code = end.code if isinstance(end.code, int) else 1
    except BaseException:
        import traceback

        traceback.print_exc()
    finally:
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(code)


def _waited(pid: int, after: float | None) -> int:
    if after is not None:
        time.sleep(after)
    done, status = os.waitpid(pid, os.WNOHANG if after is not None else 0)
    if not done:
        try:
            os.killpg(pid, signal.SIGKILL)
        except ProcessLookupError:  # not yet a group of its own
            os.kill(pid, signal.SIGKILL)
        _, status = os.waitpid(pid, 0)
    if os.WIFSIGNALED(status):
        with suppress(ProcessLookupError):
            os.killpg(pid, signal.SIGKILL)
    _reap()
    return -os.WTERMSIG(status) if os.WIFSIGNALED(status) else os.WEXITSTATUS(status)


def _reap() -> None:
    """Wait for every git that a killed command left behind."""
    while True:
        try:
            os.waitpid(-1, 0)
        except ChildProcessError:
            return


if __name__ == "__main__":
    _serve(sys.argv[1])
