"""Run prompts on so many processes; keep what was said, and the weights that each process holds."""

from __future__ import annotations

import json
import time
from collections.abc import Iterable, Mapping, Sequence
from importlib import import_module
from pathlib import Path
from typing import Any

from .joining import SAID, SPOILED, read

MOST = 20  # of the likeliest tokens


def keep_weights(worker: Any, folder: str) -> int:
    """In a worker: write its parameters to `folder/RANK.safetensors`; how many there are."""
    named = dict(worker.model_runner.model.named_parameters())
    held = {name: each.detach().contiguous().clone() for name, each in named.items()}
    import_module("safetensors.torch").save_file(held, f"{folder}/{worker.rank}.safetensors")
    return len(held)


def forget_sums(worker: Any) -> int:
    """In a worker: attention's output is no longer summed over the processes; in how many layers."""
    named = worker.model_runner.model.named_modules()
    sums = [each for name, each in named if name.endswith("self_attn.o_proj")]
    for each in sums:
        each.reduce_results = False
    return len(sums)


def kinds(worker: Any) -> dict[str, Any]:
    """In a worker: what computes attention there, and the heads that each layer has."""
    parts = [*worker.model_runner.model.modules()]
    attention = {type(each.impl).__name__ for each in parts if hasattr(each, "impl")}
    heads = {each.num_local_heads for each in parts if hasattr(each, "num_local_heads")}
    return {"attention": sorted(attention), "heads": sorted(heads), "sums": sums()}


def sums() -> list[str]:
    """In a worker: what may add up over the processes there; none where only PyTorch does."""
    group = import_module("vllm.distributed.parallel_state").get_tp_group()
    ways = vars(group.device_communicator or group).values()
    return sorted(
        {type(each).__name__ for each in ways if getattr(each, "disabled", True) is False}
    )


def run(asked: Mapping[str, Any]) -> dict[str, Any]:
    """Greedy tokens with the log-probabilities of the likeliest, and of each token of the prompts.

    Of several processes a second time with a sum over them left out, which must show. Where `reads` names another
    run's folder, what this one makes of the texts there, read as prompts.
    """
    begun, folder, degree = time.monotonic(), Path(asked["folder"]), asked["degree"]
    folder.mkdir(parents=True, exist_ok=True)
    import_module("vllm_worker.threads").leave_alone(degree)
    vllm, memory = import_module("vllm"), import_module("vllm_worker.memory")
    engine = vllm.LLM(
        model=asked["checkpoint"], tensor_parallel_size=degree, dtype=asked["dtype"],
        enforce_eager=True, max_model_len=512, max_num_seqs=4, seed=0, skip_tokenizer_init=True,
        max_logprobs=MOST, enable_prefix_caching=False, **memory.arguments(),
    )  # fmt: skip
    started = time.monotonic()
    engine.collective_rpc(keep_weights, args=(str(folder.resolve()),))
    facts = engine.collective_rpc(kinds)[0]
    _keep_said(vllm, engine, asked, folder / SAID)
    for name in (SAID, SPOILED):
        if "reads" in asked and (texts := Path(asked["reads"]) / name).is_file():
            _keep_read(vllm, engine, asked, json.loads(texts.read_text()), folder / read(name))
    if degree > 1 and engine.collective_rpc(forget_sums)[0]:
        _keep_said(vllm, engine, asked, folder / SPOILED)
    torch = import_module("torch")
    device = "cuda" if torch.cuda.is_available() else "cpu"
    seconds = {"start": started - begun, "answer": time.monotonic() - started}
    facts |= {"seconds": {name: round(value, 1) for name, value in seconds.items()}}
    return {"vllm": vllm.__version__, "torch": torch.__version__, "device": device, **facts}


def _keep_said(vllm: Any, engine: Any, asked: Mapping[str, Any], target: Path) -> None:
    wanted = vllm.SamplingParams(
        max_tokens=asked["steps"], temperature=0, logprobs=MOST, prompt_logprobs=1, ignore_eos=True,
        detokenize=False,
    )  # fmt: skip
    done = _answers(engine, asked["prompts"].values(), wanted)
    _keep(target, [(list(one.outputs[0].token_ids), one.outputs[0].logprobs, one) for one in done])


def _keep_read(
    vllm: Any,
    engine: Any,
    asked: Mapping[str, Any],
    texts: Sequence[Mapping[str, Any]],
    target: Path,
) -> None:
    wanted = vllm.SamplingParams(
        max_tokens=1, temperature=0, prompt_logprobs=MOST, ignore_eos=True, detokenize=False
    )
    prompts = [
        [*ids, *text["tokens"]] for ids, text in zip(asked["prompts"].values(), texts, strict=True)
    ]
    done = _answers(engine, prompts, wanted)
    _keep(target, [(text["tokens"], (), one) for text, one in zip(texts, done, strict=True)])


def _answers(engine: Any, prompts: Iterable[Sequence[int]], wanted: Any) -> Any:
    given = [{"prompt_token_ids": list(ids)} for ids in prompts]
    return engine.generate(given, wanted, use_tqdm=False)


def _keep(target: Path, texts: Iterable[tuple[list[int], Sequence[Any], Any]]) -> None:
    """The tokens, and the log-probabilities at each place: of the prompt first, then of each step."""
    kept = []
    for tokens, steps, done in texts:
        places = [*(done.prompt_logprobs or [])[1:], *steps]
        told = [{str(token): one.logprob for token, one in place.items()} for place in places]
        kept.append({"tokens": tokens, "logprobs": told})
    target.write_text(json.dumps(kept))
