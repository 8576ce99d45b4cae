"""Run prompts on so many processes; keep what was said, and the weights that each process holds."""

from __future__ import annotations

import json
from collections.abc import Mapping
from importlib import import_module
from pathlib import Path
from typing import Any


def keep_weights(worker: Any, folder: str) -> int:
    """In a worker: write its parameters to `folder/RANK.safetensors`; how many there are."""
    named = dict(worker.model_runner.model.named_parameters())
    held = {name: each.detach().contiguous().clone() for name, each in named.items()}
    import_module("safetensors.torch").save_file(held, f"{folder}/{worker.rank}.safetensors")
    return len(held)


def run(asked: Mapping[str, Any]) -> dict[str, Any]:
    """Greedy tokens with the log-probabilities of the likeliest, and of each token of the prompts."""
    vllm, folder = import_module("vllm"), Path(asked["folder"])
    folder.mkdir(parents=True, exist_ok=True)
    engine = vllm.LLM(
        model=asked["checkpoint"], tensor_parallel_size=asked["degree"], dtype=asked["dtype"],
        enforce_eager=True, max_model_len=512, max_num_seqs=4, seed=0, skip_tokenizer_init=True,
        max_logprobs=20, enable_prefix_caching=False, **_share_of_gpu(),
    )  # fmt: skip
    engine.collective_rpc(keep_weights, args=(str(folder.resolve()),))
    prompts = [{"prompt_token_ids": ids} for ids in asked["prompts"].values()]
    wanted = vllm.SamplingParams(
        max_tokens=asked["steps"], temperature=0, logprobs=20, prompt_logprobs=1, ignore_eos=True,
        detokenize=False,
    )  # fmt: skip
    done = engine.generate(prompts, wanted, use_tqdm=False)
    (folder / "said.json").write_text(json.dumps([_said(each) for each in done]))
    torch = import_module("torch")
    device = "cuda" if torch.cuda.is_available() else "cpu"
    return {"vllm": vllm.__version__, "torch": torch.__version__, "device": device}


def _share_of_gpu() -> dict[str, float]:
    """On GPUs, a tenth of each: small models need no more, and one run starts after the other."""
    return {"gpu_memory_utilization": 0.1} if import_module("torch").cuda.is_available() else {}


def _said(done: Any) -> dict[str, Any]:
    """The tokens, and the log-probabilities at each place: of the prompt first, then of each step."""
    places = [*(done.prompt_logprobs or [])[1:], *done.outputs[0].logprobs]
    told = [{str(token): one.logprob for token, one in place.items()} for place in places]
    return {"tokens": list(done.outputs[0].token_ids), "logprobs": told}
