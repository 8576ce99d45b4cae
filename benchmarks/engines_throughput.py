"""Tokens a second of whole engines on one checkpoint: TurboMind, LMDeploy's PyTorch engine, vLLM.

    python benchmarks/engines_throughput.py --make FOLDER --config config.json --layers 9
    python benchmarks/engines_throughput.py --model FOLDER --out DIR --rounds 5 \\
        --engine turbomind=turbomind:PYTHONPATH \\
        --engine pytorch=pytorch:PYTHONPATH \\
        --engine kernels=pytorch:PYTHONPATH:LMDEPLOY_MLA_DECODE=dspatch \\
        --engine vllm=vllm:PYTHONPATH
    python benchmarks/engines_throughput.py --show DIR

An engine is NAME=KIND:PYTHONPATH, with ',' for ':' in the path, and after it variables of its
environment. All are started first and warmed by one turn of every size; then they take turns, request
counts in the order given, so that they share the clock and the card, which has to hold them all. Each
is driven below its server, by requests that come at once: --words tokens in, --tokens out, greedy, no
end of text, no cache of prefixes. `transformers` is a KIND, too: it needs no GPU and shows here what the
others do there. A round counts the tokens from the first of the first answer on; `seconds` and `first`
in the file are of the whole round, and until the last request has its first token.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import statistics
import sys
import time
from collections.abc import AsyncIterator, Callable, Coroutine
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parents[1]))

from benchmarks.child import Child, latents, say, tell, where, words
from dspatch.bench.rounds import turns

ROOM = 64  # requests that an engine takes at once
LENGTH = 2048  # tokens of a request, prompt and answer, that an engine is set up for
BLOCK = 64  # tokens of a block of the cache
STEP = 8192  # tokens of prompts that an engine computes at once
# Imported from there: as a part of dspatch they would need packages that engines' environments lack.
WORKERS = Path(__file__).parents[1] / "dspatch" / "conformance" / "workers"

Ask = Callable[[int, list[int], int], AsyncIterator[int]]
# How to ask, what runs a round of it, and what ends the engine.
Engine = tuple[Ask, Callable[[Any], Any], Callable[[], None]]


def main() -> None:
    """Make a checkpoint, run engines, show a table; or be an engine."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawTextHelpFormatter
    )
    parser.add_argument("--engine", action="append", default=[], metavar="NAME=KIND:PATH:VAR=VALUE")
    parser.add_argument("--model", metavar="FOLDER")
    parser.add_argument("--out", metavar="DIR")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--batches", default="1,16,64")
    parser.add_argument("--words", type=int, default=512)
    parser.add_argument("--tokens", type=int, default=128)
    parser.add_argument("--make", metavar="FOLDER")
    parser.add_argument("--config", metavar="config.json")
    parser.add_argument("--layers", type=int, default=9)
    parser.add_argument("--show", metavar="DIR")
    parser.add_argument("--child", help=argparse.SUPPRESS)
    given = parser.parse_args()
    if given.child is not None:
        child(given)
    elif given.show:
        print("\n".join(table(json.loads((Path(given.show) / "throughput.json").read_text()))))
    elif given.make and given.config:
        make(Path(given.make), json.loads(Path(given.config).read_text()), given.layers)
    elif given.model and given.out and given.engine:
        run(given)
    else:
        parser.error("give --make and --config, or --model, --out and an --engine, or --show")


def run(given: argparse.Namespace) -> None:
    """Start all engines, warm them, let them take turns, and write what came of it after each size."""
    begun = time.monotonic()
    kept = Path(given.out) / "throughput.json"
    kept.parent.mkdir(parents=True, exist_ok=True)
    result: dict[str, Any] = {"argv": sys.argv[1:], "engines": {}, "rounds": {}}
    engines = [engine(spec, given) for spec in given.engine]
    sizes = [int(one) for one in given.batches.split(",")]
    for each in engines:
        result["engines"][each.name] = up = each.read()
        tell(begun, f"{each.name} is up: {up}")
    for each in engines:
        for size in sizes:
            each.ask(batch=size, words=given.words, tokens=16)
        tell(begun, f"{each.name} is warm")
    for size in sizes:
        for each in turns(given.rounds, engines):
            answer = each.ask(batch=size, words=given.words, tokens=given.tokens)
            result["rounds"].setdefault(each.name, {}).setdefault(str(size), []).append(answer)
        kept.write_text(json.dumps(result, indent=1))
        tell(begun, f"{size} at once")
    print("\n".join(table(result)), flush=True)
    for each in engines:
        each.close()


def engine(spec: str, given: argparse.Namespace) -> Child:
    """Start an engine: NAME=KIND:PATH and variables."""
    name, _, rest = spec.partition("=")
    kind, path, *more = rest.split(":")
    extra = {
        "HF_HUB_OFFLINE": "1",
        "LMDEPLOY_ENABLE_CHECK_ENV": "0",
        "PYTHONPATH": path.replace(",", ":"),
        "TOKENIZERS_PARALLELISM": "false",
        "TRITON_CACHE_DIR": f"/tmp/throughput-{name}/triton",
        "VLLM_CACHE_ROOT": f"/tmp/throughput-{name}",
        "VLLM_USE_FLASHINFER_SAMPLER": "0",
        **dict(one.split("=", 1) for one in more),
    }
    command = [sys.executable, __file__, "--child", kind, "--model", given.model]
    command += ["--batches", given.batches]
    return Child(name, command, extra, Path(given.out) / f"throughput-{name}.log")


def child(given: argparse.Namespace) -> None:
    """Be an engine: answer each line of JSON with what a round of requests took."""
    ask, on, end = KINDS[given.child](given)
    vocabulary = json.loads((Path(given.model) / "config.json").read_text())["vocab_size"]
    say({"kind": given.child, **where()})
    for line in sys.stdin:
        asked = json.loads(line)
        prompts = [words(asked["words"], n, vocabulary) for n in range(asked["batch"])]
        say(on(round_of(ask, prompts, asked["tokens"])))
    end()
    sys.stdout.flush()
    os._exit(0)  # threads of engines that would keep the process


async def round_of(ask: Ask, prompts: list[list[int]], tokens: int) -> dict[str, float]:
    """One round: all requests at once. Tokens a second after the first, and the seconds of it all."""
    begun = time.perf_counter()

    async def one(number: int, prompt: list[int]) -> tuple[int, float, float]:
        count, first = 0, 0.0
        async for new in ask(number, prompt, tokens):
            count += new
            first = first or (time.perf_counter() if count else 0.0)
        return count, first, time.perf_counter()

    done = await asyncio.gather(*[one(n, prompt) for n, prompt in enumerate(prompts)])
    count, end = sum(each[0] for each in done), max(each[2] for each in done)
    decoded = (count - len(prompts)) / (end - min(each[1] for each in done))
    first = max(each[1] for each in done) - begun
    return {"tokens": count, "seconds": end - begun, "first": first, "decoded": decoded}


def lmdeploy(given: argparse.Namespace, turbomind: bool) -> Engine:
    """LMDeploy, one of its two engines; the PyTorch engine's requests belong on its own loop."""
    from lmdeploy import GenerationConfig, PytorchEngineConfig, TurbomindEngineConfig, pipeline

    common: dict[str, Any] = {
        "session_len": LENGTH, "max_batch_size": ROOM, "enable_metrics": False,
        "dtype": "bfloat16", "max_prefill_token_num": STEP,
    }  # fmt: skip
    config = (
        TurbomindEngineConfig(**common, cache_max_entry_count=0.05)
        if turbomind
        else PytorchEngineConfig(
            **common,
            num_gpu_blocks=ROOM * LENGTH // BLOCK,
            cudagraph_capture_batch_sizes=[int(one) for one in given.batches.split(",")],
        )
    )
    pipe = pipeline(given.model, backend_config=config, log_level="ERROR")
    engine = pipe.async_engine.engine
    taken = type(engine).__module__
    assert ("turbomind" in taken) is turbomind, f"asked for another engine than {taken}"

    async def ask(number: int, prompt: list[int], tokens: int) -> AsyncIterator[int]:
        limits = GenerationConfig(max_new_tokens=tokens, top_k=1, ignore_eos=True)
        limits.stop_token_ids = None
        made = engine.create_instance().async_stream_infer(
            session_id=100 + number, input_ids=prompt, gen_config=limits, stream_output=True
        )
        async for output in made:
            yield len(output.token_ids)

    def on(work: Coroutine[Any, Any, Any]) -> Any:
        if turbomind:
            return asyncio.run(work)
        return asyncio.run_coroutine_threadsafe(work, pipe.internal_thread.loop).result()

    return ask, on, lambda: None


def vllm(given: argparse.Namespace) -> Engine:
    """vLLM as its server runs it, without HTTP and tokenizer; VLLM_BACKEND names a backend."""
    import torch
    from vllm import SamplingParams
    from vllm.engine.arg_utils import AsyncEngineArgs
    from vllm.sampling_params import RequestOutputKind
    from vllm.v1.engine.async_llm import AsyncLLM

    backend = os.environ.get("VLLM_BACKEND")
    more: dict[str, Any] = {"attention_backend": backend} if backend else {}
    if torch.cuda.is_available():
        cache = latents(given.model, ROOM * LENGTH)
        more |= {"kv_cache_memory_bytes": cache, "gpu_memory_utilization": 0.03}
    options = AsyncEngineArgs(
        model=given.model, dtype="bfloat16", seed=0, skip_tokenizer_init=True, max_model_len=LENGTH,
        max_num_seqs=ROOM, max_num_batched_tokens=STEP, enable_prefix_caching=False, **more,
    )  # fmt: skip
    loop = asyncio.new_event_loop()

    async def begin() -> Any:
        return AsyncLLM.from_engine_args(options)

    engine = loop.run_until_complete(begin())

    async def ask(number: int, prompt: list[int], tokens: int) -> AsyncIterator[int]:
        limits = SamplingParams(
            max_tokens=tokens, temperature=0, ignore_eos=True, detokenize=False,
            output_kind=RequestOutputKind.DELTA,
        )  # fmt: skip
        asked = {"prompt_token_ids": prompt}
        name = f"{number}-{time.monotonic_ns()}"
        async for output in engine.generate(asked, limits, request_id=name):
            yield len(output.outputs[0].token_ids)

    return ask, loop.run_until_complete, engine.shutdown


def transformers(given: argparse.Namespace) -> Engine:
    """transformers, one request after the other, on the CPU: to see this script at work."""
    import torch
    from transformers import AutoModelForCausalLM

    model = AutoModelForCausalLM.from_pretrained(given.model, dtype=torch.bfloat16).eval()

    async def ask(number: int, prompt: list[int], tokens: int) -> AsyncIterator[int]:
        ids, past = torch.tensor([prompt]), None
        for _ in range(tokens):
            with torch.no_grad():
                made = model(ids, past_key_values=past, use_cache=True)
            ids, past = made.logits[:, -1:].argmax(-1), made.past_key_values
            yield 1
            await asyncio.sleep(0)

    return ask, asyncio.run, lambda: None


KINDS: dict[str, Callable[[argparse.Namespace], Engine]] = {
    "turbomind": lambda given: lmdeploy(given, turbomind=True),
    "pytorch": lambda given: lmdeploy(given, turbomind=False),
    "vllm": vllm,
    "transformers": transformers,
}


def make(folder: Path, config: dict[str, Any], layers: int) -> None:
    """A checkpoint of random weights, shaped as config.json says but for the layers; one file a layer."""
    import torch
    from safetensors.torch import save_file

    folder.mkdir(parents=True, exist_ok=True)
    config = {**config, "num_hidden_layers": layers, "torch_dtype": "bfloat16"}
    for key in ("auto_map", "quantization_config"):
        config.pop(key, None)
    (folder / "config.json").write_text(json.dumps(config, indent=1))
    device = "cuda" if torch.cuda.is_available() else "cpu"
    dice = torch.Generator(device=device).manual_seed(7)
    index: dict[str, str] = {}
    for number, shapes in enumerate(files(config)):
        name = f"model-{number:05d}.safetensors"
        save_file(
            {k: drawn(k, s, dice, device) for k, s in shapes.items()},
            folder / name,
            metadata={"format": "pt"},
        )
        index |= dict.fromkeys(shapes, name)
    weights = json.dumps({"metadata": {}, "weight_map": index})
    (folder / "model.safetensors.index.json").write_text(weights)
    tokenizer(folder, config["vocab_size"])


def files(config: dict[str, Any]) -> list[dict[str, tuple[int, ...]]]:
    """Shapes by the names of published checkpoints: what stands outside of layers, then each layer."""
    sys.path.append(str(WORKERS))
    from oracle_worker import weights

    found: list[dict[str, tuple[int, ...]]] = [{} for _ in range(config["num_hidden_layers"] + 1)]
    for name, shape in weights.shapes({**config, "num_nextn_predict_layers": 0}):
        layer = int(name.split(".")[2]) + 1 if name.startswith("model.layers.") else 0
        found[layer][name] = shape
    return found


def drawn(name: str, shape: tuple[int, ...], dice: Any, device: str) -> Any:
    """A random weight that keeps what it is given at its size; norms are one."""
    import torch

    if len(shape) == 1:
        return torch.ones(shape, dtype=torch.bfloat16)
    size = 1.0 if "embed_tokens" in name else shape[-1] ** -0.5
    return (torch.randn(shape, generator=dice, device=device) * size).to(torch.bfloat16).cpu()


def tokenizer(folder: Path, vocabulary: int) -> None:
    """A tokenizer of as many words, as LMDeploy starts with none."""
    from tokenizers import Tokenizer, models, pre_tokenizers
    from transformers import PreTrainedTokenizerFast

    known = {"<s>": 0, "</s>": 1, "<unk>": 2} | {f"w{n}": n for n in range(3, vocabulary)}
    made = Tokenizer(models.WordLevel(known, unk_token="<unk>"))
    made.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
    PreTrainedTokenizerFast(
        tokenizer_object=made, bos_token="<s>", eos_token="</s>", unk_token="<unk>"
    ).save_pretrained(folder)


def table(kept: dict[str, Any]) -> list[str]:
    """Lowest, middle and highest of the rounds of each engine, as Markdown.

    Tokens a second from the first token on, then milliseconds until the last request has its first.
    """
    sizes = list(dict.fromkeys(size for rounds in kept["rounds"].values() for size in rounds))
    heads = [f"{size} at once" for size in sizes] + [f"{size}: last first token" for size in sizes]
    lines = [f"| engine | {' | '.join(heads)} |", "|---" * (len(heads) + 1) + "|"]
    for name, rounds in kept["rounds"].items():
        done = [[each for each in rounds.get(size, []) if each] for size in sizes]
        cells = [spread([each["decoded"] for each in one]) for one in done]
        cells += [spread([1e3 * each["first"] for each in one]) for one in done]
        lines.append(f"| {name} | {' | '.join(cells)} |")
    return lines


def spread(values: list[float]) -> str:
    """Lowest, middle and highest, or a dash where the engine has ended."""
    if not values:
        return "—"
    return ", ".join(f"{n:,.0f}" for n in (min(values), statistics.median(values), max(values)))


if __name__ == "__main__":
    main()
