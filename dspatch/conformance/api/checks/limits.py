"""What a request may set: the number of tokens and choices, stop strings, seeds, forms of the prompt."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from dspatch.conformance.api.checks.answers import asked
from dspatch.conformance.api.said import Choice, Token
from dspatch.conformance.api.server import (
    OPENING,
    RefusedError,
    Server,
    difference,
    with_logprobs,
)
from dspatch.conformance.api.verdict import Looked, Verdict, not_shown

STOPS = 6
LONGEST_STOP = 5


def max_tokens(server: Server) -> Verdict:
    """An answer that max_tokens cuts has exactly that many tokens."""
    looked = Looked(what="counts")
    for limit in (1, 2, 7):
        for name, body in asked(server, max_tokens=limit):
            for said in (server.whole(body), server.whole(with_logprobs(body, 1))):
                count = said.completion_tokens
                wrong = said.only.finish == "length" and count != limit
                looked.at(f"{count} tokens for max_tokens {limit}" if wrong else "", name)
                shown = len(said.only.tokens)
                if shown:
                    looked.at(f"{shown} logprobs for {limit}" if shown != count else "", name)
    return looked.verdict()


def stops(server: Server) -> Verdict:
    """A stop string cuts the answer where it begins; no part of it is shown, whole or in a stream."""
    looked = Looked(what="stop strings, each whole and streamed")
    for name, body in asked(server, max_tokens=60):
        said = server.whole(with_logprobs(body, 1)).only
        for mark in marks(said.text, said.tokens):
            stopping = {**body, "stop": [mark]}
            expected = said.text.partition(mark)[0]
            for way, choice in _both(server, stopping):
                fault = _cut(choice, expected, mark)
                looked.at(
                    fault and _excusable(server, body, said, choice, fault),
                    f"{name} {way} {mark!r}",
                )
        if len(said.text) > 20:
            looked.at(_two(server, body, said), f"{name} with two stop strings")
    return looked.verdict()


def marks(text: str, tokens: Sequence[Token]) -> list[str]:
    """Stop strings out of a text: across the borders of tokens where these are known."""
    borders = list(_borders(text, tokens)) or list(range(4, len(text), 7))
    chosen = []
    for number, border in enumerate(borders[1 : STOPS + 1]):
        size = number % LONGEST_STOP + 1
        mark = text[max(0, border - (size + 1) // 2) : border + size // 2 + 1]
        if mark.strip() and "�" not in mark:
            chosen.append(mark)
    return list(dict.fromkeys(chosen))


def _borders(text: str, tokens: Sequence[Token]) -> Iterator[int]:
    place = 0
    for token in tokens:
        place += len(token.text)
        if not text.startswith(token.text, place - len(token.text)):
            return
        yield place


def _both(server: Server, body: Mapping[str, Any]) -> Iterator[tuple[str, Choice]]:
    yield "whole", server.whole(body).only
    yield "streamed", server.streamed(body).only


def _cut(choice: Choice, expected: str, mark: str) -> str:
    if choice.text != expected:
        return f"{choice.text[-30:]!r} is shown at the end, not {expected[-30:]!r}"
    return "" if choice.finish == "stop" else f"finish_reason is {choice.finish}"


def _excusable(
    server: Server, body: Mapping[str, Any], said: Choice, choice: Choice, fault: str
) -> str:
    """The fault, unless rounding turned the words before the stop string."""
    turned = not said.text.startswith(choice.text)
    return "" if turned and not server.differ(body, said, choice) else fault


def _two(server: Server, body: Mapping[str, Any], said: Choice) -> str:
    early, late = said.text[8:11], said.text[14:17]
    if not (early.strip() and late.strip()):
        return ""
    choice = server.whole({**body, "stop": [late, early]}).only
    first = min(said.text.find(early), said.text.find(late))
    fault = _cut(choice, said.text[:first], early)
    return fault and _excusable(server, body, said, choice, fault)


def seeds(server: Server) -> Verdict:
    """The same seed gives the same words; other seeds show that there was a choice."""
    looked = Looked(what="repeated seeds")
    seen = set()
    for name, body in asked(server, temperature=1.5):
        for seed in (1, 2, 3):
            first, again = (server.whole({**body, "seed": seed}).only for _ in range(2))
            looked.at(difference(first, again), f"{name} with seed {seed}")
            seen.add((name, first.text))
    if looked.times and not looked.wrong and len(seen) <= 2:
        return not_shown("every seed gave the same words, so nothing hung on it")
    return looked.verdict(f"{len(seen)} different answers")


def choices(server: Server) -> Verdict:
    """n choices come for n, numbered from 0; greedy ones are the same."""
    looked = Looked(what="answers with n = 3")
    heat = 0.0
    for name, body in asked(server):
        alone = server.whole(body).only
        heat = _coolest(server, body)
        for way, ask in (("whole", server.whole), ("streamed", server.streamed)):
            said = ask({**body, "n": 3, "temperature": heat})
            numbers = [choice.index for choice in said.choices]
            if numbers != [0, 1, 2]:
                looked.at(f"choices {numbers} came", f"{name} {way}")
                continue
            faults = [server.differ(body, alone, choice) for choice in said.choices]
            looked.at(next(filter(None, faults), ""), f"{name} {way}")
    return looked.verdict(f"at temperature {heat:g}" + (", as 0 is refused" if heat else ""))


def _coolest(server: Server, body: Mapping[str, Any]) -> float:
    """0 where several greedy choices are allowed, else next to nothing."""
    try:
        server.whole({**body, "n": 2, "max_tokens": 1})
    except RefusedError:
        return 0.02
    return 0.0


def echo(server: Server) -> Verdict:
    """With echo the answer begins with the prompt, and goes on as without."""
    looked = Looked(what="echoes")
    for name, body in asked(server):
        if name == "completion":
            alone = server.whole(body).only.text
            for ask in (server.whole, server.streamed):
                text = ask({**body, "echo": True}).only.text
                expected = OPENING + alone
                looked.at("" if text == expected else f"{text[:60]!r} came back", name)
    return looked.verdict("" if looked.times else "completions are not offered")


def prompts(server: Server) -> Verdict:
    """A list of prompts gives what each gives alone; token ids give what their text gives."""
    looked = Looked(what="prompts in lists and as token ids")
    for name, body in asked(server):
        if name == "completion":
            _lists(server, looked, body)
            _ids(server, looked, body)
    return looked.verdict("" if looked.times else "completions are not offered")


def _lists(server: Server, looked: Looked, body: Mapping[str, Any]) -> None:
    several = [OPENING, "The capital of France is", "x"]
    alone = [server.whole({**body, "prompt": prompt}).only for prompt in several]
    together = server.whole({**body, "prompt": several}).choices
    if [choice.index for choice in together] != [0, 1, 2]:
        looked.at(f"choices {[choice.index for choice in together]} came for three prompts")
        return
    for prompt, one, other in zip(several, alone, together, strict=True):
        looked.at(server.differ({**body, "prompt": prompt}, one, other), repr(prompt[:12]))


def _ids(server: Server, looked: Looked, body: Mapping[str, Any]) -> None:
    answer = server.wire.post("/tokenize", {"model": server.model, "prompt": OPENING})
    ids = answer.field("tokens") if answer.status == 200 else None
    if not ids:
        return
    try:
        other = server.whole({**body, "prompt": ids}).only
    except RefusedError as error:
        looked.at(f"token ids of its own tokenizer are refused: {error}")
        return
    looked.at(server.differ(body, server.whole(body).only, other), "token ids")
