"""What a model said, in one form for whole answers and for streams, of chats and of completions."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

# One name or the other, as engines and their releases have it.
REASONING = ("reasoning_content", "reasoning")


class MalformedError(Exception):
    """An answer lacks what every answer has."""


@dataclass(frozen=True, kw_only=True)
class Token:
    """One token with its log-probability, and the likeliest ones at its place."""

    text: str
    logprob: float
    top: tuple[tuple[str, float], ...]
    bytes_: tuple[int, ...] | None = None


@dataclass(frozen=True, kw_only=True)
class Call:
    """A tool call: the function's name and the text of its arguments."""

    name: str
    arguments: str
    id: str = ""


@dataclass(frozen=True, kw_only=True)
class Choice:
    """One choice. `finishes` has every finish_reason that was given for it, in order."""

    index: int
    text: str = ""
    reasoning: str = ""
    calls: tuple[Call, ...] = ()
    finishes: tuple[str, ...] = ()
    tokens: tuple[Token, ...] = ()

    @property
    def finish(self) -> str | None:
        """Why it ended, as last said."""
        return self.finishes[-1] if self.finishes else None


@dataclass(frozen=True, kw_only=True)
class Said:
    """An answer: its choices by index, its usage, and the objects that it came in."""

    choices: tuple[Choice, ...]
    usage: Mapping[str, Any] | None
    objects: tuple[Mapping[str, Any], ...] = ()
    faults: tuple[str, ...] = ()
    names: frozenset[str] = frozenset()

    @property
    def completion_tokens(self) -> int | None:
        """How many tokens its usage says that were generated; `None` where it says no number."""
        count = (self.usage or {}).get("completion_tokens")
        return count if isinstance(count, int) else None

    @property
    def only(self) -> Choice:
        """The one choice; `MalformedError` when there is none or more."""
        if len(self.choices) != 1:
            raise MalformedError(f"one choice was asked for, {len(self.choices)} came")
        return self.choices[0]


@dataclass(kw_only=True)
class _Growing:
    index: int
    text: str = ""
    reasoning: str = ""
    calls: dict[int, dict[str, str]] = field(default_factory=dict)
    finishes: list[str] = field(default_factory=list)
    tokens: list[Token] = field(default_factory=list)

    def done(self) -> Choice:
        return Choice(
            index=self.index,
            text=self.text,
            reasoning=self.reasoning,
            calls=tuple(Call(**call) for _, call in sorted(self.calls.items())),
            finishes=tuple(self.finishes),
            tokens=tuple(self.tokens),
        )


def joined(objects: Sequence[Mapping[str, Any]], faults: Sequence[str] = ()) -> Said:
    """One answer from the objects of a stream, or from the one object of a whole answer.

    Raises `MalformedError` for an object without `choices`, and for one whose fields are of other types
    than the API has.
    """
    try:
        return _joined(objects, faults)
    except (AttributeError, KeyError, TypeError, ValueError) as error:
        told = f"{type(error).__name__}: {error}"
        raise MalformedError(
            f"an answer that cannot be read: {told}: {str(objects)[:160]}"
        ) from None


def _joined(objects: Sequence[Mapping[str, Any]], faults: Sequence[str]) -> Said:
    growing: dict[int, _Growing] = {}
    usage: Mapping[str, Any] | None = None
    names: set[str] = set()
    for value in objects:
        if not isinstance(value.get("choices"), list):
            raise MalformedError(f"an answer without choices: {str(value)[:160]}")
        for choice in value["choices"]:
            index = choice.get("index")
            if not isinstance(index, int):
                raise MalformedError(f"a choice without an index: {str(choice)[:160]}")
            _grow(growing.setdefault(index, _Growing(index=index)), choice, names)
        usage = dict(value.get("usage") or {}) or usage
    return Said(
        choices=tuple(one.done() for _, one in sorted(growing.items())),
        usage=usage,
        objects=tuple(objects),
        faults=tuple(faults),
        names=frozenset(names),
    )


def _grow(one: _Growing, choice: Mapping[str, Any], names: set[str]) -> None:
    message = choice.get("delta") or choice.get("message") or {}
    one.text += choice.get("text") or message.get("content") or ""
    given = {name: message[name] for name in REASONING if message.get(name)}
    if len(set(given.values())) > 1:
        raise MalformedError("reasoning and reasoning_content differ")
    names.update(given)
    one.reasoning += next(iter(given.values()), "")
    for place, call in enumerate(message.get("tool_calls") or []):
        _call(one.calls, call, place)
    if choice.get("finish_reason"):
        one.finishes.append(choice["finish_reason"])
    one.tokens += tokens(choice.get("logprobs"))


def _call(calls: dict[int, dict[str, str]], call: Mapping[str, Any], place: int) -> None:
    number = call.get("index", place)
    grown = calls.setdefault(number, {"name": "", "arguments": "", "id": ""})
    function = call.get("function") or {}
    grown["name"] += function.get("name") or ""
    grown["arguments"] += function.get("arguments") or ""
    grown["id"] += call.get("id") or ""


def tokens(logprobs: Mapping[str, Any] | None) -> list[Token]:
    """The tokens of a choice's `logprobs`, as chats or as completions have them."""
    if not logprobs:
        return []
    if logprobs.get("content") is not None:
        return [_chat_token(one) for one in logprobs["content"]]
    rows = zip(
        logprobs.get("tokens") or [],
        logprobs.get("token_logprobs") or [],
        logprobs.get("top_logprobs") or [],
        strict=False,
    )
    return [
        _token(text, value, (top or {}).items()) for text, value, top in rows if value is not None
    ]


def _chat_token(one: Mapping[str, Any]) -> Token:
    top = ((each["token"], each["logprob"]) for each in one.get("top_logprobs") or [])
    return _token(one["token"], one["logprob"], top, one.get("bytes"))


def _token(
    text: str, logprob: float, top: Iterable[tuple[str, float]], spelled: Any = None
) -> Token:
    likeliest = tuple(top)
    for word, value in (*likeliest, (text, logprob)):
        if not isinstance(word, str) or not isinstance(value, (int, float)):
            raise TypeError(f"a token {word!r} of {value!r}")
    return Token(
        text=text,
        logprob=logprob,
        top=likeliest,
        bytes_=tuple(bytes(spelled)) if spelled is not None else None,
    )
