"""Texts as DeepSeek models write them, with what a parser must make of each."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from dspatch.errors import ConformanceError
from dspatch.paths import PACKAGE
from dspatch.tomlfile import load

THOUGHT = "First the bridge, 7 < 8; then 東京 and 😀.\n"
ANSWER = "The bridge is closed, says the café."
END = "<｜end▁of▁sentence｜>"
NAME = "get_weather"


@dataclass(frozen=True, kw_only=True)
class Text:
    """One text: the check and the parsers that it is for, and what they must make of it.

    `prompt` is what stands before it; `calls` are names with arguments as JSON values.
    """

    check: str
    name: str
    parsers: Mapping[str, str]
    text: str
    prompt: str = "<｜Assistant｜></think>"
    thinking: bool = False
    reasoning: str = ""
    content: str = ""
    calls: tuple[tuple[str, Any], ...] = ()

    def task(self) -> dict[str, Any]:
        """What the worker is asked."""
        shared = {"parsers": dict(self.parsers), "text": self.text, "prompt": self.prompt}
        return {
            **shared,
            "thinking": self.thinking,
            "tools": tools() if "tools" in self.parsers else [],
        }


def formats() -> Mapping[str, Any]:
    """The formats, from formats.toml."""
    return load(PACKAGE / "conformance" / "api" / "formats.toml", ConformanceError).data


def tools() -> list[dict[str, Any]]:
    """The one function that is offered; any arguments are right."""
    function = {"name": NAME, "parameters": {"type": "object", "properties": {}}}
    return [{"type": "function", "function": function}]


def every() -> list[Text]:
    """All texts."""
    found = [*_reasoning()]
    for name in formats()["tools"]:
        found += _calls(name)
    return found


def _reasoning() -> Iterator[Text]:
    for name, facts in formats()["reasoning"].items():
        for thinking in facts["thinking"]:
            yield from _thoughts(name, thinking)


def _thoughts(name: str, thinking: bool) -> Iterator[Text]:
    check, parsers = f"parser.reasoning.{name}", {"reasoning": name}
    if not thinking:
        yield Text(check=check, name="not thinking", parsers=parsers, text=ANSWER, content=ANSWER)
        return
    opened = "<｜Assistant｜><think>"
    table = {
        "opened by the prompt": (opened, f"{THOUGHT}</think>{ANSWER}", THOUGHT, ANSWER),
        "opened by the model": (
            "<｜Assistant｜>",
            f"<think>{THOUGHT}</think>{ANSWER}",
            THOUGHT,
            ANSWER,
        ),
        "no thought": (opened, f"</think>{ANSWER}", "", ANSWER),
        "no answer": (opened, f"{THOUGHT}</think>", THOUGHT, ""),
        "cut while it thinks": (opened, THOUGHT, THOUGHT, ""),
        "the tag again in the answer": (
            opened,
            f"{THOUGHT}</think>a</think>b",
            THOUGHT,
            "a</think>b",
        ),
        "half a tag in the thought": (opened, f"a </thin b</think>{ANSWER}", "a </thin b", ANSWER),
    }
    for words, (prompt, text, reasoning, content) in table.items():
        yield Text(
            check=check,
            name=words,
            parsers=parsers,
            text=text,
            prompt=prompt,
            thinking=True,
            reasoning=reasoning,
            content=content,
        )


def _calls(name: str) -> Iterator[Text]:
    check, parsers = f"parser.tools.{name}", {"tools": name}
    arguments = formats()["arguments"]
    for words, text in arguments.items():
        yield Text(
            check=check,
            name=f"a call, {words}",
            parsers=parsers,
            text=written(name, [text]),
            calls=((NAME, _value(text)),),
        )
    two = [arguments["text-last"], arguments["number-last"]]
    both = tuple((NAME, _value(text)) for text in two)
    yield Text(check=check, name="two calls", parsers=parsers, text=written(name, two), calls=both)
    yield Text(
        check=check,
        name="words, then a call",
        parsers=parsers,
        text=ANSWER + written(name, two[:1]),
        content=ANSWER,
        calls=both[:1],
    )
    yield Text(check=check, name="no call", parsers=parsers, text=ANSWER, content=ANSWER)
    yield Text(
        check=check,
        name="thought, then a call",
        parsers={**parsers, "reasoning": "deepseek_v3"},
        text=f"{THOUGHT}</think>{written(name, two[1:])}",
        prompt="<｜Assistant｜><think>",
        thinking=True,
        reasoning=THOUGHT,
        calls=both[1:],
    )


def _value(text: str) -> Any:
    # Written as models do, with line breaks inside of strings.
    return json.loads(text, strict=False)


def written(name: str, arguments: Sequence[str]) -> str:
    """Calls of the one function with these arguments, in a format."""
    form = formats()["tools"][name]
    calls = [_call(form, text) for text in arguments]
    return f"{form['begin']}{form['between'].join(calls)}{form['end']}"


def _call(form: Mapping[str, str], text: str) -> str:
    call = form["call"].replace("NAME", NAME).replace("ARGUMENTS", text)
    if "parameter" not in form:
        return call
    rows = (_parameter(form["parameter"], key, value) for key, value in _value(text).items())
    return call.replace("PARAMETERS", "".join(rows))


def _parameter(form: str, key: str, value: Any) -> str:
    is_text = isinstance(value, str)
    said = value if is_text else json.dumps(value, ensure_ascii=False)
    return form.replace("KEY", key).replace("TEXT?", str(is_text).lower()).replace("VALUE", said)
