"""Weights that look things up, made by hand: what they find in a long text is known beforehand.

Two layers, whose experts add nothing. The first writes beside each token the one before it, by a head
that attends one position back. In the second, one head goes to where that neighbour is the token at
hand and says what follows there, whatever stands between; another goes as many positions back as the
token at hand asks for, by rotation alone. The last step reads out which token that was.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np

from .twin import softmax_scale, turns

Array = np.ndarray[Any, Any]
Weights = dict[str, Array]

CODE = 128  # signs by which a token is known
# Where things stand in the stream: a token's code, its neighbour's, the answer, what it asks for.
OWN, BEFORE, ANSWER, ASKED = 0, CODE, 2 * CODE, 3 * CODE
QUESTIONS = 16
ALWAYS, REST = ASKED + QUESTIONS, ASKED + QUESTIONS + 1
LOUD = 8.0  # of what a token asks for, and of what every token has

# By how much the right place leads, before the softmax: the place beside it, and any other token.
BESIDE, OTHER = 15.0, 30.0
REGION = 80.0  # the same for a distance that is known roughly, by the pairs that turn slowly
CERTAIN = 40.0  # logit of the answer


def planted(weights: Weights, config: Mapping[str, Any]) -> Weights:
    """The weights of a two-layer model with every attention, embedding and output made by hand.

    `config["passkey"]` has `far` and `region`, the distances in tokens that the tokens 2 and 3 ask for.
    """
    out = {name: _kept(name, value) for name, value in weights.items()}
    codes = _codes(config["vocab_size"])
    stream = _embedding(codes)
    out["model.embed_tokens.weight"] = stream
    turn = turns(config)[0].numpy()
    near = _pairs(turn, 1, BESIDE)
    one = _Layer(config, out, 0, stream)
    one.attend(0, rotation={ALWAYS: near})
    one.say(0, BEFORE)
    both = stream + np.roll(stream[:, :CODE], 1, axis=0) @ np.eye(CODE, stream.shape[1], BEFORE)
    two = _Layer(config, out, 1, both)
    two.attend(0, content=OTHER)
    far, region = config["passkey"]["far"], config["passkey"]["region"]
    slow = _slow(config, turn)
    asked = {ASKED: _pairs(turn, far, BESIDE), ASKED + 1: _pairs(turn, region, REGION) * slow}
    two.attend(1, rotation=asked)
    two.say(0, ANSWER)
    two.say(1, ANSWER)
    out["lm_head.weight"] = _head(codes, stream.shape[1])
    return {name: np.asarray(value, dtype=np.float32) for name, value in out.items()}


def _kept(name: str, value: Array) -> Array:
    """What is not made by hand: routers and inner projections as drawn; experts say nothing."""
    if name.endswith("norm.weight"):
        return np.ones_like(value)
    silent = "self_attn" in name or name.endswith("down_proj.weight")
    return np.zeros_like(value) if silent else value


def _codes(vocabulary: int) -> Array:
    """A code of signs for each token, (vocabulary, CODE); those that ask have none."""
    dice = np.random.Generator(np.random.PCG64(1))
    codes = dice.choice([-1.0, 1.0], size=(vocabulary, CODE))
    codes[: 2 + QUESTIONS] = 0.0
    return codes


def _embedding(codes: Array) -> Array:
    """The stream of each token, (vocabulary, hidden), of mean square one, so that norms change nothing."""
    hidden = 4 * CODE
    out = np.zeros((len(codes), hidden))
    out[:, OWN : OWN + CODE] = codes
    out[:, ALWAYS] = LOUD
    for number in range(QUESTIONS):
        out[2 + number, ASKED + number] = LOUD
    out[:, REST] = np.sqrt(hidden - np.square(out).sum(1))
    return out


def _pairs(turn: Array, distance: float, gain: float) -> Array:
    """The rotary part of a query that goes so far back, (2 * pairs,): it leads by `gain` over half a turn."""
    angle = -turn * distance
    return gain * np.stack((np.cos(angle), np.sin(angle)), -1).reshape(-1)


def _slow(config: Mapping[str, Any], turn: Array) -> Array:
    """One for pairs that YaRN stretches by its whole factor, which tell a region and no single place."""
    base, dim = float(config["rope_theta"]), config["qk_rope_head_dim"]
    plain = base ** (-np.arange(0, dim, 2) / dim)
    stretched = np.isclose(turn * config["rope_scaling"]["factor"], plain)
    return np.repeat(stretched, 2).astype(float)


def _head(codes: Array, hidden: int) -> Array:
    out = np.zeros((len(codes), hidden))
    out[:, ANSWER : ANSWER + CODE] = codes * CERTAIN / CODE
    return out


def _normed(value: Array) -> Array:
    scaled: Array = value / np.sqrt(np.square(value).mean(-1, keepdims=True))
    return scaled


def _mean(values: Array) -> float:
    """The size of a part of the stream in the tokens that have it."""
    return float(np.abs(values[values != 0]).mean())


class _Layer:
    """One layer's attention, whose streams are these: what each token has when it comes in."""

    def __init__(self, config: Mapping[str, Any], out: Weights, number: int, stream: Array) -> None:
        self.config, self.out, self.stream = config, out, _normed(stream)
        self.prefix = f"model.layers.{number}.self_attn"
        self.nope, self.rope, self.value = (
            config[key] for key in ("qk_nope_head_dim", "qk_rope_head_dim", "v_head_dim")
        )
        self.scale = softmax_scale(config)
        self.latent, keys = config["kv_lora_rank"], self._of("kv_a_proj_with_mqa")
        keys[: 2 * CODE, : 2 * CODE] = np.eye(2 * CODE)
        keys[2 * CODE, REST] = keys[2 * CODE + 1, ALWAYS] = 1.0
        # The rotary part of every key is the same: pairs that point along the first axis.
        keys[self.latent :: 2, ALWAYS] = 1.0 / _mean(self.stream[:, ALWAYS])
        self.compressed = _normed(self.stream @ keys[: self.latent].T)
        if config["q_lora_rank"] is None:
            self.query, self.heads = self.stream, self._of("q_proj")
            return
        down, rank = self._of("q_a_proj"), config["q_lora_rank"]
        chosen = [*range(CODE), *range(ASKED, REST + 1)][:rank]
        down[np.arange(len(chosen)), chosen] = 1.0
        self.query, self.heads = _normed(self.stream @ down.T), self._of("q_b_proj")
        self.places = {place: row for row, place in enumerate(chosen)}

    def _of(self, name: str) -> Array:
        key = f"{self.prefix}.{name}.weight"
        self.out[key] = np.zeros(self.out[key].shape)
        return self.out[key]

    def _place(self, place: int) -> int:
        return self.places[place] if self.config["q_lora_rank"] is not None else place

    def attend(
        self, head: int, *, content: float = 0.0, rotation: Mapping[int, Array] | None = None
    ) -> None:
        """What a head goes to: tokens behind its own, or the place that each part of the stream asks for."""
        width = self.nope + self.rope
        rows = self.heads[head * width : (head + 1) * width]
        if content:
            keys = self.out[f"{self.prefix}.kv_b_proj.weight"]
            per = self.nope + self.value
            keys[head * per + np.arange(CODE), CODE + np.arange(CODE)] = 1.0
            columns = [self._place(OWN + n) for n in range(CODE)]
            own, behind = self.query[:, columns], self.compressed[:, CODE : 2 * CODE]
            size = _mean(own) * _mean(behind) * CODE
            rows[np.arange(CODE), columns] = content / size / self.scale
        for place, pairs in (rotation or {}).items():
            column = self._place(place)
            rows[self.nope :, column] = pairs / _mean(self.query[:, column]) / self.scale

    def say(self, head: int, where: int) -> None:
        """Write the code of what a head attends to into a part of the stream."""
        values, per = self.out[f"{self.prefix}.kv_b_proj.weight"], self.nope + self.value
        size = _mean(self.compressed[:, :CODE])
        values[head * per + self.nope + np.arange(CODE), np.arange(CODE)] = 1.0 / size
        out = self.out[f"{self.prefix}.o_proj.weight"]
        out[where + np.arange(CODE), head * self.value + np.arange(CODE)] = 1.0
