"""Decode of a whole vLLM engine on a GPU, upstream's attention beside DSPATCH_MLA, one step at a time.

    python benchmarks/mla_engine.py --model FOLDER --small FOLDER --out DIR \\
        --engine stock=PYTHONPATH --engine patched=PYTHONPATH:DSPATCH_MLA

An engine is a PYTHONPATH with vLLM in it and, after a colon, the attention backend it is told to take.
All are started first, each with each --model; then the engines of a model take turns shape by shape, so
that they share the clock and the card, which has to hold them all. FOLDER of --model has a config.json,
its weights are dummies. --small is a checkpoint with real numbers: each engine continues its prompts
greedily and says the log-probabilities, for `--judge` to hold against transformers in float32 (where
there is one; no GPU is needed):

    python benchmarks/mla_engine.py --judge DIR --small FOLDER
"""

from __future__ import annotations

import argparse
import json
import statistics
import sys
import time
from itertools import pairwise
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parents[1]))

from benchmarks.child import Child, latents, say, tell, where, words
from dspatch.bench.rounds import turns as in_turns

# Prompts of a number begin alike: the shapes after (64, 4096) with no longer context find them cached.
SHAPES = (
    (64, 4096), (16, 4096), (1, 4096), (64, 1024), (16, 1024), (1, 1024), (16, 16384), (1, 16384),
    (1, 65536),
)  # fmt: skip
# Tokens that an engine has room for: the largest shape and what it generates.
CACHED = 64 * (4096 + 128)
STEPS = 48  # timed steps of a turn
TOKENS = 32  # greedy tokens of the small model
PROMPTS = (5, 48, 77, 300, 1100)


def main() -> None:
    """Run engines, or judge what they said."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawTextHelpFormatter
    )
    parser.add_argument("--engine", action="append", default=[], metavar="NAME=PATH:BACKEND")
    parser.add_argument("--model", action="append", default=[], metavar="FOLDER")
    parser.add_argument("--small")
    parser.add_argument("--out")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument(
        "--budget", type=float, default=1e9, help="seconds after which no shape is begun"
    )
    parser.add_argument("--child", help=argparse.SUPPRESS)
    parser.add_argument("--judge", metavar="DIR")
    given = parser.parse_args()
    if given.child is not None:
        child(given)
    elif given.judge:
        judge(Path(given.judge), given.small)
    elif not (given.out and given.engine and (given.model or given.small)):
        parser.error("give --out, an --engine and a --model or --small, or --judge")
    elif len({Path(folder).name for folder in given.model}) < len(given.model):
        parser.error("results and logs are named by the models' folders: give each another name")
    else:
        run(given)


def engine(spec: str, given: argparse.Namespace, mode: str, folder: str) -> Child:
    """Start an engine: NAME=PATH:BACKEND, to time or to say something."""
    name, _, rest = spec.partition("=")
    path, _, backend = rest.partition(":")
    title = f"{name}-{Path(folder).name}-{mode}"
    extra = {
        "PYTHONPATH": path.replace(",", ":"),
        "VLLM_ENABLE_V1_MULTIPROCESSING": "0",
        "VLLM_USE_FLASHINFER_SAMPLER": "0",
        "VLLM_CACHE_ROOT": f"/tmp/vllm-{title}",
        "HF_HUB_OFFLINE": "1",
    }
    command = [sys.executable, __file__, "--child", f"{mode}:{backend}", "--model", folder]
    return Child(name, command, extra, Path(given.out) / f"{title}.log")


def run(given: argparse.Namespace) -> None:
    """Start all engines, let them take turns, and write what came of it after each shape."""
    begun = time.monotonic()
    result: dict[str, Any] = {
        "argv": sys.argv[1:],
        "steps": STEPS,
        "engines": {},
        "small": {},
        "times": [],
    }
    kept = Path(given.out) / "engine.json"
    models = [(m, spec) for m in given.model for spec in given.engine]
    timed = [(Path(m).name, engine(spec, given, "time", m)) for m, spec in models]
    spoken = [engine(spec, given, "say", given.small) for spec in given.engine if given.small]
    for each in spoken:
        result["small"][each.name] = each.read()
        kept.write_text(json.dumps(result))
        tell(begun, f"{each.name} said {str(result['small'][each.name])[:150]}")
    for model, each in timed:
        result["engines"][f"{each.name} {model}"] = up = each.read()
        tell(begun, f"{each.name} is up with {model}: {up}")
    for batch, context in SHAPES:
        for model in [Path(folder).name for folder in given.model]:
            if time.monotonic() - begun > given.budget:
                tell(begun, f"no time for {model} at {batch} x {context}")
                continue
            row = turns([e for m, e in timed if m == model], batch, context, given.rounds)
            result["times"].append({"model": model, **row})
            kept.write_text(json.dumps(result))
            tell(begun, str({key: middles(value) for key, value in row.items()}))


def turns(engines: list[Child], batch: int, context: int, rounds: int) -> dict[str, Any]:
    """Milliseconds of each step of each engine, one list a round; the engines take turns."""
    row: dict[str, Any] = {"batch": batch, "context": context}
    for each in engines:
        each.ask(batch=batch, context=context, steps=8)
    for each in in_turns(rounds, engines):
        answer = each.ask(batch=batch, context=context, steps=STEPS)
        row.setdefault(each.name, []).append(answer and answer["ms"])
    return row


def middles(value: Any) -> Any:
    """The median of each round, where the value is one of rounds."""
    if not isinstance(value, list):
        return value
    return [round(statistics.median(each), 3) if each else None for each in value]


def child(given: argparse.Namespace) -> None:
    """An engine: says its greedy continuations, or times steps when asked."""
    from vllm import LLM, SamplingParams

    mode, _, backend = given.child.partition(":")
    options: dict[str, Any] = {"attention_backend": backend} if backend else {}
    (folder,) = given.model
    if mode == "time":
        options |= {
            "load_format": "dummy", "kv_cache_memory_bytes": latents(folder, CACHED),
            "max_model_len": 66560, "max_num_seqs": 64, "gpu_memory_utilization": 0.03,
            "enable_prefix_caching": True,
        }  # fmt: skip
    else:
        options |= {
            "kv_cache_memory_bytes": 10**9, "max_model_len": 2048, "gpu_memory_utilization": 0.03,
            "max_num_seqs": 16, "enable_prefix_caching": False, "enforce_eager": True,
        }  # fmt: skip
    llm = LLM(
        model=folder, dtype="bfloat16", seed=0, skip_tokenizer_init=True, trust_remote_code=False,
        **options,
    )  # fmt: skip
    if mode == "say":
        limits = SamplingParams(
            max_tokens=TOKENS, temperature=0, logprobs=5, ignore_eos=True, detokenize=False
        )
        vocabulary = llm.model_config.hf_config.vocab_size
        made = llm.generate(
            [{"prompt_token_ids": words(n, n, vocabulary)} for n in PROMPTS], limits
        )
        say([spoken(each.outputs[0]) for each in made])
        return
    say({"backend": backend or "automatic", **where()})
    for line in sys.stdin:
        asked = json.loads(line)
        say({"ms": steps_of(llm, **asked)})


def spoken(output: Any) -> list[dict[str, Any]]:
    """The tokens of a continuation, each with its log-probability in nats."""
    pairs = zip(output.token_ids, output.logprobs, strict=True)
    return [{"token": token, "logprob": known[token].logprob} for token, known in pairs]


def steps_of(llm: Any, batch: int, context: int, steps: int) -> list[float]:
    """Milliseconds between decode steps of a batch; the prompts are in the prefix cache after the first time."""
    from vllm import SamplingParams

    engine = llm.llm_engine
    vocabulary = llm.model_config.hf_config.vocab_size
    limits = SamplingParams(max_tokens=steps + 4, temperature=0, ignore_eos=True, detokenize=False)
    for number in range(batch):
        prompt = {"prompt_token_ids": words(context, number, vocabulary)}
        engine.add_request(f"{time.monotonic_ns()}-{number}", prompt, limits)
    marks: list[float] = []
    while engine.has_unfinished_requests():
        done = engine.step()
        # All requests decode: each brings one token, and nothing is computed of prompts any more.
        if len(done) == batch and all(len(o.outputs[0].token_ids) >= 2 for o in done):
            marks.append(time.perf_counter())
    return [1e3 * (b - a) for a, b in pairwise(marks)][1:-1]


def forced(model: Any, ids: Any, prompt: int) -> Any:
    """Log-probabilities of transformers over the tokens that follow a prompt: [tokens, vocabulary]."""
    import torch

    with torch.no_grad():
        logits = model(ids).logits[0, prompt - 1 : -1]
    return logits.double().log_softmax(-1)


def judge(folder: Path, small: str) -> None:
    """What each engine said, against transformers in float32 on the same tokens, and the times in a table.

    Beside it what transformers' own bfloat16 is off by, and a float32 model whose attention is 5 % too
    sharp: an engine between the two is sound, and the measure would see one that is not.
    """
    import torch
    from transformers import AutoModelForCausalLM

    kept = json.loads((folder / "engine.json").read_text())
    exact, rounded, sharp = (
        AutoModelForCausalLM.from_pretrained(small, dtype=torch.bfloat16).eval() for _ in range(3)
    )
    exact.float(), sharp.float()
    for layer in sharp.model.layers:
        layer.self_attn.scaling *= 1.05
    for name, answers in kept["small"].items():
        told: dict[str, list[float]] = {name: [], "bfloat16": [], "5 % too sharp": []}
        best = 0
        for count, tokens in zip(PROMPTS, answers or [], strict=False):
            own = [one["token"] for one in tokens]
            ids = torch.tensor([words(count, count, exact.config.vocab_size) + own])
            right, low, wrong = (forced(each, ids, count) for each in (exact, rounded, sharp))
            best += int((right.argmax(-1) == torch.tensor(own)).sum())
            at = (range(len(own)), own)
            said = torch.tensor([one["logprob"] for one in tokens]).double()
            for key, got in zip(told, (said, low[at], wrong[at]), strict=True):
                told[key] += (got - right[at]).abs().tolist()
        for key, off in told.items():
            if off:
                print(f"{name} | {key}: mean {statistics.fmean(off):.2e}, max {max(off):.2e} nats")
        print(f"{name}: {best} of {len(told[name])} tokens are the float32 model's best")
    print("\n".join(table(kept)))


def table(kept: dict[str, Any]) -> list[str]:
    """Milliseconds a step of each engine and its ratio to the first's, as Markdown; nothing of none."""
    fixed = ("model", "batch", "context")
    names = list(dict.fromkeys(k for row in kept["times"] for k in row if k not in fixed))
    if not names:
        return []
    heads = [f"{n} ms (rounds)" for n in names] + [f"{n} / {names[0]}" for n in names[1:]]
    lines = [
        f"| model | batch | context | {' | '.join(heads)} |",
        "|---" * (len(heads) + len(fixed)) + "|",
    ]
    for row in sorted(kept["times"], key=lambda row: [row[key] for key in fixed]):
        rounds = {n: [statistics.median(each) for each in row.get(n, []) if each] for n in names}
        middle = {n: statistics.median(rounds[n]) for n in names if rounds[n]}
        cells = [
            f"{middle[n]:.3f} ({min(rounds[n]):.3f}–{max(rounds[n]):.3f})" if n in middle else "—"
            for n in names
        ]
        both = [names[0] in middle and n in middle for n in names[1:]]
        cells += [
            f"{middle[n] / middle[names[0]]:.2f}" if told else "—"
            for n, told in zip(names[1:], both, strict=True)
        ]
        lines.append(f"| {' | '.join(str(row[key]) for key in fixed)} | {' | '.join(cells)} |")
    return lines


if __name__ == "__main__":
    main()
