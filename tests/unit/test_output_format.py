"""Output formats: files read or refused, answers shaped by the rendered middleware, checks that see a broken rule."""

from __future__ import annotations

import asyncio
import json
from dataclasses import asdict, replace
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dspatch import outputformat
from dspatch.conformance.api import checks, run
from dspatch.errors import OutputFormatError
from dspatch.outputformat import NONE, OutputFormat, Rules
from tests.unit.formatkit import speaking
from tests.unit.templatekit import rendered

FILE = """
name = "acme"

[chat.completion]
drop = ["kv_transfer_params", "choices.stop_reason"]
rename = { "choices.message.reasoning_content" = "thinking" }
copy = { "usage.answer_tokens" = "usage.completion_tokens", "choices.message.ended" = "choices.finish_reason" }
add = { "system_fingerprint" = "acme-1", "choices.message.refusal" = "none" }

[chat.completion.chunk]
rename = { "choices.delta.reasoning_content" = "thinking" }
add = { "system_fingerprint" = "acme-1" }
role = "every"
usage = "last"
empty-choices = false
finish-reason = "own"

[text_completion]
drop = ["choices.logprobs"]
[text_completion.chunk]
drop = ["choices.logprobs"]
usage = "every"
"""


def read(tmp_path: Path, text: str) -> OutputFormat:
    path = tmp_path / "Format.toml"
    path.write_text(text)
    return outputformat.load(path)


@pytest.fixture
def acme(tmp_path: Path) -> OutputFormat:
    return read(tmp_path, FILE)


def test_a_file_is_read_and_a_receipt_keeps_all_of_it(acme: OutputFormat) -> None:
    chunk = acme.rules("chat.completion.chunk")
    assert acme.name == "acme"
    assert not chunk.empty_choices
    assert (chunk.role, chunk.usage, chunk.finish_reason) == ("every", "last", "own")
    assert outputformat.given(json.loads(json.dumps(asdict(acme)))) == acme
    assert outputformat.given(None) is None


def test_without_a_name_the_file_gives_it(tmp_path: Path) -> None:
    found = read(tmp_path, '[text_completion]\ndrop = ["service_tier"]')
    assert found.name == "format"


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("", "needs one of the tables"),
        ("name = 'A b'", "must be small letters"),
        ("[chat.completion", "not valid TOML"),
        ("[chat.complete]", "unknown key `complete`"),
        ("[chat.completion]\nrenames = {}", "line 2: unknown key `renames`"),
        ('[chat.completion]\nrole = "first"', "unknown key `role`"),
        ('[chat.completion]\ndrop = "usage"', "must be a list"),
        ('[chat.completion]\ndrop = ["a..b"]', "is no path"),
        ('[chat.completion]\ndrop = ["choices"]', "line 2: `choices` is needed by every client"),
        ('[chat.completion]\nrename = { "id" = "x" }', "`id` is needed"),
        ('[chat.completion]\nrename = { "a.b" = "c.d" }', "must get one name"),
        ('[chat.completion]\nrename = { "service_tier" = "model" }', "nothing else takes its name"),
        ('[chat.completion]\nrename = { "a" = "b" }\nadd = { "b" = 1 }', "from two rules"),
        ('[chat.completion]\nrename = { "a.b" = "c" }\ndrop = ["a"]', "dropped, and renamed"),
        ('[chat.completion]\ndrop = ["b"]\nadd = { "b" = 1 }', "is dropped, and made"),
        ('[chat.completion]\ncopy = { "a" = 1 }', "copied from a path"),
        ('[chat.completion]\ncopy = { "a" = "choices.index" }', "goes to none"),
        ("[chat.completion]\nadd = { a = 2020-01-01 }", "nothing that JSON has"),
        ("[chat.completion]\nadd = { a = nan }", "nothing that JSON has"),
        ('[chat.completion.chunk]\nusage = "first"', '"last" or "every", not \'first\''),
        ('[chat.completion.chunk]\nempty-choices = "no"', "must be a true or false"),
    ],
)
def test_what_is_no_format_is_refused_with_its_line(tmp_path: Path, text: str, said: str) -> None:
    with pytest.raises(OutputFormatError) as error:
        read(tmp_path, text)
    assert said in f"{error.value}"
    assert error.value.exit_code == 73


def chunk(index: int = 0, **choice: Any) -> dict[str, Any]:
    row = {"index": index, "delta": {}, "finish_reason": None} | choice
    return {"id": "1", "object": "chat.completion.chunk", "choices": [row]}


EVENTS = [
    chunk(delta={"role": "assistant", "content": ""}),
    chunk(delta={"reasoning_content": "naïve 😀"}),
    chunk(delta={"content": "Hi"}, finish_reason="stop"),
    {"id": "1", "object": "chat.completion.chunk", "choices": [], "usage": {"total_tokens": 3}},
]


def stream(events: list[dict[str, Any]]) -> bytes:
    dumped = [json.dumps(one, ensure_ascii=False, separators=(",", ":")) for one in events]
    return b"".join(f"data: {one}\n\n".encode() for one in [*dumped, "[DONE]"])


def said(data: bytes) -> list[dict[str, Any]]:
    *events, done, rest = data.split(b"\n\n")
    assert (done, rest) == (b"data: [DONE]", b"")
    return [json.loads(one.removeprefix(b"data: ")) for one in events]


def test_chunks_take_the_shape(acme: OutputFormat) -> None:
    module = rendered("openai/output_format", "shaping", format=acme)
    found = said(module.Stream().feed(b": alive\n\n" + stream(EVENTS)).removeprefix(b": alive\n\n"))
    choices = [one["choices"][0] for one in found]
    assert [one["finish_reason"] for one in choices] == [None, None, None, "stop"]
    assert [one["delta"] for one in choices] == [
        {"role": "assistant", "content": ""},
        {"thinking": "naïve 😀", "role": "assistant"},
        {"content": "Hi", "role": "assistant"},
        {"role": "assistant"},
    ]
    assert [one.get("usage") for one in found] == [None] * 3 + [{"total_tokens": 3}]
    assert {one["system_fingerprint"] for one in found} == {"acme-1"}


@given(cuts=st.lists(st.integers(0, len(stream(EVENTS)))))
def test_wherever_a_stream_is_cut_it_comes_out_the_same(cuts: list[int]) -> None:
    acme = OutputFormat(name="a", objects={"chat.completion.chunk": Rules(empty_choices=False)})
    module = rendered("openai/output_format", "cutting", format=acme)
    data, places = stream(EVENTS), sorted({0, *cuts, len(stream(EVENTS))})
    one = module.Stream()
    pieces = [data[a:b] for a, b in pairwise(places)]
    assert b"".join(map(one.feed, pieces)) + one.end() == module.Stream().feed(data)


def test_an_error_in_a_stream_comes_after_what_was_held_back(acme: OutputFormat) -> None:
    module = rendered("openai/output_format", "erring", format=acme)
    one = module.Stream()
    held = one.feed(stream(EVENTS[:3]).removesuffix(b"data: [DONE]\n\n"))
    after = one.feed(b'data: {"error":{"message":"out of memory"}}\n\n')
    assert b'"stop"' not in held
    assert after.index(b'"stop"') < after.index(b"out of memory")


def answer(module: Any, status: int, kind: str, body: bytes, path: str) -> tuple[Any, bytes]:
    """What a client gets of an application behind the middleware: headers and body."""

    async def app(scope: Any, receive: Any, send: Any) -> None:
        headers = [(b"content-type", kind.encode()), (b"content-length", str(len(body)).encode())]
        await send({"type": "http.response.start", "status": status, "headers": headers})
        for start in range(0, len(body), 7):
            await send(
                {"type": "http.response.body", "body": body[start : start + 7], "more_body": True}
            )
        await send({"type": "http.response.body", "body": b""})

    sent: list[Any] = []

    async def send(message: Any) -> None:
        sent.append(message)

    scope = {"type": "http", "path": path}
    asyncio.run(module.OutputFormat(app)(scope, None, send))
    return dict(sent[0]["headers"]), b"".join(one["body"] for one in sent[1:])


WHOLE = {
    "object": "chat.completion",
    "kv_transfer_params": None,
    "choices": [{"index": 0, "finish_reason": "stop", "message": {"content": "ä", "reasoning_content": "r"}}],
    "usage": {"completion_tokens": 2},
}  # fmt: skip
CHAT = "/v1/chat/completions"


def test_an_answer_is_sent_in_the_format_with_its_new_length(acme: OutputFormat) -> None:
    module = rendered("openai/output_format", "answering", format=acme)
    headers, body = answer(module, 200, "application/json", json.dumps(WHOLE).encode(), CHAT)
    assert json.loads(body) == {
        "object": "chat.completion",
        "choices": [{"index": 0, "finish_reason": "stop", "message": {
            "content": "ä", "thinking": "r", "refusal": "none", "ended": "stop"}}],
        "usage": {"completion_tokens": 2, "answer_tokens": 2},
        "system_fingerprint": "acme-1",
    }  # fmt: skip
    assert headers[b"content-length"] == str(len(body)).encode()


def test_what_the_format_does_not_speak_of_keeps_every_byte(acme: OutputFormat) -> None:
    odd = b'{ "object" : "chat.completion", "choices" : [ ] }'
    events = stream(EVENTS)
    for format, status, kind, body, path in [
        (acme, 400, "application/json", odd, CHAT),
        (acme, 200, "application/json", b'{ "object" : "list" }', CHAT),
        (acme, 200, "application/json", odd, "/v1/embeddings"),
        (acme, 200, "text/plain", odd, CHAT),
        (NONE, 200, "application/json", odd, CHAT),
        (NONE, 200, "text/event-stream", events, CHAT),
        (replace(acme, objects={"chat.completion": Rules(drop=("x",))}), 200, "text/event-stream", events, CHAT),
    ]:  # fmt: skip
        module = rendered("openai/output_format", "passing", format=format)
        assert answer(module, status, kind, body, path)[1] == body, (format.name, status, kind)


def test_usage_is_asked_for_in_streams_only(acme: OutputFormat) -> None:
    module = rendered("openai/output_format", "usage", format=acme)
    for body in (b"oops", b"[]", b'{"stream": false}', b'{"stream": true, "stream_options": 3}'):
        assert module.asking(body, "last") == body
    asked = json.loads(module.asking(b'{"stream": true, "n": 2}', "every"))
    wanted = {"include_usage": True, "continuous_usage_stats": True}
    assert asked == {"stream": True, "n": 2, "stream_options": wanted}


# -- the checks ----------------------------------------------------------------------------------

CHECKS = {check.id: check for check in checks.OF_FORMATS}


def spoilt(acme: OutputFormat, kind: str, **change: Any) -> OutputFormat:
    """A format in which one rule is another."""
    return replace(acme, objects={**acme.objects, kind: replace(acme.rules(kind), **change)})


def test_a_server_in_the_format_passes_every_check(acme: OutputFormat) -> None:
    # The rest reads no field that the format speaks of, and takes long.
    slow = {
        "abort.frees",
        "malformed.refused",
        "load.mixed",
        "stop.exact",
        "tools.cut",
        "malformed.alive",
    }
    with speaking(acme, acme) as server:
        chosen = [check for check in run.fitting(server) if check.id not in slow]
        report = run.check_server(server, chosen=chosen)
    named = {row.check: row for row in report.results}
    assert [row for row in report.results if row.status == "fail"] == []
    # The format drops the log-probabilities of completions, and nothing else is left unseen.
    missing = {row.check for row in report.results if row.status == "not-shown"}
    assert missing == {"logprobs.sound", "logprobs.streamed"}
    assert "not shown" not in named["format.streamed"].note
    assert report.facts["output format"] == "acme"
    for check in checks.OF_FORMATS:
        with speaking(acme, acme) as server:
            run.check_server(server, chosen=[check])
            assert server.wire.count <= check.requests, check.id


FAULTS: list[tuple[str, dict[str, Any], dict[str, Any]]] = [
    ("chat.completion", {"drop": ("usage.completion_tokens_details",)}, {"drop": ()}),
    ("chat.completion", {}, {"rename": {}}),
    ("chat.completion", {}, {"add": {}}),
    ("chat.completion", {}, {"add": {"system_fingerprint": "acme-2", "choices.message.refusal": "none"}}),
    ("chat.completion", {}, {"copy": {}}),
    ("chat.completion", {}, {"copy": {"usage.answer_tokens": "usage.prompt_tokens"}}),
    ("chat.completion", {"copy": {"choices.message.ended": "choices.finish_reason"}},
     {"copy": {"choices.message.ended": "choices.index"}}),
    ("text_completion", {}, {"drop": ()}),
    ("chat.completion.chunk", {}, {"rename": {}}),
    ("chat.completion.chunk", {}, {"add": {}}),
    ("chat.completion.chunk", {}, {"role": ""}),
    ("chat.completion.chunk", {"role": "first"}, {"role": "every"}),
    ("chat.completion.chunk", {}, {"usage": ""}),
    ("chat.completion.chunk", {}, {"usage": "every"}),
    ("chat.completion.chunk", {}, {"empty_choices": True}),
    ("text_completion.chunk", {}, {"usage": "last"}),
]  # fmt: skip


@pytest.mark.parametrize(("kind", "wanted", "served"), FAULTS)
def test_a_rule_that_is_not_kept_is_seen(
    acme: OutputFormat, kind: str, wanted: dict[str, Any], served: dict[str, Any]
) -> None:
    asked = spoilt(acme, kind, **wanted)
    check = CHECKS["format.streamed" if kind.endswith(".chunk") else "format.whole"]
    with speaking(spoilt(asked, kind, **served), asked) as server:
        (row,) = run.check_server(server, chosen=[check]).results
    assert row.status == "fail", row


def test_an_end_that_comes_with_words_is_seen(acme: OutputFormat) -> None:
    def spoil(data: bytes) -> bytes:
        return data.replace(b'"delta":{"content":"",', b'"delta":{"content":"!",')

    with speaking(acme, acme, spoil) as server:
        (row,) = run.check_server(server, chosen=[CHECKS["format.streamed"]]).results
    assert row.status == "fail"
    assert "finish_reason comes with words" in row.note
