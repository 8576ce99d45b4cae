"""Numbers in an answer: usage adds up, log-probabilities are ones, and a stream has the same."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

from dspatch.conformance.api.checks.answers import asked
from dspatch.conformance.api.formatted import KINDS
from dspatch.conformance.api.said import Choice, Said, Token
from dspatch.conformance.api.server import THINKING, Server, with_logprobs
from dspatch.conformance.api.verdict import Looked, Verdict
from dspatch.outputformat import CHUNK, Rules

PARTS = ("prompt_tokens", "completion_tokens", "total_tokens")
SUM_SLACK = 1e-3  # a sum of float32 exponentials of rounded logarithms


def usage(server: Server) -> Verdict:
    """prompt and completion make the total, for one choice and for two."""
    looked = Looked(what="usages")
    for name, body in asked(server, max_tokens=9):
        # Not greedy: some servers give no more than one greedy choice.
        one, two = (server.whole({**body, "n": n, "temperature": 0.02}) for n in (1, 2))
        for said in (one, two):
            looked.at(_adds(said.usage), name)
        looked.at(_twice(one.usage, two.usage), f"{name} with n = 2")
    return looked.verdict()


def _adds(usage: Mapping[str, Any] | None) -> str:
    numbers = [value for part in PARTS if isinstance(value := (usage or {}).get(part), int)]
    if len(numbers) != len(PARTS):
        return f"usage is {dict(usage) if usage else None}"
    prompt, completion, total = numbers
    return "" if prompt + completion == total else f"{prompt} + {completion} is not {total}"


def _twice(one: Mapping[str, Any] | None, two: Mapping[str, Any] | None) -> str:
    if _adds(one) or _adds(two):
        return ""  # said already
    assert one is not None
    assert two is not None
    (prompt, same), (completion, both) = ((one[part], two[part]) for part in PARTS[:2])
    if prompt != same:
        return f"prompt_tokens is {same}, and {prompt} for one choice"
    return (
        "" if both == 2 * completion else f"completion_tokens is {both}, and {completion} for one"
    )


def usage_streamed(server: Server) -> Verdict:
    """With include_usage a stream ends with the usage of the whole answer; without it has none."""
    looked = Looked(what="streams with and without include_usage")
    places = set()
    for name, body in asked(server, max_tokens=9):
        whole = server.whole(body)
        counted = server.streamed({**body, "stream_options": {"include_usage": True}})
        looked.at(_same_usage(whole, counted), name)
        places.add(
            "a chunk of its own"
            if counted.objects and not counted.objects[-1]["choices"]
            else "the last chunk"
        )
        plain = server.streamed(body)
        looked.at(_unasked(server, name, plain), f"{name} without")
    return looked.verdict(f"usage is in {' and in '.join(sorted(places))}" if places else "")


def _unasked(server: Server, name: str, said: Said) -> str:
    rules = server.format.rules(KINDS[name] + CHUNK) if server.format else Rules()
    promised = bool(rules.usage)
    if promised == bool(said.usage):
        return ""
    return "usage comes although nobody asked" if said.usage else "no usage comes"


def _same_usage(whole: Said, streamed: Said) -> str:
    if not streamed.usage:
        return "no usage comes"
    if not streamed.objects[-1].get("usage"):
        return "usage is not in the last chunk"
    expected = {part: (whole.usage or {}).get(part) for part in PARTS}
    found = {part: streamed.usage.get(part) for part in PARTS}
    return "" if expected == found else f"usage is {found}, and {expected} for the whole answer"


def usage_reasoning(server: Server) -> Verdict:
    """Where usage tells reasoning_tokens, they are none without reasoning, and some with it."""
    looked = Looked(what="answers with reasoning_tokens")
    for name, body in asked(server, max_tokens=40):
        if name == "chat":
            for more in (THINKING, {}):
                said = server.whole({**body, **more})
                details = (said.usage or {}).get("completion_tokens_details")
                count = details.get("reasoning_tokens") if isinstance(details, dict) else None
                if count is not None:
                    looked.at(_counted(count, said.only), "asked to think" if more else "plain")
    return looked.verdict("" if looked.times else "usage tells no reasoning_tokens")


def _counted(count: int, choice: Choice) -> str:
    if bool(count) == bool(choice.reasoning):
        return ""
    return f"{count} are told for {len(choice.reasoning)} characters of reasoning"


def _bodies(server: Server) -> Any:
    for name, body in asked(server, max_tokens=12):
        yield name, with_logprobs(body, 4)


def logprobs(server: Server) -> Verdict:
    """The chosen token is among the likeliest with its own number, and these sum to at most one."""
    looked = Looked(what="tokens")
    for name, body in _bodies(server):
        choice = server.whole(body).only
        if not choice.tokens:
            looked.at("no logprobs came although they were asked for", name)
        for number, token in enumerate(choice.tokens):
            looked.at(_probable(token), f"{name} token {number} {token.text!r}")
        looked.at(_spells(choice), name)
    return looked.verdict()


def _probable(token: Token) -> str:
    values = [value for _, value in token.top]
    if token.logprob > 0 or not all(map(math.isfinite, values)):
        return f"a log-probability of {token.logprob:g} among {values}"
    if (total := sum(map(math.exp, values))) > 1 + SUM_SLACK:
        return f"the likeliest sum to {total:.4f}"
    if len(values) < 2:
        return f"{len(values)} of the likeliest came, 4 were asked for"
    own = [value for text, value in token.top if text == token.text]
    if not any(math.isclose(value, token.logprob, abs_tol=1e-6) for value in own):
        return f"not among the likeliest with its own {token.logprob:g}"
    return "" if token.logprob >= max(values) - 1e-6 else "greedy, and not the likeliest"


def _spells(choice: Choice) -> str:
    spelled = [token.bytes_ for token in choice.tokens]
    if any(each is None for each in spelled):
        text = "".join(token.text for token in choice.tokens)
    else:
        text = bytes(b for each in spelled if each for b in each).decode(errors="replace")
    # The end token and a torn character may be in the one and not in the other.
    shared = min(len(text), len(choice.text))
    whole = "�" in text or text[:shared] == choice.text[:shared]
    return "" if whole else f"the tokens spell {text[:40]!r}, the text is {choice.text[:40]!r}"


def logprobs_streamed(server: Server) -> Verdict:
    """A stream has the tokens of the whole answer, with their log-probabilities."""
    looked = Looked(what="tokens in streams")
    worst = 0.0
    for name, body in _bodies(server):
        whole, streamed = server.whole(body).only, server.streamed(body).only
        if server.differ(body, whole, streamed):
            looked.at("the stream says other words", name)
            continue
        texts = [[token.text for token in each.tokens] for each in (whole, streamed)]
        looked.at("" if texts[0] == texts[1] else f"tokens {texts[1]}, not {texts[0]}", name)
        off = _off(whole.tokens, streamed.tokens)
        worst = max(worst, off)
        looked.at("" if off <= server.nats else f"off by {off:.2g} nats", name)
    return looked.verdict(f"largest difference {worst:.1g} nats, {server.nats:g} allowed")


def _off(one: Sequence[Token], other: Sequence[Token]) -> float:
    pairs = zip(one, other, strict=False)
    return max((abs(a.logprob - b.logprob) for a, b in pairs if a.text == b.text), default=0.0)
