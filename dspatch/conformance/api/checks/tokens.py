"""Whether a server's tokenizer is that of the model it serves, as far as its prompts show."""

from __future__ import annotations

import re
from collections.abc import Sequence

from dspatch.conformance.api.server import OPENING, Server
from dspatch.conformance.api.verdict import Looked, Verdict, not_shown

# As DeepSeek's templates write roles and ends.
MARKER = re.compile("<\uff5c[^<>\uff5c]{1,40}\uff5c>")
SHOWN = 40  # characters


def markers(server: Server) -> Verdict:
    """DeepSeek's markers in a chat's prompt are one token each, and text becomes itself again."""
    ids = _ids(server, messages=server.chat()["messages"])
    prompt = _text(server, ids) if ids else None
    if not ids or prompt is None:
        return not_shown("it has no /tokenize for chats, or no /detokenize")
    found = dict.fromkeys(MARKER.findall(prompt))
    if not found:
        return not_shown(f"its chat template writes no marker of DeepSeek's: {prompt[:SHOWN]!r}")
    looked = Looked(what="markers and texts")
    for marker in found:
        count = len(_ids(server, prompt=marker, add_special_tokens=False))
        looked.at(f"{count} tokens instead of one" if count != 1 else "", marker)
    again = _text(server, _ids(server, prompt=OPENING, add_special_tokens=False))
    looked.at("" if again == OPENING else f"{again!r} comes back", repr(OPENING[:SHOWN]))
    counted = (server.whole(server.chat(max_tokens=1)).usage or {}).get("prompt_tokens")
    wrong = counted is not None and counted != len(ids)
    looked.at(f"usage counts {counted} tokens of {len(ids)}" if wrong else "", "the prompt")
    return looked.verdict()


def _ids(server: Server, **given: object) -> list[int]:
    answer = server.wire.post("/tokenize", {"model": server.model, **given})
    ids = answer.field("tokens") if answer.status == 200 else None
    return ids if isinstance(ids, list) else []


def _text(server: Server, ids: Sequence[int]) -> str | None:
    answer = server.wire.post("/detokenize", {"model": server.model, "tokens": list(ids)})
    text = answer.field("prompt") if answer.status == 200 else None
    return text if isinstance(text, str) else None
