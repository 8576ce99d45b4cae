"""What the official `openai` client makes of a server: its words, its types, its errors."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

import openai
from openai.types import Completion
from openai.types.chat import ChatCompletion, ChatCompletionChunk

Found = tuple[str, str]  # evidence, and what is wrong or nothing
QUESTION = [
    {"role": "user", "content": "Count from one to fifty in words, and write nothing else."}
]
# Short: the helper refuses answers that max_tokens cut.
GREETING = [{"role": "user", "content": "Greet me in one short sentence."}]
TOOL = {
    "type": "function",
    "function": {
        "name": "get_weather",
        "parameters": {"type": "object", "properties": {"city": {"type": "string"}}},
    },
}


def connected(asked: Mapping[str, Any], key: str) -> openai.OpenAI:
    """A client that asks once, and waits no longer than it was told."""
    base = f"{asked['url']}/v1"
    return openai.OpenAI(base_url=base, api_key=key, max_retries=0, timeout=asked["timeout"])


def answers(client: openai.OpenAI, model: str) -> Found:
    """The whole answer, the stream's join and what the client's own helper gathers are the same."""
    given: dict[str, Any] = {
        "model": model,
        "messages": GREETING,
        "max_tokens": 200,
        "temperature": 0,
    }
    whole = client.chat.completions.create(**given).choices[0]
    text, ends = "", []
    for chunk in client.chat.completions.create(**given, stream=True):
        for choice in chunk.choices:
            text += choice.delta.content or ""
            ends += [choice.finish_reason] if choice.finish_reason else []
    wrong = []
    if (text, ends) != ((whole.message.content or ""), [whole.finish_reason]):
        wrong.append(f"the stream gives {text[-40:]!r} {ends}, whole is {whole.message.content!r}")
    if whole.finish_reason == "length":
        return "a chat whole and streamed, too long for the client's helper", "; ".join(wrong)
    gathered = _gathered(client, given).message.content or ""
    if gathered != (whole.message.content or ""):
        wrong.append(f"the client's helper gathers {gathered!r}")
    return "a chat whole, streamed, and by the client's helper", "; ".join(wrong)


def _gathered(client: openai.OpenAI, given: Mapping[str, Any]) -> Any:
    with client.chat.completions.stream(**given) as stream:
        for _ in stream:
            pass
        return stream.get_final_completion().choices[0]


def tools(client: openai.OpenAI, model: str) -> Found:
    """The client's helper gathers the tool call that the whole answer has."""
    messages = [{"role": "user", "content": "The weather in Zürich? Use the tool."}]
    given = {"model": model, "messages": messages, "tools": [TOOL], "temperature": 0}
    whole = client.chat.completions.create(**given, max_tokens=200).choices[0]
    gathered = _gathered(client, {**given, "max_tokens": 200})
    said = [_calls(each) for each in (whole, gathered)]
    wrong = "" if said[0] == said[1] else f"gathered {said[1]}, whole {said[0]}"
    return f"{len(said[0])} tool calls, whole and gathered", wrong


def _calls(choice: Any) -> list[tuple[str, str]]:
    calls = choice.message.tool_calls or []
    return [(call.function.name, call.function.arguments) for call in calls]


def types(client: openai.OpenAI, model: str) -> Found:
    """Answers hold what the client's types require, which the client itself does not check."""
    bodies: dict[str, tuple[str, Any, dict[str, Any]]] = {
        "chat": ("/chat/completions", ChatCompletion, {"messages": QUESTION}),
        "chunk": ("/chat/completions", ChatCompletionChunk, {"messages": QUESTION, "stream": True}),
        "completion": ("/completions", Completion, {"prompt": "One, two"}),
    }
    wrong, seen = [], []
    for name, (path, kind, body) in bodies.items():
        try:
            raw = client.post(
                path, cast_to=str, body={"model": model, "max_tokens": 3, "temperature": 0, **body}
            )
        except openai.APIStatusError as error:
            if error.status_code >= 500:
                wrong.append(f"{name}: {error.status_code}")
            continue
        seen.append(name)
        for line in _objects(str(raw)):
            if fault := _misfit(kind, line):
                wrong.append(f"{name}: {fault}")
                break
    return f"the types of {', '.join(seen)}", "; ".join(wrong)


def _objects(raw: str) -> list[str]:
    if not raw.startswith("data:"):
        return [raw]
    lines = (
        line.removeprefix("data:").strip() for line in raw.splitlines() if line.startswith("data:")
    )
    return [line for line in lines if line != "[DONE]"]


def _misfit(kind: Any, text: str) -> str:
    import pydantic

    try:
        kind.model_validate(json.loads(text))
    except pydantic.ValidationError as error:
        first = error.errors()[0]
        return f"{'.'.join(map(str, first['loc']))}: {first['msg']}"
    return ""


def errors(client: openai.OpenAI, model: str) -> Found:
    """Wrong requests raise the client's error for their status, with the server's words."""
    cases: list[tuple[dict[str, Any], type[openai.APIStatusError]]] = [
        ({"model": "no-such-model"}, openai.NotFoundError),
        ({"max_tokens": -1}, openai.BadRequestError),
        ({"messages": "Hi"}, openai.BadRequestError),
    ]
    wrong = []
    for change, expected in cases:
        try:
            client.chat.completions.create(**{"model": model, "messages": QUESTION, **change})
        except openai.APIStatusError as error:
            fits = isinstance(error, expected) or (
                expected is openai.BadRequestError
                and isinstance(error, openai.UnprocessableEntityError)
            )
            if not fits:
                wrong.append(f"{change}: {type(error).__name__}, not {expected.__name__}")
            elif not error.body:
                wrong.append(f"{change}: an error without a body")
        else:
            wrong.append(f"{change}: accepted")
    return f"{len(cases)} wrong requests", "; ".join(wrong)
