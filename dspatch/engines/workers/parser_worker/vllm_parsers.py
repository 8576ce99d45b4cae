"""vLLM's parsers as its chat server uses them: the whole text at once, or piece by piece."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from .cuts import Piece

Said = dict[str, Any]


def parser(names: Mapping[str, str], tokenizer: Any, request: Any, thinking: bool) -> Any:
    """A fresh parser, composed as the server composes it."""
    from vllm.parser import ParserManager

    kind = ParserManager.get_parser(
        tool_parser_name=names.get("tools") or None,
        reasoning_parser_name=names.get("reasoning") or None,
        enable_auto_tools=bool(names.get("tools")),
    )
    kwargs = {"thinking": thinking, "enable_thinking": thinking}
    return kind(tokenizer, request.tools, chat_template_kwargs=kwargs)


def request(tools: Sequence[Mapping[str, Any]]) -> Any:
    """A chat request that offers these tools."""
    try:
        from vllm.entrypoints.openai.chat_completion.protocol import ChatCompletionRequest
    except ImportError:
        from vllm.entrypoints.openai.protocol import ChatCompletionRequest
    given = {"tools": list(tools), "tool_choice": "auto"} if tools else {}
    return ChatCompletionRequest(model="m", messages=[{"role": "user", "content": "Hi"}], **given)


def whole(one: Any, text: str, asked: Any) -> Said:
    """What the parser makes of the whole text."""
    reasoning, content, calls = one.parse(text, asked, enable_auto_tools=bool(asked.tools))
    return {
        "reasoning": reasoning or "",
        "content": content or "",
        "calls": [[call.name, call.arguments] for call in calls or []],
    }


def streamed(one: Any, pieces: Sequence[Piece], prompt: Sequence[int], asked: Any) -> Said:
    """What the pieces give, joined as a client joins them."""
    said: Said = {"reasoning": "", "content": "", "calls": []}
    calls: dict[int, list[str]] = {}
    for number, piece in enumerate(pieces):
        delta = one.parse_delta(
            piece.text,
            list(piece.ids),
            asked,
            prompt_token_ids=list(prompt),
            finished=number == len(pieces) - 1,
        )
        if delta is None:
            continue
        said["reasoning"] += delta.reasoning or ""
        said["content"] += delta.content or ""
        for call in delta.tool_calls or []:
            grown = calls.setdefault(call.index, ["", ""])
            grown[0] += getattr(call.function, "name", None) or ""
            grown[1] += getattr(call.function, "arguments", None) or ""
    said["calls"] = [call for _, call in sorted(calls.items())]
    return said
