"""Faults of an engine that shows nothing inside, planted between it and who asks.

What a lost cache, exchanged rows or an unheeded seed do to answers is done to them here: requests are cut, changed or
exchanged on their way. Faults of weights and of numbers inside need another checkpoint (`spoiled`).
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Any

from asking import UnaskableError

from .engine import BLOCK, Answer, Asked, Started

Ask = Callable[[Sequence[Asked]], list[Answer]]
Plant = Callable[[Ask, Mapping[str, Any]], Ask]
LATE = 100  # tokens after which a cache is lost late
BEHIND = 0.5  # nats, beyond what rounding may put two logits apart by


def planted(it: Started, name: str, request: Mapping[str, Any]) -> Started:
    """The engine as one that has this fault; `UnaskableError` for a fault that cannot be planted from outside."""
    if name not in HOOKS:
        raise UnaskableError("nothing inside this engine can be changed")
    return it.asked_by(HOOKS[name](it.ask, request))


def unheeded(**instead: Any) -> Plant:
    """What is asked of sampling is another thing than what is done."""

    def plant(ask: Ask, request: Mapping[str, Any]) -> Ask:
        return lambda asked: ask([replace(a, **instead) if a.temperature else a for a in asked])

    return plant


def seeds_unheeded(ask: Ask, request: Mapping[str, Any]) -> Ask:
    """Each time another seed than the one that was asked for; without any, some engines take the same always."""
    others = itertools.count(10**6)
    return lambda asked: ask(
        [one if one.seed is None else replace(one, seed=next(others)) for one in asked]
    )


def logits_changed(change: Callable[[Any], Any]) -> Plant:
    """Logits of every row changed."""

    def plant(ask: Ask, request: Mapping[str, Any]) -> Ask:
        def faulty(asked: Sequence[Asked]) -> list[Answer]:
            return [
                one if one.logits is None else replace(one, logits=change(one.logits))
                for one in ask(asked)
            ]

        return faulty

    return plant


def requests_exchanged(ask: Ask, request: Mapping[str, Any]) -> Ask:
    """Of several requests at once the first two get each other's steps."""

    def faulty(asked: Sequence[Asked]) -> list[Answer]:
        answers = ask(asked)
        if len(answers) > 1:
            steps = asked[0].steps
            first, second = answers[:2]
            answers[:2] = _steps_of(first, second, steps), _steps_of(second, first, steps)
        return answers

    return faulty


def _steps_of(one: Answer, other: Answer, steps: int) -> Answer:
    """An answer that reads its own prompt and goes on as the other one."""
    import torch

    logits = torch.cat([one.logits[:-steps], other.logits[-steps:]])
    return replace(one, tokens=other.tokens, logits=logits)


def cache_lost_after(steps: int) -> Plant:
    """After so many steps all that stands before the last token is forgotten, at every step."""

    def plant(ask: Ask, request: Mapping[str, Any]) -> Ask:
        def one(asked: Asked) -> Answer:
            [answer] = ask([replace(asked, steps=steps)])
            for _ in range(asked.steps - steps):
                last = replace(asked, prompt=answer.tokens[-1:], steps=1)
                answer = _joined(answer, ask([_of_steps(last)])[0])
            return answer

        return lambda asked: [one(each) if each.steps > steps else ask([each])[0] for each in asked]

    return plant


def cache_lost_between_chunks(ask: Ask, request: Mapping[str, Any]) -> Ask:
    """A prompt that is read in chunks is read as if each began it."""
    size = request["options"]["max_num_batched_tokens"]

    def one(asked: Asked) -> Answer:
        read = asked.logits == "all"
        found, rest = None, list(asked.prompt)
        while len(rest) > size:
            # One row more than a prompt's own: what its last token is followed by.
            [part] = ask([replace(asked, prompt=rest[:size], steps=1)])
            part = replace(part, tokens=[])
            found = part if found is None else _joined(found, part)
            rest = rest[size:]
        [last] = ask([replace(asked, prompt=rest)])
        return last if found is None or not read else _joined(found, last)

    return lambda asked: [one(each) for each in asked]


def cached_prefix_lost(ask: Ask, request: Mapping[str, Any]) -> Ask:
    """A prompt whose prefix is in the cache is continued as if it began after it."""

    def one(asked: Asked) -> Answer:
        [whole] = ask([asked])
        blocks = (whole.cached or 0) // BLOCK * BLOCK
        if not blocks or asked.logits != "steps":
            return whole
        [rest] = ask([replace(asked, prompt=asked.prompt[blocks:])])
        return replace(rest, cached=whole.cached)

    return lambda asked: [one(each) for each in asked]


def runner_up_picked(ask: Ask, request: Mapping[str, Any]) -> Ask:
    """Once a text goes on with its second best token, where that lies half a nat behind."""
    done: list[bool] = []

    def one(asked: Asked) -> Answer:
        [whole] = ask([asked])
        if done or asked.temperature or whole.logits is None or len(whole.tokens) < asked.steps:
            return whole
        best, order = whole.logits[-asked.steps :].topk(2)
        behind = (best[:-1, 0] - best[:-1, 1] >= BEHIND).nonzero().flatten().tolist()
        for step in behind[:1]:
            done.append(True)
            text, left = [*whole.tokens[:step], int(order[step, 1])], asked.steps - step - 1
            kept = replace(whole, tokens=text, logits=whole.logits[:-left])
            onward = replace(_of_steps(asked), prompt=[*asked.prompt, *text], steps=left)
            return _joined(kept, ask([onward])[0])
        return whole

    return lambda asked: [one(each) for each in asked]


def _of_steps(asked: Asked) -> Asked:
    return replace(asked, logits="none" if asked.logits == "none" else "steps")


def _joined(first: Answer, then: Answer) -> Answer:
    joined = replace(first, tokens=[*first.tokens, *then.tokens])
    if first.logits is None or then.logits is None:
        return joined
    import torch

    return replace(joined, logits=torch.cat([first.logits, then.logits]))


HOOKS: dict[str, Plant] = {
    "requests-exchanged": requests_exchanged,
    "cache-lost-before-decode": cache_lost_after(1),
    "cache-lost-late": cache_lost_after(LATE),
    "cache-lost-between-chunks": cache_lost_between_chunks,
    "cached-prefix-lost": cached_prefix_lost,
    "foreign-row-after-scoring": lambda ask, request: _foreign(ask, request),
    "runner-up-picked": runner_up_picked,
    "logits-flattened": logits_changed(lambda logits: logits * 0.95),
    "logits-capped": logits_changed(lambda logits: logits.clamp_max(2.0)),
    "temperature-ignored": unheeded(temperature=1.0),
    "top-p-ignored": unheeded(top_p=1.0),
    "seed-ignored": seeds_unheeded,
}


def _foreign(ask: Ask, request: Mapping[str, Any]) -> Ask:
    """A prompt is continued as the one that was read before it."""
    other = next(iter(request["prompts"].values()))
    return lambda asked: ask([replace(one, prompt=other) for one in asked])
