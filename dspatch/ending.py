"""Signals that end dspatch end the processes that it runs, too, and let it clear away what is half done."""

from __future__ import annotations

import os
import signal
import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

# What a scheduler, a service manager and a terminal that is closed send.
ENDING = (signal.SIGTERM, signal.SIGHUP)

_running: set[int] = set()  # the processes that lead a session each
# Lists, since whichever thread changes one does it in one step.
_starting: list[None] = []
_told: list[int] = []


@contextmanager
def ended_with_us() -> Iterator[None]:
    """Inside the block, SIGTERM and SIGHUP end all that `process.run` started, then this process as an exit does.

    As after an interrupt, what is half done is cleared away. A signal that is ignored, or handled already, stays so.
    """
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    ours = [number for number in ENDING if signal.getsignal(number) is signal.SIG_DFL]
    for number in ours:
        signal.signal(number, _end)
    try:
        yield
    finally:
        for number in ours:
            signal.signal(number, signal.SIG_DFL)


@contextmanager
def starting() -> Iterator[set[int]]:
    """Hold back what ends us while a process is started; gives those that end with us, for it to be added."""
    _starting.append(None)
    try:
        yield _running
    finally:
        _starting.pop()
        if _told and not _starting:
            # To the main thread itself: it is the one that ends, and may be waiting for this one.
            signal.pthread_kill(threading.main_thread().ident or 0, _told[-1])


def kill_session(pid: int) -> None:
    """Kill a process that leads a session, and every process of the session.

    Its own group alone is not enough: Ninja gives every compiler that it starts a group of its own.
    """
    with suppress(ProcessLookupError):
        os.killpg(pid, signal.SIGKILL)
    killed = set[int]()
    # One may start another before it is killed.
    while new := _session(pid) - killed:
        for each in new:
            with suppress(ProcessLookupError):
                os.kill(each, signal.SIGKILL)
        killed |= new


def _session(leader: int) -> set[int]:
    """The processes of a session, as the kernel lists them."""
    found = set[int]()
    for stat in Path("/proc").glob("[0-9]*/stat"):
        with suppress(OSError, IndexError):
            # After the name, which may have any characters: state, parent, group, session.
            fields = stat.read_bytes().rpartition(b")")[2].split()
            if int(fields[3]) == leader:
                found.add(int(stat.parent.name))
    return found


def _end(number: int, frame: object) -> None:
    # Told before it is looked: who has started a process looks for it then.
    _told.append(number)
    if _starting:
        return
    for each in ENDING:
        # A closed terminal says it twice, and what is half done is still to be cleared away.
        if signal.getsignal(each) is _end:
            signal.signal(each, lambda *_: None)
    _told.clear()
    for pid in tuple(_running):
        kill_session(pid)
    raise SystemExit(128 + number)
