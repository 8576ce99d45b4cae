"""The checks of a server, in the order in which they run."""

from __future__ import annotations

from dspatch.conformance.api.checks import (
    answers,
    formats,
    limits,
    load,
    malformed,
    numbers,
    parsed,
    tokens,
)
from dspatch.conformance.api.verdict import Check

ALL = (
    Check(id="models.listed", look=answers.models, requests=1),
    Check(id="answers.plain", look=answers.plain, requests=2),
    Check(id="stream.form", look=answers.form, requests=4),
    Check(id="stream.greedy", look=answers.join_greedy, requests=23),
    Check(id="stream.seeded", look=answers.join_sampled, requests=12),
    Check(id="stream.characters", look=parsed.characters, requests=4),
    Check(id="finish.once", look=answers.finish_once, requests=4),
    Check(id="finish.reason", look=answers.finish_right, requests=9),
    Check(id="tokens.exact", look=limits.max_tokens, requests=12),
    Check(id="tokens.markers", look=tokens.markers, requests=30),
    Check(id="usage.adds", look=numbers.usage, requests=4),
    Check(id="usage.streamed", look=numbers.usage_streamed, requests=6),
    Check(id="usage.reasoning", look=numbers.usage_reasoning, requests=2),
    Check(id="logprobs.sound", look=numbers.logprobs, requests=2),
    Check(id="logprobs.streamed", look=numbers.logprobs_streamed, requests=6),
    Check(id="stop.exact", look=limits.stops, requests=40),
    Check(id="seed.repeats", look=limits.seeds, requests=12),
    Check(id="n.choices", look=limits.choices, requests=12),
    Check(id="prompt.echo", look=limits.echo, requests=3),
    Check(id="prompt.forms", look=limits.prompts, requests=10),
    Check(id="reasoning.split", look=parsed.reasoning, requests=60),
    Check(id="tools.calls", look=parsed.tools, requests=4),
    Check(id="tools.cut", look=parsed.tools_cut, requests=44),
    Check(id="load.mixed", look=load.together, requests=48),
    Check(id="abort.frees", look=load.abort, requests=110),
    Check(id="unknown.field", look=malformed.unknown, requests=6),
    Check(id="malformed.refused", look=malformed.refused, requests=120),
    Check(id="malformed.alive", look=malformed.alive, requests=4),
)

# For a server that answers in an output format, beside the others.
OF_FORMATS = (
    Check(id="format.whole", look=formats.whole, requests=12),
    Check(id="format.streamed", look=formats.streamed, requests=14),
)
