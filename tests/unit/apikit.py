"""A small OpenAI-compatible server over real HTTP, right in every rule but the one that is broken on purpose."""

from __future__ import annotations

import codecs
import hashlib
import json
import math
import random
import re
import threading
import time
from collections.abc import Iterator, Mapping
from contextlib import closing, contextmanager, suppress
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

from dspatch.conformance.api.server import Server
from dspatch.conformance.api.wire import Wire

NAME = "small"
CONTEXT = 2048
ANSWER = (
    "The bridge is closed 😀 until noon; a ticket costs 7€ at the café, says жук. Ask again later."
)
THOUGHT = "First I look at which bridge is meant, then at the hours."
CALL = ("get_weather", '{"city": "Zürich", "days": 3}')
WORDS = [
    "river",
    "stone",
    "light",
    "window",
    "garden",
    "paper",
    "silver",
    "morning",
    "under",
    "never",
    "quick",
    "naïve",
]


# A chat begins with the first and ends with the last; each is one token, all else is bytes.
MARKERS = ("<\uff5cUser\uff5c>", "<\uff5cAssistant\uff5c>")
FIRST_MARKER = 300


@dataclass
class State:
    """What the server knows of itself; `fault` names the one rule that it breaks."""

    fault: str = ""
    running: int = 0
    stuck: int = 0
    generated: int = 0
    errors: int = 0
    seen: int = 0
    lock: threading.Lock = field(default_factory=threading.Lock)


@dataclass
class Asked:
    """A valid request, for one choice."""

    body: Mapping[str, Any]
    prompt: str
    chat: bool
    index: int
    together: bool = False

    @property
    def streamed(self) -> bool:
        return bool(self.body.get("stream"))

    @property
    def limit(self) -> int:
        return int(self.body.get("max_tokens") or 16)


def cut(text: str, sizes: tuple[int, ...] = (3, 1, 4, 2)) -> list[bytes]:
    """Tokens of a text: a few bytes each, so that characters are torn."""
    data, found, turn = text.encode(), [], 0
    while data:
        found.append(data[: sizes[turn % len(sizes)]])
        data, turn = data[len(found[-1]) :], turn + 1
    return found


def spoken(asked: Asked, state: State) -> tuple[list[bytes], list[bytes], bool]:
    """The tokens of reasoning, those of the answer, and whether the model ends by itself."""
    body, fault = asked.body, state.fault
    heat = body.get("temperature", 1.0)
    if heat <= 0.02:
        seed = f"greedy {asked.index}" if fault == "n-differs" else "greedy"
    elif fault == "seed-ignored" or body.get("seed") is None:
        seed = str(time.monotonic_ns())
    else:
        seed = f"{body['seed'] + (fault == 'seeded-stream' and asked.streamed)} {asked.index}"
    if fault == "cross-talk" and asked.together:
        seed += "x"
    if fault == "remembers" and state.errors > 20:
        seed += "y"
    if "x_nobody_knows" in body and fault == "unknown-changes":
        seed += "z"
    if asked.chat and seed == "greedy":
        thinking = (body.get("chat_template_kwargs") or {}).get("thinking")
        return cut(THOUGHT) if thinking else [], cut(ANSWER), True
    digest = hashlib.sha256(f"{asked.prompt} {seed}".encode()).digest()
    dice = random.Random(digest)
    return [], cut(" ".join(dice.choice(WORDS) for _ in range(400))), False


@dataclass
class Piece:
    """What one token adds to the answer."""

    text: str = ""
    reasoning: str = ""
    call: dict[str, Any] | None = None
    token: bytes | None = None
    finish: str | None = None


def pieces(asked: Asked, state: State) -> Iterator[Piece]:
    """The answer, token by token, and last the reason of its end."""
    if asked.chat and asked.body.get("tools"):
        yield from _calling(asked, state)
        return
    thought, answer, ends = spoken(asked, state)
    limit = asked.limit + (state.fault == "one-more")
    tokens = [*((t, True) for t in thought), *((t, False) for t in answer)][:limit]
    whole = ends and len(thought) + len(answer) <= limit
    decoders = {kind: codecs.getincrementaldecoder("utf-8")("replace") for kind in (True, False)}
    stops = _stops(asked.body)
    held, stopped = "", False
    if thought and state.fault == "think-leaks" and asked.streamed:
        yield Piece(text="</think>")
    for number, (token, thinks) in enumerate(tokens):
        last = number == len(tokens) - 1
        if state.fault == "torn" and asked.streamed:
            text = token.decode(errors="replace")
        else:
            text = decoders[thinks].decode(token, last and not whole)
        if thinks:
            lost = state.fault == "reasoning-lost" and not whole and not asked.streamed
            yield Piece(token=token, **{"text" if lost else "reasoning": text})
            continue
        held += text
        found = min((held.find(s) for s in stops if s in held), default=-1)
        if found >= 0:
            if state.fault == "stop-kept":
                found += len(stops[0])
            yield Piece(text=held[:found], token=token)
            stopped = True
            break
        keep = 0 if state.fault == "stop-leaks" and asked.streamed else _tail(held, stops)
        shown, held = held[: len(held) - keep], held[len(held) - keep :]
        if state.fault == "drops" and asked.streamed and last and asked.body.get("seed") is None:
            shown = ""
        yield Piece(text=shown, token=token)
    if held and not stopped:
        yield Piece(text=held)
    finish = "stop" if stopped or whole else "length"
    yield Piece(finish="stop" if state.fault == "never-length" else finish)


def _calling(asked: Asked, state: State) -> Iterator[Piece]:
    """A tool call: its opening, its name, its arguments, its end, the end of all."""
    name, arguments = CALL
    parts = [b"<open>", b"name", *cut(arguments), b"<close>", b"<end>"]
    whole = len(parts) <= asked.limit
    decoder = codecs.getincrementaldecoder("utf-8")()
    called = False
    for number, token in enumerate(parts[: asked.limit]):
        if number == 1:
            called = True
            call = {"name": name, "arguments": "", "id": "call-1"}
        elif 1 < number < len(parts) - 2:
            text = decoder.decode(token)
            lost = state.fault == "arguments-lost" and asked.streamed and number == len(parts) - 3
            call = {"name": "", "arguments": "" if lost else text, "id": ""}
        else:
            yield Piece(token=token)
            continue
        yield Piece(call=call, token=token)
    hides = state.fault == "hides-length" and called and not asked.streamed
    yield Piece(finish="tool_calls" if whole or hides else "length")


def _stops(body: Mapping[str, Any]) -> list[str]:
    given = body.get("stop") or []
    return [given] if isinstance(given, str) else list(given)


def _tail(text: str, stops: list[str]) -> int:
    """How many characters at the end may begin a stop string."""
    lengths = [n for s in stops for n in range(1, len(s)) if text.endswith(s[:n])]
    return max(lengths, default=0)


def wrong(body: Any, chat: bool) -> tuple[int, str] | None:
    """Status and message of a request that is wrong."""
    if not isinstance(body, dict):
        return 400, "the body is no object"
    if body.get("model") != NAME:
        return (404 if isinstance(body.get("model"), str) else 400), "no such model"
    bad = next((name for name, right in RULES.items() if name in body and not right(body)), None)
    if bad:
        return 400, f"{bad} is wrong"
    if not (_messages(body.get("messages")) if chat else _prompt(body.get("prompt"))):
        return 400, "the prompt is wrong"
    if len(_words(body, chat)) + body.get("max_tokens", 16) > CONTEXT:
        return 400, "longer than the context"
    return None


def _between(name: str, low: float, high: float, kinds: tuple[type, ...]) -> Any:
    def right(body: Mapping[str, Any]) -> bool:
        value = body[name]
        fits = isinstance(value, kinds) and not isinstance(value, bool)
        return fits and math.isfinite(value) and low <= value <= high

    return right


RULES: dict[str, Any] = {
    "max_tokens": _between("max_tokens", 1, CONTEXT, (int,)),
    "n": _between("n", 1, 16, (int,)),
    "seed": _between("seed", -(2**63), 2**63 - 1, (int,)),
    "top_logprobs": _between("top_logprobs", 0, 20, (int,)),
    "temperature": _between("temperature", 0, 2, (int, float)),
    "top_p": _between("top_p", 0, 1, (int, float)),
    "logprobs": lambda b: isinstance(b["logprobs"], bool) or 0 <= b["logprobs"] <= 5,
    "stop": lambda b: b["stop"] is None or _marks(b["stop"]),
    "logit_bias": lambda b: all(key.isdigit() and int(key) < 512 for key in b["logit_bias"]),
    "response_format": lambda b: b["response_format"].get("type") in ("text", "json_object"),
    "tools": lambda b: isinstance(b["tools"], list) and all("function" in tool for tool in b["tools"]),
    "tool_choice": lambda b: "tools" in b,
    "stream": lambda b: isinstance(b["stream"], bool),
}  # fmt: skip


def _marks(stop: Any) -> bool:
    several = [stop] if isinstance(stop, str) else stop
    return isinstance(several, list) and all(isinstance(s, str) and s for s in several)


def _messages(messages: Any) -> bool:
    if not isinstance(messages, list):
        return False
    for one in messages:
        if not isinstance(one, dict) or not isinstance(one.get("role"), str):
            return False
        if not isinstance(one.get("content"), str):
            return False
        try:
            one["content"].encode()
        except UnicodeEncodeError:
            return False
    return True


def _prompt(prompt: Any) -> bool:
    if isinstance(prompt, str):
        return True
    if not isinstance(prompt, list):
        return False
    ids = all(isinstance(one, int) and 0 <= one < 256 for one in prompt)
    return ids or all(isinstance(one, str) for one in prompt)


def _words(body: Mapping[str, Any], chat: bool) -> str:
    return " ".join(m["content"] for m in body["messages"]) if chat else str(body["prompt"])


def _rendered(body: Mapping[str, Any], chat: bool) -> str:
    words = _words(body, chat)
    return words.join(MARKERS) if chat else words


def tokens(text: str, fault: str = "") -> list[int]:
    """The tokens of a text; the fault knows no markers."""
    known = () if fault == "markers-split" else MARKERS
    parts = re.split("(<\uff5c[^\uff5c]*\uff5c>)", text)
    found = (
        [FIRST_MARKER + known.index(part)] if part in known else part.encode() for part in parts
    )
    return [one for part in found for one in part]


def spelled(ids: list[int]) -> str:
    """The text of tokens."""
    parts = (MARKERS[one - FIRST_MARKER].encode() if one > 255 else bytes([one]) for one in ids)
    return b"".join(parts).decode()


class Handler(BaseHTTPRequestHandler):
    """One connection."""

    protocol_version = "HTTP/1.1"
    disable_nagle_algorithm = True
    state: State
    refused_here = (
        False  # who hangs up closes the connection over which it refused, without another word
    )

    def log_message(self, format: str, *args: Any) -> None:
        """Nothing is logged."""

    def do_GET(self) -> None:
        """Models and metrics."""
        if self._dead():
            return
        if self.path == "/v1/models":
            name = "another" if self.state.fault == "unlisted" else NAME
            rows = [{"id": name, "object": "model", "max_model_len": CONTEXT}]
            self._json(200, {"object": "list", "data": rows})
        elif self.path == "/openapi.json" and self.state.fault != "undescribed":
            self._json(200, described())
        elif self.path == "/metrics":
            with self.state.lock:
                load = self.state.running + self.state.stuck
                text = f'vllm:num_requests_running{{a="b"}} {load}\nvllm:kv_cache_usage_perc{{a="b"}} {load / 10}\n'
                text += f"vllm:generation_tokens_total {self.state.generated}\n"
            self._send(200, "text/plain", text.encode())
        else:
            self._json(404, {"error": {"message": "not found"}})

    def do_POST(self) -> None:
        """Chats, completions and token ids."""
        raw = self.rfile.read(int(self.headers.get("content-length", 0)))
        if self._dead():
            return
        try:
            body = json.loads(raw, parse_constant=_no_constant)
        except (ValueError, RecursionError) as error:
            self._refuse(400, f"no JSON: {type(error).__name__}")
            return
        if self.path == "/tokenize":
            text = _rendered(body, "messages" in body)
            self._json(200, {"tokens": tokens(text, self.state.fault)})
            return
        if self.path == "/detokenize":
            text = spelled(body["tokens"])
            self._json(200, {"prompt": text.lower() if self.state.fault == "lowers" else text})
            return
        chat = self.path == "/v1/chat/completions"
        bad = wrong(body, chat)
        fault = self.state.fault
        if bad and bad[0] == 404 and fault == "not-404":
            bad = 409, bad[1]
        if bad and fault == "accepts-negative" and body.get("n") == -1:
            body, bad = {**body, "n": 1}, None
        if fault == "mute":
            self._refuse(404, "nothing of that kind here")
        elif bad:
            self._refuse(*bad)
        elif fault == "unknown-500" and "x_nobody_knows" in body:
            self._json(500, {"error": {"message": "oh"}})
        elif fault == "unknown-garbled" and "x_nobody_knows" in body:
            self._send(200, "text/plain", b"what?")
        else:
            with self.state.lock:
                self.state.running += 1
            try:
                self._answer(body, chat)
            except OSError:
                if fault == "goes-on":
                    with self.state.lock:
                        self.state.stuck += 1
            finally:
                with self.state.lock:
                    self.state.running -= 1

    def _dead(self) -> bool:
        self.state.seen += 1
        if self.refused_here:
            self.close_connection = True
            return True
        if self.state.fault in ("dies", "hangs") and self.state.seen > 12:
            time.sleep(1 if self.state.fault == "hangs" else 0)
            self.close_connection = True
            return True
        return False

    def _refuse(self, status: int, message: str) -> None:
        self.state.errors += 1
        self.refused_here = self.state.fault == "hangs-up"
        fault = self.state.fault
        if fault == "crashes" and "JSON: Recursion" in message:
            self.close_connection = True
        elif fault == "says-nothing":
            self._send(status, "text/plain", b"bad")
        else:
            self._json(
                500 if fault == "wrong-500" and "stop" in message else status,
                {"error": {"message": message}},
            )

    def _answer(self, body: dict[str, Any], chat: bool) -> None:
        prompts = body["messages"] if chat else body["prompt"]
        if not chat and isinstance(prompts, list) and prompts and isinstance(prompts[0], int):
            prompts = bytes(prompts).decode()
        several = prompts if not chat and isinstance(prompts, list) else [prompts]
        if self.state.fault == "list-order":
            several = several[::-1]
        count = 1 if self.state.fault == "n-ignored" else body.get("n", 1)
        asked = [
            Asked(body, str(prompt), chat, index, together=self.state.running > 1)
            for prompt in several
            for index in range(count)
        ]
        if body.get("stream"):
            self._stream(body, chat, asked)
        else:
            self._whole(body, chat, asked)

    def _usage(self, body: Mapping[str, Any], chat: bool, completion: int) -> dict[str, int]:
        prompt = len(tokens(_rendered(body, chat), self.state.fault))
        prompt += self.state.fault == "prompt-miscounted"
        off = 1 if self.state.fault == "total-off" else 0
        total = prompt + completion + off
        return {"prompt_tokens": prompt, "completion_tokens": completion, "total_tokens": total}

    def _whole(self, body: Mapping[str, Any], chat: bool, asked: list[Asked]) -> None:
        choices, completion = [], 0
        time.sleep(0.002)
        for number, one in enumerate(asked):
            found = list(pieces(one, self.state))
            completion += sum(piece.token is not None for piece in found)
            choices.append(self._choice(number, body, one, found))
        usage: dict[str, Any] = {**self._usage(body, chat, completion)}
        thought = sum(len(one.get("message", {}).get("reasoning_content") or "") for one in choices)
        counted = 0 if self.state.fault == "thought-uncounted" else thought
        usage["completion_tokens_details"] = {"reasoning_tokens": counted}
        kind = "chat.completion" if chat else "text_completion"
        value = {"id": "1", "object": kind, "model": NAME, "choices": choices, "usage": usage}
        self._json(200, value if self.state.fault == "no-created" else {**value, "created": 1})

    def _choice(
        self, number: int, body: Mapping[str, Any], one: Asked, found: list[Piece]
    ) -> dict[str, Any]:
        text = "".join(piece.text for piece in found)
        if body.get("echo") and self.state.fault != "echo-ignored":
            text = one.prompt + text
        choice: dict[str, Any] = {"index": number, "finish_reason": found[-1].finish}
        tokens = [piece.token for piece in found if piece.token is not None]
        choice["logprobs"] = self._logprobs(tokens, one) if body.get("logprobs") else None
        if not one.chat:
            return {**choice, "text": text}
        message: dict[str, Any] = {"role": "assistant", "content": text or None}
        message["reasoning_content"] = "".join(piece.reasoning for piece in found) or None
        calls = [piece.call for piece in found if piece.call]
        if calls:
            function = {key: "".join(call[key] for call in calls) for key in ("name", "arguments")}
            message["tool_calls"] = [{"id": "call-1", "type": "function", "function": function}]
        return {**choice, "message": message}

    def _logprobs(self, tokens: list[bytes], one: Asked) -> dict[str, Any]:
        fault = self.state.fault
        value = -0.6 if fault == "logprob-streamed" and one.streamed else -0.05
        if fault == "positive":
            value = 0.2
        other = -0.06 if fault == "sums-above" else -3.5
        texts = [token.decode(errors="replace") for token in tokens]
        if one.chat:
            return {
                "content": [
                    _chat_logprob(t, raw, value, other, fault)
                    for t, raw in zip(texts, tokens, strict=True)
                ]
            }
        top = [{("?" if fault == "not-among" else text): value, "other": other} for text in texts]
        return {"tokens": texts, "token_logprobs": [value] * len(texts), "top_logprobs": top}

    def _stream(self, body: Mapping[str, Any], chat: bool, asked: list[Asked]) -> None:
        fault, completion = self.state.fault, 0
        counting = (body.get("stream_options") or {}).get("continuous_usage_stats")
        self.send_response(200)
        self.send_header("content-type", "text/event-stream")
        self.send_header("connection", "close")
        self.end_headers()
        self.close_connection = True
        if chat and fault != "no-role":
            for number in range(len(asked)):
                self._event(
                    [
                        {
                            "index": number,
                            "delta": {"role": "assistant", "content": ""},
                            "finish_reason": None,
                        }
                    ],
                    **({"usage": self._usage(body, chat, 0)} if counting else {}),
                )
        for number, one in enumerate(asked):
            if body.get("echo") and fault != "echo-ignored":
                self._event([{"index": number, "text": one.prompt, "finish_reason": None}])
            for piece in pieces(one, self.state):
                completion += piece.token is not None
                now = {"usage": self._usage(body, chat, completion)} if counting else {}
                self._event([self._delta(number, body, one, piece)], **now)
                if one.limit > 250:
                    time.sleep(0.004)
            if fault == "ends-twice":
                self._event([self._delta(number, body, one, Piece(finish="stop"))])
            if fault == "speaks-on":
                self._event([self._delta(number, body, one, Piece(text="!"))])
        if (
            (body.get("stream_options") or {}).get("include_usage") and fault != "no-usage"
        ) or fault == "usage-unasked":
            self._event([], usage=self._usage(body, chat, completion))
        if fault == "bad-json":
            self.wfile.write(b"data: {oops\n\n")
        if fault != "no-done":
            self.wfile.write(b"data: [DONE]\n\n")
        if fault == "after-done":
            self._event([])

    def _delta(
        self, number: int, body: Mapping[str, Any], one: Asked, piece: Piece
    ) -> dict[str, Any]:
        choice: dict[str, Any] = {"index": number, "finish_reason": piece.finish, "logprobs": None}
        if body.get("logprobs") and piece.token is not None:
            choice["logprobs"] = self._logprobs([piece.token], one)
        if not one.chat:
            return {**choice, "text": piece.text}
        delta: dict[str, Any] = {
            "content": piece.text,
            "reasoning_content": piece.reasoning or None,
        }
        if piece.call:
            function = {key: piece.call[key] for key in ("name", "arguments")}
            opening = {"id": piece.call["id"], "type": "function"} if piece.call["id"] else {}
            delta["tool_calls"] = [{"index": 0, **opening, "function": function}]
        return {**choice, "delta": delta}

    def _event(self, choices: list[dict[str, Any]], **more: Any) -> None:
        own = str(time.monotonic_ns()) if self.state.fault == "id-changes" else "1"
        chat = self.path == "/v1/chat/completions"
        kind = "chat.completion.chunk" if chat else "text_completion"
        value = {"id": own, "object": kind, "model": NAME, "choices": choices, **more}
        if self.state.fault != "no-created":
            value["created"] = 1
        self.wfile.write(f"data: {json.dumps(value)}\n\n".encode())
        self.wfile.flush()
        self.state.generated += 1

    def _json(self, status: int, value: Any) -> None:
        self._send(status, "application/json", json.dumps(value).encode())

    def _send(self, status: int, kind: str, data: bytes) -> None:
        self.send_response(status)
        self.send_header("content-type", kind)
        self.send_header("content-length", str(len(data)))
        self.end_headers()
        self.wfile.write(data)


def described() -> dict[str, Any]:
    """The server's description of itself, in which `stop` is a number, as it is not."""
    whole = {"type": "integer", "minimum": 1, "maximum": 9}
    fields = {"model": {"type": "string"}, "prompt": {"type": "string"}, "max_tokens": whole}
    body = {
        "type": "object",
        "properties": {**fields, "stop": whole},
        "required": ["model", "prompt", "stop"],
    }
    content = {"content": {"application/json": {"schema": body}}, "required": True}
    answer = {"200": {"description": "an answer"}}
    paths = {
        "/v1/completions": {"post": {"requestBody": content, "responses": answer}},
        "/v1/models": {"get": {"responses": answer}},
    }
    return {"openapi": "3.1.0", "info": {"title": "kit", "version": "1"}, "paths": paths}


def _no_constant(name: str) -> float:
    raise ValueError(name)


def _chat_logprob(text: str, raw: bytes, value: float, other: float, fault: str) -> dict[str, Any]:
    own = {"token": "?" if fault == "not-among" else text, "logprob": value}
    top = [own, {"token": "other", "logprob": other}]
    return {"token": text, "logprob": value, "bytes": list(raw), "top_logprobs": top}


class Quiet(ThreadingHTTPServer):
    """A server whose clients may leave."""

    daemon_threads = True

    def handle_error(self, request: Any, client_address: Any) -> None:
        """A client that left is no error."""


@contextmanager
def serving(fault: str = "", handler: type[BaseHTTPRequestHandler] | None = None) -> Iterator[str]:
    """The address of a running server that breaks the rule `fault`, or none."""
    kind = handler or type("One", (Handler,), {"state": State(fault=fault)})
    server = Quiet(("127.0.0.1", 0), kind)
    thread = threading.Thread(target=server.serve_forever, args=(0.02,), daemon=True)
    thread.start()
    try:
        yield f"http://127.0.0.1:{server.server_address[1]}"
    finally:
        server.shutdown()
        server.server_close()
        with suppress(RuntimeError):
            thread.join(5)


@contextmanager
def asking(url: str, *, limit: int = 2000, timeout: float = 10) -> Iterator[Server]:
    """What asks the server at an address as if dspatch had started it; its connections are closed after."""
    with closing(Wire(base=url, limit=limit, timeout=timeout)) as wire:
        yield Server(wire=wire, model=NAME, context=CONTEXT, own=True)
