"""What answers at an address, in the words that a user gets; the command's exit codes."""

from __future__ import annotations

import json
import socket
import ssl
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dspatch import engines
from dspatch.cli import main
from dspatch.conformance.api import sse
from dspatch.conformance.api.wire import Answer
from dspatch.console import Console
from dspatch.errors import EngineError
from dspatch.stages import prove_api
from dspatch.stages.prove_any import Subject
from tests.unit.apikit import NAME, Quiet, serving

TLS = Path(__file__).parents[1] / "data" / "tls" / "localhost.pem"


def answering(status: int, kind: str, body: str) -> type[BaseHTTPRequestHandler]:
    class One(BaseHTTPRequestHandler):
        def log_message(self, format: str, *args: object) -> None:
            pass

        def do_GET(self) -> None:
            if status == 401 and self.headers.get("authorization") == "Bearer secret-key":
                self._say(200, "application/json", '{"data": [{"id": "m"}]}')
            else:
                self._say(status, kind, body)

        def _say(self, status: int, kind: str, body: str) -> None:
            self.send_response(status)
            self.send_header("content-type", kind)
            self.end_headers()
            self.wfile.write(body.encode())

        def do_POST(self) -> None:
            self._say(404, "application/json", '{"error": {"message": "no"}}')

    return One


def ran(capsys: pytest.CaptureFixture[str], *words: str) -> tuple[int, str, str]:
    client = ["--no-client"] if {"--url", "--api"} & set(words) else []
    with pytest.raises(SystemExit) as ended:
        main(["conformance", *client, *words])
    shown = capsys.readouterr()
    return int(ended.value.code or 0), shown.out, shown.err


@pytest.mark.parametrize(
    ("status", "kind", "body", "words"),
    [
        (200, "text/html", "<html><title>Welcome to nginx!</title></html>", "titled 'Welcome to nginx!'"),
        (404, "application/json", '{"detail": "Not Found"}', '404: {"detail": "Not Found"}'),
        (200, "application/json", '{"hello": 1}', "is no OpenAI-compatible server"),
        (200, "application/json", '{"data": []}', "serves no model"),
        (503, "text/plain", "", "503 and nothing"),
        (401, "application/json", '{"error": {"message": "no key"}}', "it wants a key"),
    ],
)  # fmt: skip
def test_what_is_no_server_is_told(
    status: int, kind: str, body: str, words: str, capsys: pytest.CaptureFixture[str]
) -> None:
    with serving(handler=answering(status, kind, body)) as url:
        code, out, err = ran(capsys, "--url", url)
    assert (code, out) == (57, "")
    assert words in err
    assert "Traceback" not in err


def test_nobody_at_the_address(capsys: pytest.CaptureFixture[str]) -> None:
    with socket.socket() as one:
        one.bind(("127.0.0.1", 0))
        code, _, err = ran(capsys, "--url", f"http://127.0.0.1:{one.getsockname()[1]}/v1")
    assert code == 57
    assert "Nobody answers" in err


def test_a_server_that_never_answers(capsys: pytest.CaptureFixture[str]) -> None:
    with socket.socket() as one:
        one.bind(("127.0.0.1", 0))
        one.listen()
        url = f"http://127.0.0.1:{one.getsockname()[1]}"
        code, _, err = ran(capsys, "--url", url, "--timeout", "0.2")
    assert code == 57
    assert "--timeout" in err


@contextmanager
def behind_tls() -> Iterator[str]:
    server = Quiet(("127.0.0.1", 0), answering(200, "application/json", "{}"))
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(TLS)
    server.socket = context.wrap_socket(server.socket, server_side=True)
    threading.Thread(target=server.serve_forever, args=(0.02,), daemon=True).start()
    try:
        yield f"127.0.0.1:{server.server_address[1]}"
    finally:
        server.shutdown()
        server.server_close()


@pytest.mark.parametrize(("scheme", "words"), [("https", "certificate"), ("http", "answers")])
def test_tls_that_does_not_fit(scheme: str, words: str, capsys: pytest.CaptureFixture[str]) -> None:
    with behind_tls() as place:
        code, _, err = ran(capsys, "--url", f"{scheme}://{place}")
    assert code == 57
    assert words in err


@pytest.mark.parametrize("url", ["localhost:8000", "ftp://a/b", "http://", "http://a:port", "/v1"])
def test_no_address(url: str, capsys: pytest.CaptureFixture[str]) -> None:
    code, _, err = ran(capsys, "--url", url)
    assert code == 57
    assert "is no address" in err


def test_a_password_in_the_address_is_not_repeated(capsys: pytest.CaptureFixture[str]) -> None:
    code, _, err = ran(capsys, "--url", "http://me:geheim@host/")
    assert code == 57
    assert "geheim" not in err


def test_a_model_that_is_not_served(capsys: pytest.CaptureFixture[str]) -> None:
    with serving() as url:
        code, _, err = ran(capsys, "--url", url, "--model", "other")
    assert code == 58
    assert f"--model {NAME}" in err


def test_a_key_is_taken_from_its_variable_and_shown_nowhere(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setenv("SOME_KEY", "secret-key")
    refuses = answering(401, "text/plain", "no")
    with serving(handler=refuses) as url:
        code, out, err = ran(capsys, "--url", url, "--api-key-env", "SOME_KEY", "--json")
        assert ran(capsys, "--url", url, "--api-key-env", "NO_KEY")[0] == 57
    assert code == 60  # it is let in; this server then knows neither chats nor completions
    report = json.loads(out)["report"]
    assert {row["status"] for row in report["results"][1:]} <= {"not-shown", "fail"}
    everything = out + err + "".join(p.read_text() for p in tmp_path.rglob("report.*"))
    assert "secret-key" not in everything


def test_the_whole_command_on_a_right_server(
    capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    with serving() as url:
        main_code, out, err = ran(capsys, "--url", f"{url}/v1/", "--max-requests", "60")
    assert main_code == 0, out + err
    assert "up to 60 requests" in err
    assert "60 requests were sent" in err
    assert "stream.greedy" in out
    assert {p.name for p in (tmp_path / "work").rglob("report.*")} == {
        "report.json",
        "report.md",
        "report.xml",
        "report.html",
    }


@pytest.mark.parametrize(
    "words",
    [
        ("--url", "http://a", "--rev", "v0.27.1"),
        ("--url", "http://a", "--api"),
        ("--model", "m"),
        ("--max-requests", "0"),
        ("--max-requests", "9"),
        ("--api", "--model", "m"),
        ("--url", "http://a", "--variant", "deepseek-v3"),
        ("--url", "http://a", "--selftest"),
        ("--url", "http://a", "--quantised", "fp8"),
        ("--url", "http://a", "--quantised-against", "."),
        ("--url", "http://a", "--prompts", __file__),
        ("--url", "http://a", "--tp", "2"),
        ("--api", "--dtype", "bfloat16"),
        ("--api", "--env", "a", "--wheel", "b"),
    ],
)
def test_words_that_do_not_go_together(
    words: tuple[str, ...], capsys: pytest.CaptureFixture[str]
) -> None:
    assert ran(capsys, *words)[0] == 2


def test_an_engine_without_a_server_is_told_before_an_environment_is_made(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def python(step: engines.Progress) -> Path:
        raise AssertionError("an environment was asked for")

    monkeypatch.setattr(engines, "get", lambda name: object())
    subject = Subject(engine="vllm", version="1", target="", where="", key="", python=python)
    with pytest.raises(EngineError, match="says nothing of a server"):
        prove_api.of_subject(subject, [], Console(as_json=True), prove_api.Limits())


@given(st.lists(st.dictionaries(st.text(), st.text() | st.integers(), max_size=3), max_size=5))
def test_a_well_formed_stream_is_read_whole(values: list[dict[str, object]]) -> None:
    body = "".join(f"data: {json.dumps(value)}\n\n" for value in values) + "data: [DONE]\n\n"
    events = sse.read(body.encode())
    assert (list(events.objects), events.faults) == (values, ())


@given(st.binary(max_size=200))
def test_any_bytes_are_read_without_an_error(body: bytes) -> None:
    events = sse.read(body)
    assert events.faults or b"[DONE]" in body


def test_events_over_several_lines_and_comments() -> None:
    body = b': ping\n\nevent: x\r\ndata: {"a":\r\ndata: 1}\r\n\r\ndata: [DONE]\n\n'
    events = sse.read(body)
    assert (events.objects, events.faults) == (({"a": 1},), ())


@pytest.mark.parametrize("body", ['{"a": ' * 99999 + "1" + "}" * 99999, "9" * 9999])
def test_json_that_cannot_be_read_is_none(body: str) -> None:
    # As of a server that repeats a wrong request in its answer.
    assert Answer(status=400, kind="", body=body.encode()).field("a") is None
    assert len(sse.read(f"data: {body}\n\ndata: [DONE]\n\n".encode()).faults) == 1


@pytest.mark.parametrize(
    ("body", "found"), [('{"a": 1}', 1), ('{"b": 1}', None), ("[1]", None), ("", None)]
)
def test_a_field_of_an_answer(body: str, found: object) -> None:
    assert Answer(status=200, kind="", body=body.encode()).field("a") == found
