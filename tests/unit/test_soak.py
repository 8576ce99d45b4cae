"""A server that leaks, drifts, holds its cache or dies is found; one that does not is left alone."""

from __future__ import annotations

import json
import os
import random
import subprocess
import sys
import textwrap
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from dspatch.bench import cards, processes, slope, soaking
from dspatch.bench.soaking import Plan, Sample, Soaked
from dspatch.cli import main
from dspatch.console import Console
from dspatch.engines import serving
from dspatch.errors import LeakError, ServerError
from dspatch.stages import show_soak, soak

# A server of OpenAI's completions: MODE plants what a soak must find.
SERVER = """
import http.server, json, os, sys, threading
port, mode = int(sys.argv[1]), sys.argv[2]
kept, files, count = [], [], 0
class One(http.server.BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    def log_message(self, *given): pass
    def answer(self, body, kind="application/json"):
        self.send_response(200)
        self.send_header("content-type", kind)
        self.send_header("content-length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)
    def do_GET(self):
        if self.path == "/metrics":
            used = min(count / 1000, 1) if mode == "blocks" else 0
            self.answer(f'vllm:kv_cache_usage_perc{{engine="0"}} {used}\\n'.encode(), "text/plain")
        elif self.path == "/version":
            self.answer(b'{"version": "0"}')
        else:
            self.answer(b'{"object": "list", "data": [{"id": "m", "object": "model"}]}')
    def do_POST(self):
        global count
        count += 1
        asked = json.loads(self.rfile.read(int(self.headers["content-length"])))
        if mode == "leak":
            kept.append(bytearray(os.urandom(100_000)))
        if mode == "files":
            files.append(open(os.devnull))
        if mode == "dies" and count > 60:
            os._exit(1)
        late = mode == "drift" and count > 40
        text = "so so so so so so so so so" if late else " ".join(asked["prompt"].split()[:4])
        if asked.get("stream"):
            self.answer(b"data: {}\\n\\ndata: {}\\n\\ndata: [DONE]\\n\\n", "text/event-stream")
        else:
            self.answer(json.dumps({"choices": [{"text": text}]}).encode())
http.server.ThreadingHTTPServer(("127.0.0.1", port), One).serve_forever()
"""


@contextmanager
def server(mode: str, folder: Path) -> Iterator[tuple[str, int]]:
    port = serving.free_port()
    argv = (sys.executable, "-c", textwrap.dedent(SERVER), str(port), mode)
    pids: list[int] = []
    one = serving.Service(argv=argv, env={})
    log = folder / "server" / "log"
    with serving.started(one, port, log, timeout=30, born=pids.append) as url:
        yield url, pids[0]


def soaked(mode: str, folder: Path, seconds: float = 2.0) -> soak.Result:
    plan = Plan(seconds=seconds, requests=10, prompts=2)
    with server(mode, folder) as (url, pid):
        return soak.at_url(url, pid, plan, Console())


def test_a_sound_server_is_left_alone(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    done = soaked("sound", tmp_path)
    assert done.soaked.errors == 0
    assert done.soaked.left > 0
    assert done.blocks is not None
    # What a young Python process still settles may look like growth in two seconds; nothing else may.
    assert not [what for what in done.wrong if "memory" not in what]
    assert done.files[1].read_text().count("<svg") == 2


@pytest.mark.parametrize(
    ("mode", "what"),
    [
        ("leak", "memory grows by at least"),
        ("files", "open files grow"),
        ("blocks", "of the KV blocks are held at rest"),
        ("drift", "late answers repeat themselves"),
        ("dies", "the server died"),
    ],
)
def test_what_is_planted_is_found(
    mode: str, what: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    done = soaked(mode, tmp_path)
    assert any(what in one for one in done.wrong), done.wrong
    with pytest.raises(LeakError):
        show_soak.told(done, Console(as_json=True))
    told = json.loads(capsys.readouterr().out)
    assert told["wrong"] == list(done.wrong)
    assert what in done.files[1].read_text()


def test_a_server_elsewhere_is_not_loaded() -> None:
    with pytest.raises(ServerError, match="not on this machine"):
        soak.at_url("http://192.0.2.1:8000", 1, Plan(seconds=1), Console())


@pytest.mark.parametrize(
    "words", [[], ["--url", "http://127.0.0.1:1"], ["--of", "x", "--url", "y"], ["--of", "x", "--pid", "3"]]
)  # fmt: skip
def test_one_server_is_named(words: list[str]) -> None:
    with pytest.raises(SystemExit) as stop:
        main(["bench", "soak", *words])
    assert stop.value.code == 2


@pytest.mark.parametrize("words", [["--model", "deepseek-v3"], ["--engine", "vllm"]])
def test_what_a_running_server_cannot_be_told_is_refused(
    words: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit) as stop:
        main(["bench", "soak", "--url", "http://127.0.0.1:1", "--pid", "1", *words])
    assert stop.value.code == 2
    assert "--model and --engine go with --of" in capsys.readouterr().err


def points(per_second: float, noise: float, seed: int = 1) -> list[tuple[float, float]]:
    dice = random.Random(seed)
    return [(float(t), 100 + per_second * t + dice.gauss(0, noise)) for t in range(60)]


def test_a_slope_lies_within_its_bounds() -> None:
    exact = slope.fit(points(2.0, 0.0))
    assert exact is not None
    assert (exact.slope, exact.low, exact.at(10.0)) == pytest.approx((2.0, 2.0, 120.0))
    inside = 0
    for seed in range(200):
        found = slope.fit(points(0.5, 5.0, seed))
        assert found is not None
        inside += found.low <= 0.5
    assert 0.9 <= inside / 200 <= 1.0


def test_a_level_that_wanders_is_no_growth() -> None:
    # A random walk has no slope, and least squares alone would see one in most of them.
    seen = 0
    for seed in range(100):
        dice, level, walk = random.Random(seed), 0.0, []
        for moment in range(60):
            level = 0.9 * level + dice.gauss(0, 1)
            walk.append((float(moment), level))
        found = slope.fit(walk)
        assert found is not None
        seen += found.low > 0
    assert seen <= 15


def test_too_few_points_give_no_slope() -> None:
    assert slope.fit([(0, 1), (1, 2), (2, 3)]) is None
    assert slope.fit([(1, 1)] * 9) is None
    assert slope.settled([(float(n), 0.0) for n in range(10)])[0][0] == 2


def test_the_children_of_a_process_are_counted() -> None:
    code = "import subprocess, sys; subprocess.run([sys.executable, '-c', 'input()'])"
    with subprocess.Popen([sys.executable, "-c", code], stdin=subprocess.PIPE) as one:
        while len(family := list(processes.tree(one.pid))) < 2:
            pass
        found = processes.held(one.pid)
        assert one.stdin is not None
        one.stdin.close()
    assert len(family) == 2
    assert found is not None
    assert found.memory > 1 << 20
    assert os.getpid() not in family
    assert processes.held(one.pid) is None


def test_repetition() -> None:
    assert soaking.repeated("a b c d e f g") == 0
    assert soaking.repeated("a b c") == 0
    assert soaking.repeated("a a a a a a a a") == 0.8


def result(**changes: Any) -> tuple[str, ...]:
    samples = tuple(Sample(seconds=n, memory=10**8, files=9, blocks=0.0) for n in range(20))
    given = {"samples": samples, "requests": 9, "left": 1, "errors": 0, "early": ("a",), "late": ("a",)}  # fmt: skip
    found = Soaked(**{**given, **changes})
    memory = soak._line((s.seconds, s.memory) for s in found.samples)
    card = soak._line((s.seconds, s.card) for s in found.samples)
    return tuple(soak._wrong(found, memory, card))


def test_what_a_short_soak_cannot_rule_out_is_said(tmp_path: Path) -> None:
    def told(noise: float) -> str:
        dice = random.Random(2)
        samples = tuple(
            Sample(seconds=n, memory=int(1e9 + dice.gauss(0, noise)), files=9, blocks=0.0)
            for n in range(40)
        )
        found = Soaked(samples=samples, requests=9, left=0, errors=0, early=("a",), late=("a",))
        done = soak.written("a server", Plan(seconds=40), found, tmp_path)
        assert done.wrong == ()
        assert soak.undecided(done) in done.files[1].read_text()
        return soak.undecided(done)

    assert "GiB a day is not ruled out: soak longer" in told(1e7)
    assert told(0) == ""


def test_each_finding_by_itself() -> None:
    assert result() == ()
    assert result(errors=2) == ("2 of 9 requests failed",)
    assert "too few" in result(samples=())[0]
    held = tuple(
        Sample(seconds=n, memory=10**8, files=9, blocks=0.0, card=(n + 9) << 20) for n in range(20)
    )
    assert "GPU memory grows by at least 84.4 GiB a day" in result(samples=held)
    assert "not what they were" in result(late=("b",))[0]


# The driver's program, which knows every process: what each holds stays, or grows by a MiB in a millisecond.
DRIVER = """#!/bin/sh
case $* in *compute-apps=pid,used_memory*nounits*) ;; *) exit 9;; esac
held=$(( 500 + %s ))
for one in /proc/[0-9]*; do echo "${one#/proc/}, $held"; done
"""


@pytest.mark.parametrize(
    ("grows", "found"), [("0", False), ("$(date +%s%N) / 1000000 % 100000000", True)]
)
def test_what_a_server_holds_of_gpus_is_told(
    grows: str, found: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    made = tmp_path / "bin" / "nvidia-smi"
    made.parent.mkdir()
    made.write_text(DRIVER % grows)
    made.chmod(0o755)
    monkeypatch.setenv("PATH", f"{made.parent}:{os.environ['PATH']}")
    done = soaked("sound", tmp_path)
    assert done.card is not None
    assert any("GPU memory grows by at least" in what for what in done.wrong) is found
    page = done.files[1].read_text()
    assert ("0 MiB a day (0 to 0), from 500 MiB" in page) is not found
    assert "GPU memory" in page


def test_a_driver_that_knows_none_of_the_processes_tells_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    answer = "41, 1024\n42, 512\n41, 1\n43, [N/A]\nNo running processes\n"
    assert cards.of_table(answer, frozenset({41, 43, 7})) == 1025 << 20
    assert cards.of_table(answer, frozenset({43, 7})) is None
    monkeypatch.setenv("PATH", str(tmp_path))
    assert cards.held([41]) is None
    broken = tmp_path / "nvidia-smi"
    broken.write_text("#!/bin/sh\nexit 9\n")
    broken.chmod(0o755)
    assert cards.held([41]) is None
