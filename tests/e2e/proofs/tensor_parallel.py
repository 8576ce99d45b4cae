"""Two processes beside one: the same log-probabilities, and weights that are put together again bit by bit.

    PYTHON tests/e2e/proofs/tensor_parallel.py run CHECKPOINT 1 ONE
    PYTHON tests/e2e/proofs/tensor_parallel.py run CHECKPOINT 2 TWO
    PYTHON tests/e2e/proofs/tensor_parallel.py compare ONE TWO

PYTHON is that of an environment with vLLM; CHECKPOINT one of conformance's small models in float32.
`compare` fails (1) where a weight is no joining of its shards, or a log-probability is off by more than LIMIT;
it exchanges the shards of each weight, too, and fails where that is not seen.
"""

from __future__ import annotations

import itertools
import json
import os
import random
import sys
from importlib import import_module
from pathlib import Path
from typing import Any

LIMIT = 1e-3  # nats, as decode.paged in dspatch/conformance/tolerance.toml
PACKED = 16  # rows that the CPU's expert weights interleave
LENGTHS = (5, 48, 77, 300)
SETTINGS = {
    "HF_HUB_OFFLINE": "1", "VLLM_NO_USAGE_STATS": "1", "VLLM_LOGGING_LEVEL": "ERROR",
    "VLLM_CPU_KVCACHE_SPACE": "1", "VLLM_CPU_OMP_THREADS_BIND": "nobind", "OMP_NUM_THREADS": "1",
    "OMP_WAIT_POLICY": "PASSIVE", "VLLM_HOST_IP": "127.0.0.1", "GLOO_SOCKET_IFNAME": "lo",
    "VLLM_ALLOW_INSECURE_SERIALIZATION": "1",  # so that a function of ours can run in the workers
}  # fmt: skip


def keep_weights(worker: Any, folder: str) -> int:
    """In a worker: write its parameters to `folder/RANK.safetensors`; how many there are."""
    named = dict(worker.model_runner.model.named_parameters())
    held = {name: each.detach().contiguous().clone() for name, each in named.items()}
    import_module("safetensors.torch").save_file(held, f"{folder}/{worker.rank}.safetensors")
    return len(held)


def run(checkpoint: str, degree: int, folder: Path) -> None:
    """Generate with so many processes; write tokens, log-probabilities and each process's weights."""
    os.environ.update(SETTINGS)
    folder.mkdir(parents=True, exist_ok=True)
    vllm = import_module("vllm")
    engine = vllm.LLM(
        model=checkpoint, tensor_parallel_size=degree, dtype="float32", enforce_eager=True,
        max_model_len=512, max_num_seqs=4, seed=0, skip_tokenizer_init=True, max_logprobs=20,
        enable_prefix_caching=False,
    )  # fmt: skip
    engine.collective_rpc(keep_weights, args=(str(folder.resolve()),))
    draw = random.Random(0)
    asked = [{"prompt_token_ids": [draw.randrange(5, 400) for _ in range(n)]} for n in LENGTHS]
    wanted = vllm.SamplingParams(
        max_tokens=12, temperature=0, logprobs=20, prompt_logprobs=1, ignore_eos=True,
        detokenize=False,
    )  # fmt: skip
    done = engine.generate(asked, wanted)
    (folder / "said.json").write_text(json.dumps([_said(each) for each in done]))


def _said(done: Any) -> dict[str, Any]:
    places = [*(done.prompt_logprobs or [])[1:], *done.outputs[0].logprobs]
    told = [{str(token): one.logprob for token, one in place.items()} for place in places]
    return {"tokens": list(done.outputs[0].token_ids), "logprobs": told}


def compare(one: Path, two: Path) -> int:
    """Print what was held against what; 1 where it does not hold."""
    before, after = (json.loads((folder / "said.json").read_text()) for folder in (one, two))
    off = [
        abs(right[token] - got[token])
        for a, b in zip(before, after, strict=True)
        for right, got in zip(a["logprobs"], b["logprobs"], strict=True)
        for token in right.keys() & got.keys()
    ]
    equal = sum(a["tokens"] == b["tokens"] for a, b in zip(before, after, strict=True))
    load = import_module("safetensors.torch").load_file
    every = load(one / "0.safetensors")
    whole = {name: each for name, each in every.items() if each.numel()}
    shards = [load(path) for path in sorted(two.glob("*.safetensors"))]
    how = {name: joined([each[name] for each in shards], whole[name]) for name in whole}
    split = [name for name, told in how.items() if told.startswith("split")]
    blind = [
        name
        for name in split
        if joined([each[name] for each in reversed(shards)], whole[name]) != "not"
    ]
    lost = [name for name, told in how.items() if told == "not"]
    print(f"texts: {equal} of {len(before)} equal")
    print(f"log-probabilities: worst of {len(off)} off by {max(off):.2g} nats (limit {LIMIT:g})")
    print(
        f"weights: {len(whole)}, of which {len(split)} split in {len(shards)}; not joined: {lost}"
    )
    print(f"exchanged shards: seen for {len(split) - len(blind)} of {len(split)}; not for {blind}")
    return int(bool(lost or blind) or not split or max(off) > LIMIT or equal < len(before))


def joined(shards: list[Any], whole: Any) -> str:
    """How shards make up a weight, bit by bit: `whole`, `split DIM PARTS`, or `not`.

    Parts are those of a merged weight, each of which is split by itself.
    """
    torch = import_module("torch")
    if all(torch.equal(each, whole) for each in shards):
        return "whole"
    for dim, parts in itertools.product(range(whole.dim()), (1, 2)):
        if any(each.dim() <= dim or each.shape[dim] % parts for each in shards):
            continue
        cut = [each.chunk(parts, dim) for each in shards]
        order = [each[part] for part in range(parts) for each in cut]
        if torch.equal(torch.cat(order, dim), whole):
            return f"split {dim} {parts}"
    if whole.dim() == 3 and all(each.dim() == 3 for each in shards):
        return _joined_packed(shards, whole)
    return "not"


def _joined_packed(shards: list[Any], whole: Any) -> str:
    """As `joined`, for experts whose columns are split after PACKED rows were interleaved."""
    torch = import_module("torch")
    if any(each.shape[1] != whole.shape[1] or each.shape[1] % PACKED for each in shards):
        return "not"
    rows = [each.reshape(len(each), each.shape[1] // PACKED, -1, PACKED) for each in shards]
    same = torch.equal(torch.cat(rows, 2).reshape(whole.shape), whole)
    return f"split 2 in {PACKED}" if same else "not"


if __name__ == "__main__":
    if sys.argv[1] == "run":
        run(sys.argv[2], int(sys.argv[3]), Path(sys.argv[4]))
    else:
        sys.exit(compare(Path(sys.argv[2]), Path(sys.argv[3])))
