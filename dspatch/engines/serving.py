"""An engine's own OpenAI-compatible server, started on loopback and stopped with all its processes."""

from __future__ import annotations

import re
import socket
import time
import urllib.error
import urllib.request
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from itertools import islice
from pathlib import Path

from dspatch import process
from dspatch.engines import Progress, silent
from dspatch.errors import EngineError

HOST = "127.0.0.1"
PAUSE = 0.5  # seconds between two questions whether it is up
LINES = 20000  # of a log that are searched for what went wrong
ERROR = re.compile(r"(?:^|\s)(?P<what>(?:\w+\.)*[A-Z]\w*(?:Error|Exception): \S.*)")


@dataclass(frozen=True, kw_only=True)
class Service:
    """What starts a server: the command, and what is added to the environment."""

    argv: tuple[str, ...]
    env: Mapping[str, str]


def free_port() -> int:
    """A port of loopback that nobody listens on now."""
    with socket.socket() as one:
        one.bind((HOST, 0))
        port: int = one.getsockname()[1]
    return port


@contextmanager
def started(
    service: Service,
    port: int,
    log: Path,
    *,
    timeout: float,
    progress: Progress = silent,
    born: Callable[[int], None] = lambda pid: None,
) -> Iterator[str]:
    """The address of the running server; it is stopped at the end of the block.

    `timeout` is in seconds until it answers. `born` is told the process that
    leads its group. Raises `EngineError` when it ends before, or is too slow.
    """
    url = f"http://{HOST}:{port}"
    with process.background(service.argv, env=service.env, log=log) as running:
        born(running.pid)
        progress("starting the engine's server")
        ends = time.monotonic() + timeout
        while not _up(url):
            if (code := running.poll()) is not None:
                raise EngineError(
                    f"The engine's server ended with status {code} before it answered.",
                    why=cause(log),
                    next=f"see what helps: dspatch serve doctor {log}",
                )
            if time.monotonic() > ends:
                raise EngineError(
                    f"The engine's server did not answer within {timeout:g} s.",
                    why=process.last_words(log),
                    next=f"read its log: {log}, or run it again on an idle machine",
                )
            time.sleep(PAUSE)
        yield url


def cause(log: Path) -> str:
    """The first exception that a log names, which those after it only pass on; else its last words."""
    with log.open(errors="replace") as lines:
        named = (ERROR.search(line) for line in islice(lines, LINES))
        first = next((found["what"].strip() for found in named if found), "")
    return first or process.last_words(log)


def _up(url: str) -> bool:
    # Loopback is reached without the proxies of the environment.
    opener = urllib.request.build_opener(urllib.request.ProxyHandler({}))
    try:
        with opener.open(f"{url}/v1/models", timeout=5) as answer:
            return bool(answer.status == 200)
    except (urllib.error.URLError, OSError):
        return False
