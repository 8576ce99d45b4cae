"""A server under check: what it is asked, how its answers are read, and when two of them are the same."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from dspatch.conformance.api import formatted, sse
from dspatch.conformance.api.said import Choice, MalformedError, Said, joined
from dspatch.conformance.api.wire import Answer, Wire
from dspatch.outputformat import OutputFormat

CHAT = "/v1/chat/completions"
TEXT = "/v1/completions"

# Long enough that an answer to it goes past every limit that the checks set.
QUESTION = "Count from one to fifty in words, one after the other, and write nothing else."
OPENING = "One, two, three, four, five, six, seven, eight, nine, ten, eleven"
STRANGE = "Repeat these words exactly: naïve café, 7€, жук, 東京, 😀."

# What switches the reasoning of DeepSeek-V3.1 and its kin on; other models pass over it.
THINKING: dict[str, Any] = {"chat_template_kwargs": {"thinking": True, "enable_thinking": True}}


class RefusedError(Exception):
    """The server answered with another status than 200."""

    def __init__(self, answer: Answer) -> None:
        super().__init__(answer.told())
        self.answer = answer


@dataclass(kw_only=True)
class Server:
    """What the checks ask. `margin` is in nats: a choice closer than that may turn by rounding; `nats` what
    log-probabilities may differ by between two runs of one request. Both are bfloat16's.

    `own` says that dspatch started it with a model whose words are known: more is asked then.
    `format` is the output format that its answers have; they are read as the engine's own.
    """

    wire: Wire
    model: str
    context: int | None = None
    margin: float = 0.3
    nats: float = 0.5
    own: bool = False
    format: OutputFormat | None = None
    facts: dict[str, Any] = field(default_factory=dict)

    def chat(self, content: str = QUESTION, **given: Any) -> dict[str, Any]:
        """The body of a chat request, greedy unless told otherwise."""
        messages = [{"role": "user", "content": content}]
        return {
            "model": self.model,
            "messages": messages,
            "temperature": 0,
            "max_tokens": 24,
        } | given

    def text(self, prompt: Any = OPENING, **given: Any) -> dict[str, Any]:
        """The body of a completion request, greedy unless told otherwise."""
        return {"model": self.model, "prompt": prompt, "temperature": 0, "max_tokens": 24} | given

    def whole(self, body: Mapping[str, Any]) -> Said:
        """The answer in one piece; `RefusedError` for a status other than 200."""
        objects, _ = self.received(body)
        return joined(self._engines(objects, streamed=False))

    def streamed(self, body: Mapping[str, Any]) -> Said:
        """The answer as a stream, joined; its faults of form are in the result."""
        objects, faults = self.received({**body, "stream": True})
        return joined(self._engines(objects, streamed=True), faults)

    def received(
        self, body: Mapping[str, Any]
    ) -> tuple[Sequence[Mapping[str, Any]], Sequence[str]]:
        """The objects of an answer as they were sent, and for a stream the faults of its form."""
        answer = self._accepted(self.wire.post(path(body), body))
        if not body.get("stream"):
            if not isinstance(answer.value, dict):
                raise MalformedError("the answer is no JSON object")
            return [answer.value], []
        events = sse.read(answer.body)
        faults = list(events.faults)
        if answer.kind != "text/event-stream":
            faults.append(f"the content type of a stream is {answer.kind!r}")
        return events.objects, faults

    def _engines(
        self, objects: Sequence[Mapping[str, Any]], *, streamed: bool
    ) -> Sequence[Mapping[str, Any]]:
        """Objects as the engine makes them, without its format."""
        if (known := self.format) is None:
            return objects
        rules = [formatted.rules_of(known, value, streamed=streamed) for value in objects]
        return [formatted.undone(*pair) for pair in zip(objects, rules, strict=True)]

    def _accepted(self, answer: Answer) -> Answer:
        if answer.status != 200:
            raise RefusedError(answer)
        return answer

    def differ(self, body: Mapping[str, Any], one: Choice, other: Choice) -> str:
        """How two greedy answers to one request differ beyond rounding; empty when they do not."""
        found = difference(one, other)
        if not found or not _same_start(one, other):
            return found
        near = self._margin_at(body, _common(one.text, other.text))
        if near is not None and near <= self.margin:
            self.facts["excused"] = self.facts.get("excused", 0) + 1
            return ""
        return found

    def _margin_at(self, body: Mapping[str, Any], start: int) -> float | None:
        """How much the first token that reaches past so many characters is preferred, in nats."""
        try:
            tokens = self.whole(with_logprobs(body, 2)).only.tokens
        except (RefusedError, MalformedError):
            return None
        length = 0
        for token in tokens:
            length += len(token.text)
            if length > start:
                best = sorted((value for _, value in token.top), reverse=True)
                return best[0] - best[1] if len(best) > 1 else None
        return None


def path(body: Mapping[str, Any]) -> str:
    """Where a request goes, by what it holds."""
    return CHAT if "messages" in body else TEXT


def said_to(body: Mapping[str, Any], content: str) -> dict[str, Any]:
    """The same request with other words, as its kind has them."""
    if "messages" in body:
        return {**body, "messages": [{"role": "user", "content": content}]}
    return {**body, "prompt": content}


def with_logprobs(body: Mapping[str, Any], top: int) -> dict[str, Any]:
    """The same request for log-probabilities too, with the `top` likeliest tokens at each place."""
    if "messages" in body:
        return {**body, "logprobs": True, "top_logprobs": top}
    return {**body, "logprobs": top}


def difference(one: Choice, other: Choice) -> str:
    """How two choices differ in what they say and why they end; empty when they do not."""
    for name in ("reasoning", "text"):
        a, b = getattr(one, name), getattr(other, name)
        if a != b:
            start = _common(a, b)
            word = "content" if name == "text" else name
            return (
                f"{word} differs at character {start}: {_from(a, start)} against {_from(b, start)}"
            )
    calls = [[(call.name, call.arguments) for call in each.calls] for each in (one, other)]
    if calls[0] != calls[1]:
        return f"tool calls differ: {calls[0]} against {calls[1]}"
    if one.finish != other.finish:
        return f"finish_reason differs: {one.finish} against {other.finish}"
    return ""


def _same_start(one: Choice, other: Choice) -> bool:
    """Whether rounding can have turned one into the other: both go on, with other words."""
    start = _common(one.text, other.text)
    return start < len(one.text) and start < len(other.text)


def _common(one: str, other: str) -> int:
    pairs = zip(one, other, strict=False)
    return next((n for n, (a, b) in enumerate(pairs) if a != b), min(len(one), len(other)))


def _from(text: str, start: int) -> str:
    return repr(text[start : start + 24]) if start < len(text) else "its end"
