"""Usage: python -m parser_worker REQUEST.json, with this package's parent folder on PYTHONPATH.

The request names a folder with a `tokenizer`, the `cases` (each with `parsers`, `text`, `prompt`,
`tools`, `thinking`), how many `random` ways of cutting there are, and the `target`, which gets a list:
for each case what the parser makes of the whole text, how many ways of cutting were tried, the first
ones that gave something else, and whether `single` tokens gave the same; or its `error`.
"""

from __future__ import annotations

import json
import logging
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from . import cuts, vllm_parsers

Case = Mapping[str, Any]
SHOWN = 3
# The letter that byte-level BPE writes for each byte: itself where it can be seen.
KEPT = (*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100))
MOVED = (byte for byte in range(256) if byte not in KEPT)
LETTERS = {chr(byte): byte for byte in KEPT} | {
    chr(256 + place): byte for place, byte in enumerate(MOVED)
}


def main(request: Path) -> None:
    """Try every case."""
    from transformers import AutoTokenizer

    logging.disable(logging.ERROR)
    asked = json.loads(request.read_text())
    tokenizer = AutoTokenizer.from_pretrained(asked["tokenizer"])
    found = [_tried(case, tokenizer, asked["random"]) for case in asked["cases"]]
    Path(asked["target"]).write_text(json.dumps(found, indent=1) + "\n")


def _tried(case: Case, tokenizer: Any, random_ones: int) -> dict[str, Any]:
    try:
        return _compared(case, tokenizer, random_ones)
    except Exception as error:
        return {"error": f"{type(error).__name__}: {error}"}


def _compared(case: Case, tokenizer: Any, random_ones: int) -> dict[str, Any]:
    asked = vllm_parsers.request(case["tools"])

    def fresh() -> Any:
        return vllm_parsers.parser(case["parsers"], tokenizer, asked, case["thinking"])

    ids = tokenizer(case["text"], add_special_tokens=False).input_ids
    spelled = [_bytes(tokenizer, one) for one in ids]
    prompt = tokenizer(case["prompt"], add_special_tokens=False).input_ids
    # The end token comes alone and says nothing, as it does from an engine.
    end = cuts.Piece(ids=(tokenizer.eos_token_id,), text="")
    whole = vllm_parsers.whole(fresh(), case["text"], asked)
    other, tried, single = [], 0, whole
    for places in cuts.ways(len(ids), random_ones, seed=len(ids)):
        pieces = [*cuts.pieces(ids, spelled, places), end]
        said = vllm_parsers.streamed(fresh(), pieces, prompt, asked)
        tried += 1
        if len(places) == len(ids) - 1:
            single = said
        if not _same(said, whole):
            other.append({"pieces": [piece.text for piece in pieces], "said": said})
    other.sort(key=lambda each: len(each["pieces"]))
    return {
        "whole": whole,
        "tried": tried,
        "single": _same(single, whole),
        "different": len(other),
        "first": other[:SHOWN],
    }


def _same(one: Mapping[str, Any], other: Mapping[str, Any]) -> bool:
    """Whether two parses say the same; blanks around the content beside calls say nothing."""
    contents = [
        each["content"].strip() if each["calls"] else each["content"] for each in (one, other)
    ]
    return contents[0] == contents[1] and all(
        one[key] == other[key] for key in ("reasoning", "calls")
    )


def _bytes(tokenizer: Any, token: int) -> bytes:
    """What a token spells: itself for a named one, else the bytes of byte-level BPE."""
    text = tokenizer.convert_ids_to_tokens(token)
    if token in tokenizer.added_tokens_decoder:
        return str(text).encode()
    return bytes(LETTERS[letter] for letter in text)


if __name__ == "__main__":
    main(Path(sys.argv[1]))
