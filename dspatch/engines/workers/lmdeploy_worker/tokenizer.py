"""LMDeploy starts with no checkpoint that lacks a tokenizer: a folder that has one, the rest by links."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

NAMED = ("<s>", "</s>", "<unk>")


def beside(checkpoint: Path, folder: Path) -> Path:
    """A folder with the checkpoint's files, and a tokenizer of as many words as config.json says."""
    folder.mkdir(parents=True)
    for file in checkpoint.iterdir():
        (folder / file.name).symlink_to(file.resolve())
    size = json.loads((checkpoint / "config.json").read_text())["vocab_size"]
    for name, content in (("tokenizer.json", _words(size)), ("tokenizer_config.json", _config())):
        if not (folder / name).exists():
            (folder / name).write_text(json.dumps(content))
    return folder


def _words(size: int) -> dict[str, Any]:
    words = [*NAMED, *(f"w{number}" for number in range(len(NAMED), size))]
    flags = dict.fromkeys(("single_word", "lstrip", "rstrip", "normalized"), False)
    added = [{"id": n, "content": w, **flags, "special": True} for n, w in enumerate(NAMED)]
    model = {
        "type": "WordLevel",
        "unk_token": NAMED[2],
        "vocab": {w: n for n, w in enumerate(words)},
    }
    absent = dict.fromkeys(("truncation", "padding", "normalizer", "post_processor", "decoder"))
    return {
        "version": "1.0",
        **absent,
        "added_tokens": added,
        "pre_tokenizer": {"type": "WhitespaceSplit"},
        "model": model,
    }


def _config() -> dict[str, Any]:
    bos, eos, unknown = NAMED
    return {
        "tokenizer_class": "PreTrainedTokenizerFast",
        "bos_token": bos,
        "eos_token": eos,
        "unk_token": unknown,
        "clean_up_tokenization_spaces": False,
        "model_max_length": 10**6,
    }
