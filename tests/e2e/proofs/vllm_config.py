"""Keys of config.json that transformers reads and vLLM does not: one small model each, the two compared.

    python vllm_config.py docs/proofs/config-keys.json

Run in the environment of a vLLM wheel, which has transformers. The file has `configs` by name; of each
transformers makes a checkpoint in float32 with random weights, biases and norms included, and both compute
the log-probabilities of one prompt. Prints one JSON object: the largest difference in nats by name, or
how it ended.
"""

from __future__ import annotations

import contextlib
import json
import sys
import tempfile
from pathlib import Path
from typing import Any

import torch

PROMPT = [(7 * place + 3) % 500 + 2 for place in range(40)]


def main() -> None:
    """Compare each config of the file."""
    seen = {}
    for name, config in json.loads(Path(sys.argv[1]).read_text())["configs"].items():
        with tempfile.TemporaryDirectory() as folder, contextlib.redirect_stdout(sys.stderr):
            try:
                wanted = made(config, folder)
                got = served(folder)
                off = max(abs(a - b) for a, b in zip(got, wanted, strict=True))
                seen[name] = f"off by {off:.2g} nats"
            except Exception as error:
                seen[name] = f"{type(error).__name__}: {str(error).splitlines()[0]}"
    print(json.dumps(seen))


def made(config: dict[str, Any], folder: str) -> list[float]:
    """Save a checkpoint, and say what transformers gives each token of the prompt, from the second on."""
    import transformers

    name = config["architectures"][0]
    torch.manual_seed(0)
    stated = getattr(transformers, name.replace("ForCausalLM", "Config"))(**config)
    stated._attn_implementation = "eager"
    model = getattr(transformers, name)(stated).float().eval()
    with torch.no_grad():
        for key, tensor in [*model.named_parameters(), *model.named_buffers()]:
            if key.endswith("bias"):
                tensor.copy_(torch.randn_like(tensor) / 2)
            elif tensor.is_floating_point() and tensor.dim() > 1:
                tensor.copy_(torch.randn_like(tensor) / tensor.shape[-1] ** 0.5)
        chances = model(torch.tensor([PROMPT])).logits[0].log_softmax(-1)
    model.save_pretrained(folder)
    path = Path(folder) / "config.json"
    path.write_text(json.dumps({**json.loads(path.read_text()), **config}))
    return [chances[place, token].item() for place, token in enumerate(PROMPT[1:])]


def served(folder: str) -> list[float]:
    """What vLLM gives each token of the prompt, from the second on."""
    from vllm import LLM, SamplingParams

    engine = LLM(
        folder, dtype="float32", skip_tokenizer_init=True, enforce_eager=True, max_model_len=256
    )
    asked = SamplingParams(max_tokens=1, prompt_logprobs=0, detokenize=False)
    (done,) = engine.generate([{"prompt_token_ids": PROMPT}], asked)
    return [
        row[token].logprob for row, token in zip(done.prompt_logprobs[1:], PROMPT[1:], strict=True)
    ]


if __name__ == "__main__":
    main()
