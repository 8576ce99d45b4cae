"""MLA decode kernels side by side on one NVIDIA GPU: ours, FlashMLA, FA3, FlashInfer, Triton's of vLLM and SGLang.

    python benchmarks/mla_decode.py prepare FOLDER [--wheel WHEEL]...   anywhere: peers and our kernels
    python benchmarks/mla_decode.py run FOLDER -o RESULTS.json          where the GPU is
        [--mode fp8]     a cache in fp8 against ours in bf16; [--mode sparse]  2048 slots a token
        [--beside portable]  another of our kernels in the same rows; [--check]  fp64 alone, no times
    python benchmarks/mla_decode.py show RESULTS.json [--plot PLOT.svg]

`prepare` takes the peers from their wheels, by hash (mla_peers.py), and compiles FlashInfer's, which
come as sources: that needs nvcc 12.8 or newer, no GPU and a minute (mla_flashinfer.py has the recipe;
`--without flashinfer` leaves them out). `run` needs torch 2.11, Triton 3.6 and, for FlashInfer,
CPython 3.12; neither dspatch nor a network. A peer that cannot be loaded is named and left out.

Every kernel is held to an fp64 reference first. Calls are captured 20 to 50 to a CUDA graph, each on
inputs of its own, which are larger than the L2 together; the L2 is flushed before each replay; kernels
take turns, and ours runs twice in each turn: the difference of the two is the spread. The limit of a
shape is the larger of its bytes over copy bandwidth and its operations over the rate of a bf16 matrix
product, both measured in the same process.
"""

from __future__ import annotations

import argparse
import importlib
import json
import sys
from dataclasses import asdict
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parents[1]))

from benchmarks import mla_bench, mla_peers, mla_show, wheels

SHORT = (1, 1024), (1, 4096), (1, 16384), (1, 65536), (4, 4096), (16, 1024), (16, 4096)
LONG = (16, 16384), (32, 8192), (64, 8192), (128, 1024), (128, 4096), (128, 8192)
DENSE = (*SHORT, *LONG)
SPARSE = tuple((batch, 8192) for batch in (1, 4, 16, 64, 128))
HEADS = (16, 32, 64, 128)
KERNELS = ("portable", "hopper", "seesaw")


def main() -> None:
    """Do what the command line says."""
    options = _parser().parse_args()
    if options.command == "prepare":
        _prepare(options)
    elif options.command == "run":
        _run(options)
    else:
        all_results = [mla_show.read(path) for path in options.results]
        for results in all_results:
            print({key: value for key, value in results.items() if key != "rows"}, "\n")
            print(mla_show.table(results), "\n")
        if options.plot is not None:
            mla_show.plot(all_results, options.plot)


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawTextHelpFormatter
    )
    commands = parser.add_subparsers(dest="command", required=True)
    prepare = commands.add_parser("prepare")
    prepare.add_argument("folder", type=Path)
    prepare.add_argument("--wheel", type=Path, action="append", default=[], help="one on this disk")
    prepare.add_argument("--without", choices=mla_peers.OPTIONAL, action="append", default=[])
    run = commands.add_parser("run")
    run.add_argument("folder", type=Path)
    run.add_argument("-o", "--output", type=Path, help="what is measured, as JSON")
    run.add_argument("--heads", type=int, nargs="+", choices=HEADS, default=[16, 128])
    run.add_argument("--shapes", type=_shape, nargs="+", metavar="BATCHxTOKENS", default=[])
    run.add_argument("--mode", choices=["dense", "fp8", "sparse"], default="dense")
    run.add_argument("--kernel", choices=KERNELS, help="not the chosen")
    run.add_argument("--beside", choices=KERNELS, action="append", default=[], help="and this")
    run.add_argument("--without", choices=mla_peers.OPTIONAL, action="append", default=[])
    run.add_argument("--check", action="store_true", help="hold each kernel to fp64, time none")
    show = commands.add_parser("show")
    show.add_argument("results", type=Path, nargs="+")
    show.add_argument("--plot", type=Path)
    return parser


def _shape(text: str) -> tuple[int, int]:
    """A batch and a number of tokens, as in 16x4096."""
    batch, _, tokens = text.partition("x")
    if not (batch.isdecimal() and tokens.isdecimal() and int(batch) and int(tokens)):
        raise argparse.ArgumentTypeError(f"{text!r}: a batch and its tokens, as in 16x4096")
    return int(batch), int(tokens)


def _prepare(options: argparse.Namespace) -> None:
    try:
        from dspatch.errors import DspatchError
        from tests.mla import rendered
    except ImportError as error:
        raise SystemExit(f"`prepare` needs dspatch; {error.name} is not installed here") from None
    unknown = wheels.unknown(options.wheel, mla_peers.WHEELS)
    if unknown:
        raise SystemExit("\n".join(unknown))
    if options.folder.exists() and not options.folder.is_dir():
        raise SystemExit(f"{options.folder} is a file; `prepare` fills a folder")
    try:
        mla_peers.fetch(options.folder, options.wheel, options.without)
    except DspatchError as error:
        raise SystemExit(str(error)) from None
    rendered.write(options.folder / "mla_decode")


def _run(options: argparse.Namespace) -> None:
    bench = _bench(options)
    shapes = options.shapes or (SPARSE if options.mode == "sparse" else DENSE)
    every = [(heads, *shape) for heads in options.heads for shape in shapes]
    if options.check:
        raise SystemExit(_checked(bench, every))
    results: dict[str, Any] = {
        **bench.clock.ceilings(),
        "mode": options.mode,
        "missing": bench.peers.missing,
        "rows": [],
    }
    print(results, flush=True)
    for shape in every:
        row = asdict(bench.row(*shape))
        results["rows"].append(row)
        print(mla_show.line(row, results, mla_show.peers([row])), flush=True)
        options.output.write_text(json.dumps(results, indent=1) + "\n")


def _checked(bench: mla_bench.Bench, every: list[tuple[int, int, int]]) -> int:
    """Say what is wrong with each kernel on each shape; 1 if anything is, or a peer is missing."""
    print({"missing": bench.peers.missing})
    failed = bool(bench.peers.missing)
    for shape in every:
        wrong = {name: said or "right" for name, said in bench.checked(*shape).items()}
        failed |= any(said != "right" for said in wrong.values())
        print(*shape, wrong, flush=True)
    return int(failed)


def _bench(options: argparse.Namespace) -> mla_bench.Bench:
    """The measurements that were asked for; SystemExit says what stands in their way."""
    if not (options.folder / "mla_decode" / "__init__.py").is_file():
        raise SystemExit(f"{options.folder} has no mla_decode; `prepare {options.folder}` makes it")
    if not options.check and options.output is None:
        raise SystemExit("-o RESULTS.json is missing: where to write what is measured")
    if options.output is not None and not options.output.parent.is_dir():
        raise SystemExit(f"{options.output.parent}, for the results, is no folder")
    _needed()
    sys.path.insert(0, str(options.folder))
    kernels = importlib.import_module("mla_decode")
    peers = mla_peers.Peers(options.folder, options.without)
    return mla_bench.Bench(kernels, peers, options.mode, options.kernel, options.beside)


def _needed() -> None:
    try:
        import torch
        import triton
    except ImportError as error:
        raise SystemExit(f"{error.name} is not installed here: `run` needs torch 2.11") from None
    if not torch.cuda.is_available():
        raise SystemExit("no NVIDIA GPU is visible to torch; `show` reads results without one")
    for module, known in ((torch, "2.11."), (triton, "3.6.")):
        if not module.__version__.startswith(known):
            print(
                f"{module.__name__} {module.__version__}: measured with {known}x", file=sys.stderr
            )


if __name__ == "__main__":
    main()
