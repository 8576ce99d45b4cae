"""The one place that runs processes."""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path

from dspatch.ending import kill_session, starting
from dspatch.errors import ProcessError, ProcessTimeoutError

TAIL_LINES = 30
TAIL_BYTES = 64 * 1024
STOPPING = 10.0  # seconds that a background process gets to stop


@dataclass(frozen=True, kw_only=True)
class Completed:
    """A finished command: its exit status and what it printed (stdout apart from stderr)."""

    argv: tuple[str, ...]
    returncode: int
    stdout: str
    stderr: str


def run(
    argv: Sequence[str | Path],
    *,
    cwd: Path | None = None,
    env: Mapping[str, str] | None = None,
    stdin: str | None = None,
    log: Path | None = None,
    timeout: float | None = None,
    check: bool = True,
) -> Completed:
    """Run a command to its end and return what it printed.

    `env` is added to the caller's environment. With `log`, both streams go to that file and only its
    tail is kept. `timeout` is in seconds; its whole session is killed past it.

    Raises `ProcessError` when the program is missing or, with `check`, exits non-zero, and
    `ProcessTimeoutError` past `timeout`.
    """
    command = tuple(str(part) for part in argv)
    _need(command)
    done = _run_logged(command, cwd, env, stdin, log, timeout)
    if check and done.returncode != 0:
        raise ProcessError(
            f"`{_short(command)}` exited with status {done.returncode}.",
            why=tail(done.stderr or done.stdout) or "it printed nothing",
            next=f"read the whole log: {log}" if log else "mend the cause above and run it again",
        )
    return done


def _need(command: Sequence[str]) -> None:
    if shutil.which(command[0]) is None:
        raise ProcessError(
            f"{command[0]} is not installed or not on PATH.",
            why=f"It is needed for: {' '.join(command[:4])} …",
            next=f"install {Path(command[0]).name} and run the command again",
        )


@contextmanager
def background(
    argv: Sequence[str | Path], *, env: Mapping[str, str] | None = None, log: Path
) -> Iterator[subprocess.Popen[bytes]]:
    """A process that runs beside this one until the end of the block, when its whole session is stopped.

    It runs in the folder of `log`, to which both its streams go. It is asked to stop first, and killed
    after ten seconds. Raises `ProcessError` when the program is missing.
    """
    command = [str(part) for part in argv]
    _need(command)
    log.parent.mkdir(parents=True, exist_ok=True)
    with log.open("wb") as stream, starting() as ended_with_us:
        process = subprocess.Popen(
            command,
            cwd=log.parent,
            env={**os.environ, **(env or {})},
            stdin=subprocess.DEVNULL,
            stdout=stream,
            stderr=subprocess.STDOUT,
            start_new_session=True,
        )
        ended_with_us.add(process.pid)
    with process:
        try:
            # From here on it is asked to stop first.
            ended_with_us.discard(process.pid)
            yield process
        finally:
            with suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGTERM)
            with suppress(subprocess.TimeoutExpired):
                process.wait(STOPPING)
            # Children of a server that ended may still run.
            kill_session(process.pid)


def last_words(log: Path) -> str:
    """The end of a log."""
    return _file_tail(log) or "it printed nothing"


def tail(text: str, lines: int = TAIL_LINES) -> str:
    """The last lines of a text, without trailing blanks."""
    return "\n".join(text.rstrip().splitlines()[-lines:])


def _short(command: Sequence[str]) -> str:
    text = " ".join(command)
    return text if len(text) <= 160 else text[:157] + "…"


def _run_logged(
    command: tuple[str, ...],
    cwd: Path | None,
    env: Mapping[str, str] | None,
    stdin: str | None,
    log: Path | None,
    timeout: float | None,
) -> Completed:
    merged = {**os.environ, **(env or {})}
    if log is None:
        code, out, err = _communicate(
            command, cwd, merged, stdin, timeout, subprocess.PIPE, subprocess.PIPE
        )
        return Completed(argv=command, returncode=code, stdout=out or "", stderr=err or "")
    log.parent.mkdir(parents=True, exist_ok=True)
    with log.open("ab") as stream:
        stream.write(f"+ {' '.join(command)}\n".encode())
        stream.flush()
        code, _, _ = _communicate(
            command, cwd, merged, stdin, timeout, stream.fileno(), subprocess.STDOUT
        )
    return Completed(argv=command, returncode=code, stdout="", stderr=_file_tail(log))


def _file_tail(path: Path) -> str:
    with path.open("rb") as stream:
        stream.seek(max(0, path.stat().st_size - TAIL_BYTES))
        return tail(stream.read().decode(errors="replace"))


def _communicate(
    command: tuple[str, ...],
    cwd: Path | None,
    env: Mapping[str, str],
    stdin: str | None,
    timeout: float | None,
    stdout: int,
    stderr: int,
) -> tuple[int, str | None, str | None]:
    # A session of its own, so that a timeout or an interrupt reaches the engine's workers too.
    with starting() as ended_with_us:
        process = subprocess.Popen(
            command,
            cwd=cwd,
            env=env,
            stdin=subprocess.PIPE if stdin is not None else subprocess.DEVNULL,
            stdout=stdout,
            stderr=stderr,
            text=True,
            errors="surrogateescape",
            start_new_session=True,
        )
        ended_with_us.add(process.pid)
    with process:
        try:
            out, err = process.communicate(stdin, timeout)
        except subprocess.TimeoutExpired:
            kill_session(process.pid)
            raise ProcessTimeoutError(
                f"`{_short(command)}` ran past its limit of {timeout:g} s and was stopped.",
                next="run it again with a larger --timeout",
            ) from None
        except BaseException:
            kill_session(process.pid)
            raise
        finally:
            ended_with_us.discard(process.pid)
    return process.returncode, out, err
