"""What other projects' comparisons would say of the same run: rules written from their definition.

vLLM's tests pass a prompt when the greedy texts are equal or, at the first token that differs, each
side's token is among the other's best. SGLang's compare the best log-probabilities by value,
whatever token they belong to, of prompts of up to 100 tokens, and the texts.
"""

from __future__ import annotations

from collections.abc import Mapping

import torch
from torch import Tensor

BEST = 5
NEAR = 5e-2  # nats
LONGEST = 100  # tokens


def judge(expected: Mapping[str, Tensor], found: Mapping[str, Tensor]) -> dict[str, bool]:
    """Whether each rule passes one prompt: `vllm` and `sglang`."""
    steps = found["tokens"].shape[0]
    length = expected["ids"].shape[0] - steps
    wanted, logits = expected["logits"][:-1][-found["logits"].shape[0] :], found["logits"]
    texts = expected["ids"][length:], found["tokens"]
    return {
        "vllm": logprobs_close(*texts, wanted[-steps:], logits[-steps:]),
        "sglang": values_near(*texts, wanted, logits, length),
    }


def logprobs_close(ours: Tensor, theirs: Tensor, first: Tensor, second: Tensor) -> bool:
    """Equal texts, or a first difference that both sides nearly chose; logits are (steps, vocab)."""
    differing = (ours != theirs).nonzero().flatten().tolist()
    if not differing:
        return True
    at = differing[0]
    best = (logits[at].topk(BEST)[1].tolist() for logits in (first, second))
    return int(theirs[at]) in next(best) and int(ours[at]) in next(best)


def values_near(ours: Tensor, theirs: Tensor, first: Tensor, second: Tensor, length: int) -> bool:
    """Equal texts, and the best log-probabilities of every position within a fixed distance."""
    steps = ours.shape[0]
    rows = slice(None) if length <= LONGEST else slice(-steps, None)
    values = [logits[rows].double().log_softmax(-1).topk(BEST)[0] for logits in (first, second)]
    near = bool(((values[0] - values[1]).abs() <= NEAR).all())
    return near and bool(torch.equal(ours, theirs))
