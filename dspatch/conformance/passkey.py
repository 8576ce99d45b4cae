"""A long text with things to look up in it, and what is found, for the model whose weights look things up."""

from __future__ import annotations

import random
from collections.abc import Mapping
from typing import Any

FAR, REGION = 2, 3  # tokens that ask: what stands so far back, and what fills the region there
FILLERS = range(32, 96)
# Tokens, every other one of which is the segment's own; a model may say another length.
SEGMENT = 512
SEGMENTS = range(96, 160)
STRING = 13  # tokens of a passkey, the first of which calls for the others
STRINGS = range(160, 160 + 3 * STRING)
NAMES = ("first", "middle", "last")
LONE = 300  # a token that stands in the text once


def asked(config: Mapping[str, Any]) -> dict[str, Any]:
    """The `prompt` with all questions at its end, where in it the answer to each is `read`, the last `answer`.

    Token ids and positions; the last answer is to be generated. Nothing of a model that looks nothing up.
    """
    if "passkey" not in config:
        return {}
    known = config["passkey"]
    tokens, segment = known["tokens"], known.get("segment", SEGMENT)
    prompt = _text(tokens, segment, tokens - known["far"])
    read: dict[str, list[int]] = {}
    region = SEGMENTS[(tokens + 2 - known["region"]) // segment]
    questions = {"far": [FAR, LONE], "region": [REGION, region]}
    questions |= {name: _string(number) for number, name in enumerate(NAMES[:-1])}
    for name, (question, *answer) in questions.items():
        read[name] = list(range(len(prompt) + 1, len(prompt) + 1 + len(answer)))
        prompt += [question, *answer]
    called, *answer = _string(len(NAMES) - 1)
    return {"prompt": [*prompt, called], "read": read, "answer": answer}


def _string(number: int) -> list[int]:
    return list(STRINGS[number * STRING : (number + 1) * STRING])


def _text(tokens: int, segment: int, lone: int) -> list[int]:
    """Fillers and the marks of segments, three passkeys (at the start, in the middle, at the end), a lone token."""
    dice = random.Random(11)
    text = [
        SEGMENTS[place // segment] if place % 2 else dice.choice(FILLERS) for place in range(tokens)
    ]
    for number, start in enumerate((20, tokens // 2, tokens - 3 * STRING)):
        text[start : start + STRING] = _string(number)
    text[lone] = LONE
    return text
