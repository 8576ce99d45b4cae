"""Write a small checkpoint that can be served: with a tokenizer, and with greedy text known in advance."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np

from .checkpoint import make as write_checkpoint
from .weights import tensors

PIECES = (3, 5, 2, 4)  # characters a piece, in turn
PRINTABLE = range(0x20, 0x7F)


def make(
    config: dict[str, Any], seed: int, form: str, script: Mapping[str, Any], target: Path
) -> None:
    """Write the checkpoint into the new folder `target`; `script` is what script.toml holds."""
    from safetensors.numpy import save_file

    write_checkpoint(config, seed, form, target)
    vocabulary, chains = _vocabulary(script, config["vocab_size"])
    weights = tensors(config, seed)
    _follow(weights, _successors(vocabulary, chains, seed), script)
    save_file(weights, target / "model.safetensors", metadata={"format": "pt"})
    _write_tokenizer(vocabulary, script, target)


def _letters() -> list[str]:
    """The printable stand-in of each byte, as byte-level BPE has them."""
    kept = [*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)]
    moved = iter(range(256))
    return [chr(byte) if byte in kept else chr(256 + next(moved)) for byte in range(256)]


def _spelled(piece: bytes) -> str:
    letters = _letters()
    return "".join(letters[byte] for byte in piece)


def _vocabulary(script: Mapping[str, Any], size: int) -> tuple[list[str], list[list[str]]]:
    """All tokens in the order of their ids, and each script as tokens of them."""
    tokens = [*script["tokens"], *_letters()]
    chains = []
    used: set[str] = set()
    for parts in script["scripts"]:
        chain: list[str] = []
        for part in parts:
            known = part in script["tokens"]
            chain += [part] if known else list(_pieces(part, script["torn"], used))
        chains.append(chain)
        tokens += [token for token in chain if token not in tokens]
    if len(tokens) > size:
        raise ValueError(f"the scripts need {len(tokens)} tokens, and the model has {size}")
    return tokens + [f"<unused{n}>" for n in range(size - len(tokens))], chains


def _pieces(text: str, torn: str, used: set[str]) -> Iterator[str]:
    """Pieces that no script has used, so that each knows what follows it; torn characters in bytes."""
    turn = 0
    while text:
        if text[0] in torn:
            yield from (_spelled(bytes([byte])) for byte in text[0].encode())
            text = text[1:]
            continue
        length = PIECES[turn % len(PIECES)]
        stop = next((n for n, letter in enumerate(text) if letter in torn), len(text))
        while (piece := _spelled(text[: min(length, stop)].encode())) in used and length < stop:
            length += 1
        if piece in used:
            raise ValueError(f"{text!r} cannot be cut into pieces of its own")
        used.add(piece)
        yield piece
        text, turn = text[min(length, stop) :], turn + 1


def _successors(vocabulary: Sequence[str], chains: Sequence[Sequence[str]], seed: int) -> list[int]:
    """The token that follows each token: the script's, elsewhere the next of a ring of letters."""
    ids = {token: number for number, token in enumerate(vocabulary)}
    scripted = {ids[token] for chain in chains for token in chain}
    ring = [ids[_letters()[byte]] for byte in PRINTABLE if ids[_letters()[byte]] not in scripted]
    np.random.Generator(np.random.PCG64(seed)).shuffle(ring)
    follows = dict(zip(ring, [*ring[1:], ring[0]], strict=True))
    for chain in chains:
        for token, then in pairwise(chain):
            follows[ids[token]] = ids[then]
    return [follows.get(number, ring[number % len(ring)]) for number in range(len(vocabulary))]


def _follow(weights: dict[str, Any], successors: Sequence[int], script: Mapping[str, Any]) -> None:
    """Let each token's embedding point at the token after it."""
    embedding = weights["model.embed_tokens.weight"]
    head = weights["lm_head.weight"]
    for token, then in enumerate(successors):
        head[then] += (
            script["logit"] * embedding[token] / np.dot(embedding[token], embedding[token])
        )
    embedding *= script["gain"]


def _write_tokenizer(vocabulary: Sequence[str], script: Mapping[str, Any], target: Path) -> None:
    from tokenizers import AddedToken, Tokenizer, decoders, models, pre_tokenizers

    named = len(script["tokens"])
    ids = {token: number for number, token in enumerate(vocabulary)}
    tokenizer = Tokenizer(models.BPE(vocab=ids, merges=[]))
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
    tokenizer.decoder = decoders.ByteLevel()
    added = [AddedToken(token, normalized=False) for token in vocabulary[:named]]
    tokenizer.add_special_tokens(added[: script["special"]])
    tokenizer.add_tokens(added[script["special"] :])
    tokenizer.save(str(target / "tokenizer.json"))
    config = {
        "tokenizer_class": "PreTrainedTokenizerFast",
        "bos_token": vocabulary[0],
        "eos_token": vocabulary[1],
        "pad_token": vocabulary[2],
        "add_bos_token": False,
        "clean_up_tokenization_spaces": False,
        "model_max_length": 4096,
        "chat_template": script["template"],
    }
    (target / "tokenizer_config.json").write_text(json.dumps(config, indent=1) + "\n")
