"""Hours of mixed requests in cycles; at rest after each, what the server holds; early and late answers."""

from __future__ import annotations

import random
import re
import time
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import Any

from dspatch.bench import cards, processes
from dspatch.conformance.api.wire import GoneError, Wire
from dspatch.engines import Progress

USED = re.compile(r"^vllm:(?:gpu_cache_usage_perc|kv_cache_usage_perc)(?:\{[^}]*\})? (\S+)", re.M)
RUNNING = re.compile(r"^vllm:num_requests_(?:running|waiting)(?:\{[^}]*\})? (\S+)", re.M)
REST = 10.0  # seconds that a server gets to come to rest
WORDS = ("what", "is", "the", "sum", "of", "a", "list", "and", "one", "more")
GRAM = 4  # words that follow each other


@dataclass(frozen=True, kw_only=True)
class Sample:
    """A server at rest: when, bytes, open files, the share of KV blocks in use, and bytes of GPUs' memory.

    `None` is what nobody says.
    """

    seconds: float
    memory: int
    files: int
    blocks: float | None
    card: int | None = None


@dataclass(frozen=True, kw_only=True)
class Soaked:
    """All samples, requests and those that failed, and the same prompts' answers early and late."""

    samples: tuple[Sample, ...]
    requests: int
    left: int
    errors: int
    early: tuple[str, ...]
    late: tuple[str, ...]
    died: bool = False


@dataclass(frozen=True, kw_only=True)
class Plan:
    """How long to soak, requests of a cycle and how many at once; every fifth client leaves early.

    `pause` is in seconds, between two cycles.
    """

    seconds: float
    pause: float = 0.0
    requests: int = 16
    concurrency: int = 4
    prompts: int = 8
    words: int = 64
    output_tokens: int = 48


def soak(
    wire: Wire,
    model: str,
    pid: int,
    plan: Plan,
    progress: Progress,
    *,
    clock: Callable[[], float] = time.monotonic,
) -> Soaked:
    """Load a server in cycles until the time is over; a server that dies ends it, and is told so."""
    dice, begun = random.Random(7), clock()
    questions = [_prompt(dice, plan.words) for _ in range(plan.prompts)]
    samples: list[Sample] = []
    counts = {"requests": 0, "left": 0, "errors": 0}
    early: tuple[str, ...] = ()
    late: tuple[str, ...] = ()
    died = False
    try:
        early = answers(wire, model, questions, plan)
        while clock() - begun < plan.seconds:
            _cycle(wire, model, plan, dice, counts)
            found = sample(wire, pid, clock() - begun)
            if found is None:
                raise GoneError("the server's process is gone")
            samples.append(found)
            progress(f"{found.seconds:.0f} of {plan.seconds:.0f} s, {found.memory / 1e6:.1f} MB")
            time.sleep(max(0.0, min(plan.pause, begun + plan.seconds - clock())))
        late = answers(wire, model, questions, plan)
    except GoneError:
        died = True
    return Soaked(samples=tuple(samples), early=early, late=late, died=died, **counts)


def answers(wire: Wire, model: str, prompts: Sequence[str], plan: Plan) -> tuple[str, ...]:
    """Greedy answers, one after the other."""
    return tuple(_text(wire.post("/v1/completions", _body(model, p, plan)).value) for p in prompts)


def sample(wire: Wire, pid: int, seconds: float) -> Sample | None:
    """What a server holds once it is at rest; `None` when it is gone."""
    ends = time.monotonic() + REST
    text = _metrics(wire)
    while any(float(n) > 0 for n in RUNNING.findall(text)) and time.monotonic() < ends:
        time.sleep(0.05)
        text = _metrics(wire)
    held = processes.held(pid)
    if held is None:
        return None
    used = [float(n) for n in USED.findall(text)]
    return Sample(
        seconds=seconds,
        memory=held.memory,
        files=held.files,
        blocks=max(used) if used else None,
        card=cards.held(processes.tree(pid)),
    )


def repeated(text: str) -> float:
    """The share of a text's runs of four words that stood in it before: 0 for none, 1 for all."""
    words = text.split()
    runs = [tuple(words[at : at + GRAM]) for at in range(len(words) - GRAM + 1)]
    return 1 - len(set(runs)) / len(runs) if runs else 0.0


def _cycle(wire: Wire, model: str, plan: Plan, dice: random.Random, counts: dict[str, int]) -> None:
    asked = []
    for number in range(plan.requests):
        body = _body(model, _prompt(dice, dice.randint(1, plan.words)), plan)
        body |= {"max_tokens": dice.randint(1, plan.output_tokens), "temperature": 0.8}
        asked.append((body, 2 if number % 5 == 4 else 0))
    with ThreadPoolExecutor(plan.concurrency) as pool:
        done = list(pool.map(lambda one: _ask(wire, *one), asked))
    counts["requests"] += len(done)
    counts["left"] += sum(leave > 0 for _, leave in asked)
    counts["errors"] += done.count(False)
    if not any(done):
        raise GoneError("no request of a cycle was answered")


def _ask(wire: Wire, body: Mapping[str, Any], leave_after: int) -> bool:
    try:
        asked = {**body, "stream": leave_after > 0}
        return wire.post("/v1/completions", asked, leave_after=leave_after).status == 200
    except GoneError:
        return False


def _metrics(wire: Wire) -> str:
    answer = wire.get("/metrics")
    return answer.body.decode(errors="replace") if answer.status == 200 else ""


def _body(model: str, prompt: str, plan: Plan) -> dict[str, Any]:
    return {"model": model, "prompt": prompt, "max_tokens": plan.output_tokens, "temperature": 0}


def _prompt(dice: random.Random, words: int) -> str:
    return " ".join(dice.choice(WORDS) for _ in range(words))


def _text(value: Any) -> str:
    try:
        return str(value["choices"][0]["text"])
    except (TypeError, LookupError):
        return ""
