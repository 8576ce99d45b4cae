"""What ends dspatch ends what it runs, whenever the signal comes."""

from __future__ import annotations

import signal
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from threading import Event, Thread, Timer
from time import monotonic, sleep
from typing import Any

import pytest

from dspatch import ending, process

LONG = ["sleep", "60"]


def run(folder: Path) -> None:
    process.run(LONG)


def background(folder: Path) -> None:
    with process.background(LONG, log=folder / "log"):
        raise AssertionError("it goes on after what ends it")


@pytest.fixture(autouse=True)
def _by_default() -> Iterator[None]:
    """Both signals as a program finds them: `nohup` would have the tests ignore one."""
    before = {number: signal.signal(number, signal.SIG_DFL) for number in ending.ENDING}
    yield
    for number, handler in before.items():
        signal.signal(number, handler)


def sent(number: int) -> None:
    # To the main thread: sent to the process, another one may take it, and Python handle it some lines later.
    signal.pthread_kill(threading.main_thread().ident or 0, number)


@pytest.mark.parametrize("start", [run, background])
def test_a_signal_while_a_process_starts_leaves_nobody_behind(
    start: Callable[[Path], None], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    popen, started = subprocess.Popen, []

    def hit(*words: Any, **rest: Any) -> Any:
        started.append(popen(*words, **rest))
        sent(signal.SIGTERM)
        return started[-1]

    monkeypatch.setattr(subprocess, "Popen", hit)
    with pytest.raises(SystemExit) as caught, ending.ended_with_us():
        start(tmp_path)
    assert caught.value.code == 128 + signal.SIGTERM
    assert [each.wait(10) for each in started] == [-signal.SIGKILL]
    for each in started:
        each.communicate()


def test_who_has_a_group_of_its_own_ends_with_the_session(tmp_path: Path) -> None:
    """Ninja gives every compiler one: a killed build would leave them compiling."""
    told = tmp_path / "pid"
    child = f"import os, time; os.setpgid(0, 0); open({str(told)!r}, 'w').write(str(os.getpid()) + '.'); time.sleep(60)"
    starts = f"import subprocess, sys; subprocess.run([sys.executable, '-c', {child!r}])"

    def end() -> None:
        while not (told.is_file() and told.read_text().endswith(".")):
            sleep(0.01)
        sent(signal.SIGTERM)

    ends = Thread(target=end)
    ends.start()
    with pytest.raises(SystemExit), ending.ended_with_us():
        process.run([sys.executable, "-c", starts])
    ends.join()
    until = monotonic() + 10
    while _runs(int(told.read_text().removesuffix("."))):
        assert monotonic() < until
        sleep(0.01)


def _runs(pid: int) -> bool:
    try:
        return "\nState:\tZ" not in Path(f"/proc/{pid}/status").read_text()
    except OSError:
        return False


def test_a_signal_reaches_who_waits_for_a_thread_that_starts_a_process() -> None:
    within, go = Event(), Event()

    def starts() -> None:
        with ending.starting():
            within.set()
            go.wait()

    def waits() -> None:
        within.wait()
        sent(signal.SIGTERM)
        Timer(0.3, go.set).start()
        Event().wait(20)

    thread, began = Thread(target=starts), monotonic()
    thread.start()
    with pytest.raises(SystemExit), ending.ended_with_us():
        waits()
    thread.join()
    assert monotonic() - began < 15


def test_a_second_signal_does_not_stop_the_clearing_away() -> None:
    before = [signal.getsignal(number) for number in ending.ENDING]
    cleared = []

    def ended() -> None:
        try:
            sent(signal.SIGHUP)
        finally:
            sent(signal.SIGHUP)
            sent(signal.SIGTERM)
            cleared.append(process.run(["true"]).returncode)

    with pytest.raises(SystemExit) as caught, ending.ended_with_us():
        ended()
    assert cleared == [0]
    assert caught.value.code == 128 + signal.SIGHUP
    assert [signal.getsignal(number) for number in ending.ENDING] == before


def test_of_signals_that_came_together_nothing_is_left_for_the_next_process() -> None:
    def both() -> None:
        with ending.starting():
            sent(signal.SIGTERM)
            sent(signal.SIGHUP)

    with pytest.raises(SystemExit), ending.ended_with_us():
        both()
    assert process.run(["true"]).returncode == 0


@pytest.mark.parametrize("own", [signal.SIG_IGN, lambda *_: None])
def test_a_signal_that_is_ignored_or_handled_stays_so(own: Any) -> None:
    before = signal.signal(signal.SIGHUP, own)
    try:
        with pytest.raises(SystemExit), ending.ended_with_us():
            sent_both()
        assert signal.getsignal(signal.SIGHUP) is own
    finally:
        signal.signal(signal.SIGHUP, before)


def sent_both() -> None:
    sent(signal.SIGHUP)
    handled = signal.getsignal(signal.SIGHUP)
    try:
        sent(signal.SIGTERM)
    finally:
        assert signal.getsignal(signal.SIGHUP) is handled
