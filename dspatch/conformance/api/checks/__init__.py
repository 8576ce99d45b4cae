"""The checks of a server, in the order in which they run."""

from __future__ import annotations

from dspatch.conformance.api.checks import answers, limits, load, malformed, numbers, parsed
from dspatch.conformance.api.verdict import Check

ALL = (
    Check(id="models.listed", what="/v1/models lists the model", look=answers.models, requests=1),
    Check(id="stream.form", what="events are JSON, [DONE] is last and said once, id and model stay", look=answers.form, requests=4),
    Check(id="stream.greedy", what="a greedy stream joins to the whole answer", look=answers.join_greedy, requests=23),
    Check(id="stream.seeded", what="a sampled stream with a seed joins to the whole answer", look=answers.join_sampled, requests=12),
    Check(id="stream.characters", what="no piece of a stream has a torn character", look=parsed.characters, requests=4),
    Check(id="finish.once", what="each choice ends once, with nothing after it", look=answers.finish_once, requests=4),
    Check(id="finish.reason", what="length and stop are said where they are true", look=answers.finish_right, requests=9),
    Check(id="tokens.exact", what="max_tokens gives exactly so many", look=limits.max_tokens, requests=12),
    Check(id="usage.adds", what="prompt and completion make the total", look=numbers.usage, requests=4),
    Check(id="usage.streamed", what="include_usage ends a stream with the usage of the whole answer", look=numbers.usage_streamed, requests=6),
    Check(id="logprobs.sound", what="the chosen token is among the likeliest, which sum to at most one", look=numbers.logprobs, requests=2),
    Check(id="logprobs.streamed", what="a stream has the whole answer's log-probabilities", look=numbers.logprobs_streamed, requests=6),
    Check(id="stop.exact", what="a stop string cuts exactly and never shows, across tokens and chunks", look=limits.stops, requests=40),
    Check(id="seed.repeats", what="the same seed gives the same words", look=limits.seeds, requests=12),
    Check(id="n.choices", what="n choices come, and greedy ones are the same", look=limits.choices, requests=12),
    Check(id="prompt.echo", what="echo begins with the prompt", look=limits.echo, requests=3),
    Check(id="prompt.forms", what="lists of prompts and token ids give what the text gives", look=limits.prompts, requests=10),
    Check(id="reasoning.split", what="reasoning is apart, the same in a stream, wherever it is cut", look=parsed.reasoning, requests=60),
    Check(id="tools.calls", what="tool calls are the same in a stream, with JSON arguments", look=parsed.tools, requests=4),
    Check(id="tools.cut", what="a cut tool call ends with length", look=parsed.tools_cut, requests=44),
    Check(id="load.mixed", what="mixed requests at once answer as alone", look=load.together, requests=48),
    Check(id="abort.frees", what="leaving a stream frees its place and cache", look=load.abort, requests=110),
    Check(id="unknown.field", what="an unknown field is ignored or refused", look=malformed.unknown, requests=6),
    Check(id="malformed.refused", what="wrong requests get a 4xx with a message", look=malformed.refused, requests=120),
    Check(id="malformed.alive", what="after them the server answers as before", look=malformed.alive, requests=4),
)  # fmt: skip
