"""Decode speed and cache size of MLA on CPU: a patched engine beside a stock one without MLA.

    python benchmarks/mla_cpu_engine.py STOCK_PYTHON PATCHED_PYTHON [--json out.json]

Both interpreters start the same worker (this file), with one engine that stays up. The stock
engine refuses MLA on CPU, so it runs with VLLM_MLA_DISABLE=1, which caches full heads. The two
take turns, one measurement each, so that a slow minute of the machine hits both. The model has
DeepSeek-V2-Lite's attention (16 heads, 512 + 64 latents) with random weights, few layers and a
small MLP; what is timed is a whole engine step.
"""

from __future__ import annotations

import argparse
import json
import statistics
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import closing, contextmanager
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parents[1]))

from benchmarks.child import Child, say
from dspatch.bench.rounds import turns

MODEL: dict[str, Any] = {
    "architectures": ["DeepseekV2ForCausalLM"],
    "model_type": "deepseek_v2",
    "vocab_size": 1024,
    "hidden_size": 2048,
    "intermediate_size": 2048,
    "moe_intermediate_size": 1408,
    "moe_layer_freq": 1,
    "first_k_dense_replace": 4,  # every layer; the experts below are never made
    "num_hidden_layers": 4,
    "num_attention_heads": 16,
    "num_key_value_heads": 16,
    "n_routed_experts": 8,
    "n_shared_experts": 1,
    "num_experts_per_tok": 2,
    "q_lora_rank": None,
    "kv_lora_rank": 512,
    "qk_nope_head_dim": 128,
    "qk_rope_head_dim": 64,
    "v_head_dim": 128,
    "hidden_act": "silu",
    "rms_norm_eps": 1e-6,
    "rope_theta": 10000,
    "rope_scaling": {
        "type": "yarn",
        "factor": 40,
        "original_max_position_embeddings": 4096,
        "mscale": 0.707,
        "mscale_all_dim": 0.707,
        "beta_fast": 32,
        "beta_slow": 1,
    },
    "max_position_embeddings": 163840,
    "tie_word_embeddings": False,
    "attention_bias": False,
    "bos_token_id": 0,
    "eos_token_id": 1,
}
WARM_STEPS = 3


@dataclass(frozen=True, kw_only=True)
class Row:
    """One engine at one context and batch; milliseconds a step over all repeats."""

    engine: str
    context: int
    batch: int
    step_ms: float
    step_ms_min: float
    step_ms_max: float
    tokens_per_s: float
    cache_bytes_per_token: int


def main() -> None:
    args = arguments()
    if args.worker:
        work(Path(args.worker), args)
        return
    with tempfile.TemporaryDirectory() as folder:
        Path(folder, "config.json").write_text(json.dumps(MODEL))
        with (
            engine(args.stock, folder, args, {"VLLM_MLA_DISABLE": "1"}) as stock,
            engine(args.patched, folder, args, {}) as patched,
        ):
            rows = measure({"stock, MLA disabled": stock, "patched": patched}, args)
    report(rows, args)


def arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("stock", nargs="?", help="python with the stock engine")
    parser.add_argument("patched", nargs="?", help="python with the patched engine")
    parser.add_argument("--context", type=int, nargs="+", default=[1024, 8192])
    parser.add_argument("--batch", type=int, nargs="+", default=[1, 4])
    parser.add_argument("--repeats", type=int, default=5)
    parser.add_argument("--steps", type=int, default=16, help="decode steps a repeat")
    parser.add_argument("--dtype", default="bfloat16")
    parser.add_argument("--json", type=Path)
    parser.add_argument("--worker", help=argparse.SUPPRESS)
    args = parser.parse_args()
    if not args.worker and not (args.stock and args.patched):
        parser.error("two interpreters are needed, the stock and the patched one")
    return args


# The parent: two workers, one question at a time.


@dataclass(frozen=True, kw_only=True)
class Worker:
    """A running engine, and what it caches of a token."""

    child: Child
    cache_bytes_per_token: int

    def ask(self, **question: int) -> list[float]:
        """Milliseconds of each step."""
        return [float(x) for x in answered(self.child.ask(**question))["step_ms"]]


def answered(answer: dict[str, Any] | None) -> dict[str, Any]:
    """The answer, of which there must be one."""
    if answer is None:
        sys.exit("a worker ended without an answer; its messages are above")
    return answer


@contextmanager
def engine(
    python: str, folder: str, args: argparse.Namespace, env: dict[str, str]
) -> Iterator[Worker]:
    command = [python, __file__, "--worker", folder, "--dtype", args.dtype]
    for name in ("context", "batch"):
        command += [f"--{name}", *map(str, getattr(args, name))]
    quiet = {
        "VLLM_LOGGING_LEVEL": "ERROR",
        "VLLM_ENABLE_V1_MULTIPROCESSING": "0",
        "VLLM_CPU_KVCACHE_SPACE": "3",
        "HF_HUB_OFFLINE": "1",
        "OMP_WAIT_POLICY": "passive",  # or the engine whose turn it is not would spin
    }
    with closing(Child(python, command, {**quiet, **env})) as child:
        size = int(answered(child.read())["cache_bytes_per_token"])
        yield Worker(child=child, cache_bytes_per_token=size)


def measure(engines: dict[str, Worker], args: argparse.Namespace) -> list[Row]:
    rows = []
    for context in args.context:
        for batch in args.batch:
            steps: dict[str, list[float]] = {name: [] for name in engines}
            for each in engines.values():
                each.ask(context=context, batch=batch)  # prefill once, decode in turns
            for name in turns(args.repeats, list(engines)):
                steps[name].append(statistics.median(engines[name].ask(steps=args.steps)))
            rows += [row(name, engines[name], context, batch, steps[name]) for name in engines]
            print(*rows[-len(engines) :], sep="\n", file=sys.stderr, flush=True)
    return rows


def row(name: str, worker: Worker, context: int, batch: int, medians: list[float]) -> Row:
    middle = statistics.median(medians)
    return Row(
        engine=name,
        context=context,
        batch=batch,
        step_ms=middle,
        step_ms_min=min(medians),
        step_ms_max=max(medians),
        tokens_per_s=1000 * batch / middle,
        cache_bytes_per_token=worker.cache_bytes_per_token,
    )


def report(rows: list[Row], args: argparse.Namespace) -> None:
    print(f"{args.dtype}, {args.repeats} repeats of {args.steps} steps, medians; spread is min-max")
    print(f"{'engine':<20}{'context':>8}{'batch':>6}{'tokens/s':>10}{'ms/step (spread)':>26}"
          f"{'cache bytes/token':>19}{'speed-up':>10}")  # fmt: skip
    base = {(r.context, r.batch): r for r in rows if r.engine != "patched"}
    for r in rows:
        spread = f"{r.step_ms:.2f} ({r.step_ms_min:.2f}-{r.step_ms_max:.2f})"
        ratio = r.tokens_per_s / base[r.context, r.batch].tokens_per_s
        print(f"{r.engine:<20}{r.context:>8}{r.batch:>6}{r.tokens_per_s:>10.1f}{spread:>26}"
              f"{r.cache_bytes_per_token:>19}{ratio:>10.2f}")  # fmt: skip
    if args.json:
        args.json.write_text(json.dumps([asdict(r) for r in rows], indent=2) + "\n")


# The worker: one engine, asked through stdin.


def work(folder: Path, args: argparse.Namespace) -> None:
    from vllm import LLM

    longest, most = max(args.context), max(args.batch)
    llm = LLM(
        str(folder),
        load_format="dummy",
        skip_tokenizer_init=True,
        dtype=args.dtype,
        enforce_eager=True,
        max_model_len=longest + 1024,
        max_num_seqs=most,
        enable_prefix_caching=False,
        seed=0,
    )
    specs = llm.collective_rpc("get_kv_cache_spec")[0].values()
    size = sum(spec.page_size_bytes // spec.block_size for spec in specs)
    say({"cache_bytes_per_token": size})
    names: list[str] = []
    for line in sys.stdin:
        question = json.loads(line)
        if "context" in question:
            llm.llm_engine.abort_request(names)
            names = prefill(llm.llm_engine, **question)
        taken = decode(llm.llm_engine, question.get("steps", 0))
        say({"step_ms": taken})


def prefill(engine: Any, context: int, batch: int) -> list[str]:
    """Requests with `batch` distinct prompts, run until each has its first token."""
    from vllm import SamplingParams

    params = SamplingParams(temperature=0, max_tokens=1000, ignore_eos=True, detokenize=False)
    names = [f"{time.monotonic_ns()}-{n}" for n in range(batch)]
    for n, name in enumerate(names):
        prompt = [2 + (n + 7 * i) % 1000 for i in range(context)]
        engine.add_request(name, {"prompt_token_ids": prompt}, params)
    started: set[str] = set()
    while len(started) < batch:
        started |= {out.request_id for out in engine.step() if out.outputs[0].token_ids}
    return names


def decode(engine: Any, steps: int) -> list[float]:
    """Milliseconds of each of so many decode steps, after a few that are not counted."""
    taken = []
    for _ in range(steps + WARM_STEPS if steps else 0):
        start = time.perf_counter()
        engine.step()
        taken.append(1000 * (time.perf_counter() - start))
    return taken[WARM_STEPS:]


if __name__ == "__main__":
    main()
