"""What a server makes of the model's words: whole characters, reasoning apart, tool calls."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from typing import Any

from dspatch.conformance.api.checks.answers import asked
from dspatch.conformance.api.said import Choice, Said
from dspatch.conformance.api.server import STRANGE, THINKING, Server, said_to
from dspatch.conformance.api.verdict import Looked, Verdict, not_shown

TAGS = ("<think>", "</think>", "<｜tool▁", "<|tool", "｜>")
TOOLS = [
    {
        "type": "function",
        "function": {
            "name": "get_weather",
            "description": "The weather of a city over some days",
            "parameters": {
                "type": "object",
                "properties": {"city": {"type": "string"}, "days": {"type": "integer"}},
                "required": ["city"],
            },
        },
    }
]
WEATHER = "What will the weather in Zürich be over the next three days? Use the tool."
TORN = "�"


def characters(server: Server) -> Verdict:
    """No piece of a stream has a torn character where the whole answer has none."""
    looked = Looked(what="streams with characters of several bytes")
    for name, body in _strange(server):
        whole, streamed = server.whole(body).only, server.streamed(body)
        if whole.text.isascii() or TORN in whole.text:
            continue
        torn = [piece for piece in _pieces(streamed) if TORN in piece or _lone(piece)]
        looked.at(f"{len(torn)} pieces are torn: {torn[0]!r}" if torn else "", name)
    return looked.verdict("" if looked.times else "the model wrote no such character")


def _strange(server: Server) -> Iterator[tuple[str, Mapping[str, Any]]]:
    for name, body in asked(server, max_tokens=64):
        yield name, said_to(body, STRANGE if name == "chat" else f"{STRANGE} naïve c")


def _pieces(said: Said) -> Iterator[str]:
    for value in said.objects:
        for choice in value["choices"]:
            delta = choice.get("delta") or {}
            yield from (text for text in (choice.get("text"), delta.get("content")) if text)


def _lone(text: str) -> bool:
    """Whether half of a surrogate pair stands alone."""
    return any("\ud800" <= letter <= "\udfff" for letter in text)


def reasoning(server: Server) -> Verdict:
    """Reasoning is apart from the answer, the same in a stream, wherever max_tokens cuts it."""
    looked = Looked(what="answers with reasoning, each whole and streamed")
    body = server.chat(**THINKING, max_tokens=400 if not server.own else 120)
    if not dict(asked(server)).get("chat"):
        return not_shown("chats are not offered")
    full = server.whole(body)
    if not full.only.reasoning:
        if server.own:
            looked.at(f"no reasoning came, content is {full.only.text[:60]!r}")
            return looked.verdict()
        return not_shown("the model gave no reasoning_content and no reasoning")
    count = full.completion_tokens or 60
    for limit in dict.fromkeys([1, 2, 5, *range(10, count, max(1, count // 12)), count]):
        cut = {**body, "max_tokens": limit}
        whole, streamed = server.whole(cut).only, server.streamed(cut).only
        looked.at(server.differ(cut, whole, streamed), f"max_tokens {limit}")
        for way, choice in (("whole", whole), ("streamed", streamed)):
            looked.at(_leaks(choice), f"max_tokens {limit} {way}")
            early = not full.only.reasoning.startswith(choice.reasoning)
            looked.at("reasoning is not a beginning of the whole one" if early else "", way)
    return looked.verdict(f"the field is {', '.join(sorted(full.names))}")


def _leaks(choice: Choice) -> str:
    for name in ("text", "reasoning"):
        found = [tag for tag in TAGS if tag in getattr(choice, name)]
        if found:
            return f"{found[0]} is shown in the {'content' if name == 'text' else name}"
    return ""


def tools(server: Server) -> Verdict:
    """A tool call has a name and JSON arguments, the same in a stream, and its own finish_reason."""
    looked = Looked(what="answers with tools, each whole and streamed")
    body = server.chat(WEATHER, tools=TOOLS, max_tokens=200)
    if not dict(asked(server)).get("chat"):
        return not_shown("chats are not offered")
    whole = server.whole(body).only
    if not whole.calls and not server.own:
        return not_shown(f"the model called no tool: {whole.text[:60]!r}")
    streamed = server.streamed(body).only
    looked.at("" if whole.calls else f"no tool call came, content is {whole.text[:60]!r}")
    looked.at(server.differ(body, whole, streamed))
    for way, choice in (("whole", whole), ("streamed", streamed)):
        looked.at(_leaks(choice), way)
        looked.at("" if choice.finish == "tool_calls" else f"finish_reason is {choice.finish}", way)
        for call in choice.calls:
            looked.at(_call(call.name, call.arguments, call.id), way)
    return looked.verdict(f"{len(whole.calls)} calls")


def _call(name: str, arguments: str, own: str) -> str:
    if name != TOOLS[0]["function"]["name"]:  # type: ignore[index]
        return f"a function {name!r} that nobody offered is called"
    if not own:
        return "a call without an id"
    try:
        value = json.loads(arguments)
    except ValueError as error:
        return f"arguments are no JSON: {arguments[:60]!r}: {error}"
    return "" if isinstance(value, dict) else f"arguments are no object: {arguments[:60]!r}"


def tools_cut(server: Server) -> Verdict:
    """Where max_tokens cuts a tool call, stream and whole end alike; `tool_calls` comes with a call."""
    looked = Looked(what="endings of cut tool calls")
    body = server.chat(WEATHER, tools=TOOLS, max_tokens=200)
    if not dict(asked(server)).get("chat"):
        return not_shown("chats are not offered")
    said = server.whole(body)
    count = said.completion_tokens or 0
    if not said.only.calls:
        return not_shown("the model called no tool")
    for limit in _cuts(count, 10):
        cut = {**body, "max_tokens": limit}
        ends = []
        for way, ask in (("whole", server.whole), ("streamed", server.streamed)):
            choice = ask(cut).only
            looked.at(_cut(choice), f"max_tokens {limit} {way}")
            ends.append(choice.finish)
        differ = f"finish_reason is {ends[0]} whole and {ends[1]} streamed"
        looked.at("" if ends[0] == ends[1] else differ, f"max_tokens {limit}")
    return looked.verdict()


def _cuts(count: int, about: int) -> list[int]:
    """Numbers of tokens below a count, evenly, and the last two: where a call is whole already."""
    return sorted({*range(1, count, max(1, count // about)), max(1, count - 2), max(1, count - 1)})


def _cut(choice: Choice) -> str:
    if choice.finish == "tool_calls":
        return "" if choice.calls else "finish_reason is tool_calls, and there is no call"
    return "" if choice.finish == "length" else f"finish_reason is {choice.finish}"
