"""An engine's server beside this process: up, ended early, too slow, and stopped with its children."""

from __future__ import annotations

import os
import sys
import textwrap
import time
import urllib.error
import urllib.request
from pathlib import Path

import pytest

from dspatch.engines import serving
from dspatch.engines.serving import Service
from dspatch.errors import EngineError, ProcessError

SERVES = """
import http.server, subprocess, sys
class One(http.server.BaseHTTPRequestHandler):
    def do_GET(self):
        self.send_response(200); self.end_headers(); self.wfile.write(b"{}")
child = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(60)"])
print("child", child.pid, flush=True)
http.server.HTTPServer(("127.0.0.1", int(sys.argv[1])), One).serve_forever()
"""


def service(code: str, port: int = 0) -> Service:
    return Service(argv=(sys.executable, "-c", textwrap.dedent(code), str(port)), env={"A": "b"})


def test_a_server_runs_until_the_end_of_the_block_and_its_children_with_it(tmp_path: Path) -> None:
    port, log = serving.free_port(), tmp_path / "logs" / "server.log"
    with serving.started(service(SERVES, port), port, log, timeout=30) as url:
        with urllib.request.urlopen(f"{url}/v1/models", timeout=5) as answer:
            assert answer.status == 200
        child = int(log.read_text().split()[1])
        os.kill(child, 0)
    with pytest.raises(urllib.error.URLError):
        urllib.request.urlopen(f"{url}/v1/models", timeout=1)
    assert _gone(child)


def test_a_server_imports_nothing_from_the_folder_one_stands_in(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "http").mkdir()
    (tmp_path / "http" / "__init__.py").write_text("raise SystemExit('the wrong one')")
    monkeypatch.chdir(tmp_path)
    port = serving.free_port()
    with serving.started(service(SERVES, port), port, tmp_path / "logs" / "log", timeout=30):
        pass


def _gone(pid: int) -> bool:
    """Whether a process ends soon; an orphan that init has not reaped yet counts as ended."""
    for _ in range(100):
        try:
            state = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]
        except OSError:
            return True
        if state == "Z":
            return True
        time.sleep(0.05)
    return False


def test_a_server_that_ends_says_its_last_words(tmp_path: Path) -> None:
    ends = service("import sys; sys.exit('no such model')")
    with (
        pytest.raises(EngineError, match="ended with status 1") as caught,
        serving.started(ends, serving.free_port(), tmp_path / "log", timeout=30),
    ):
        pass
    assert "no such model" in caught.value.why
    assert caught.value.next.endswith(f"dspatch serve doctor {tmp_path / 'log'}")


def test_of_several_exceptions_in_a_log_the_first_is_the_cause(tmp_path: Path) -> None:
    log = tmp_path / "log"
    log.write_text(
        "INFO starting\n(Core pid=7) ERROR 11-30 [core.py:9] NotImplementedError: MLA is refused.\n"
        "Traceback (most recent call last):\nRuntimeError: the core failed, see above\n"
    )
    assert serving.cause(log) == "NotImplementedError: MLA is refused."


def test_a_server_that_never_answers_is_stopped(tmp_path: Path) -> None:
    sleeps = service("import time; time.sleep(60)")
    with (
        pytest.raises(EngineError, match="did not answer within"),
        serving.started(sleeps, serving.free_port(), tmp_path / "log", timeout=0.1),
    ):
        pass


def test_a_program_that_is_not_there(tmp_path: Path) -> None:
    missing = Service(argv=("/no/such/python",), env={})
    with (
        pytest.raises(ProcessError, match="not installed"),
        serving.started(missing, serving.free_port(), tmp_path / "log", timeout=1),
    ):
        pass
