"""The decode kernels inside LMDeploy's own attention, through Triton's interpreter on a CPU.

    python in_lmdeploy.py FOLDER TREE

TREE holds LMDeploy's patched modules. They are imported as they are, but for the `__init__` of packages
that load the whole engine; the card is a made-up one. FOLDER holds faults.json: of each fault the module, what to
find there, what to put there instead, and the check that must see it. The last line is JSON: the checks that hold, and
the faults that are seen.
"""

from __future__ import annotations

import importlib
import json
import os
import shutil
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from tempfile import TemporaryDirectory
from types import SimpleNamespace
from typing import Any
from unittest.mock import patch

os.environ["TRITON_INTERPRET"] = "1"

import torch

from benchmarks.alone import stand_in
from tests.mla import cases
from tests.mla.cases import LATENT, SCALE, WIDE

BARE = (
    "lmdeploy",
    "lmdeploy.pytorch",
    "lmdeploy.pytorch.backends",
    "lmdeploy.pytorch.backends.cuda",
)
VARIABLE = "LMDEPLOY_MLA_DECODE"
HEADS = 4
# As V2-Lite's layers ask for attention: latents with one head, values within the keys.
MLA = {
    "num_heads": HEADS, "head_dim": WIDE, "scale": SCALE, "num_kv_heads": 1, "v_head_dim": LATENT,
    "alibi": False, "sliding_window": None, "logit_softcapping": 0.0, "causal": True,
    "use_flash_mla": False, "mla_index_topk": None, "learnable_sink": False, "block_sparse_size": 1,
}  # fmt: skip


def engine(tree: str) -> None:
    """Let LMDeploy's modules be imported from a tree."""
    for name in BARE:
        stand_in(name, __path__=[f"{tree}/{name.replace('.', '/')}"])
    from lmdeploy.pytorch.kernels.cuda import mla_decode

    mla_decode.Card.of = classmethod(lambda cls, device: cls(**cases.CARD))


@contextmanager
def asked(value: str | None) -> Iterator[None]:
    """With the variable set, or without."""
    with patch.dict(os.environ):
        os.environ.pop(VARIABLE, None)
        if value is not None:
            os.environ[VARIABLE] = value
        yield


def built(value: str | None = "dspatch", **changed: Any) -> Any:
    """The attention that the engine builds for a layer."""
    from lmdeploy.pytorch.backends.attention import PagedAttentionBuildSpec
    from lmdeploy.pytorch.backends.cuda import attention

    with asked(value):
        return attention._build_paged_attention(PagedAttentionBuildSpec(**{**MLA, **changed}))


def name_of(value: str | None, **changed: Any) -> str:
    """The class of what is built."""
    return type(built(value, **changed)).__name__


def chosen() -> None:
    """Ours for who asks for it and for attention over latents alone; another value is refused."""
    ours, theirs = "DspatchMLAImpl", "TritonAttentionImpl"
    assert name_of("dspatch") == ours
    assert name_of(None) == theirs
    assert name_of("") == theirs
    assert name_of("dspatch", num_heads=128) == ours
    others = (
        {"num_kv_heads": 4}, {"head_dim": 128, "v_head_dim": 128}, {"v_head_dim": 576},
        {"alibi": True}, {"learnable_sink": True}, {"logit_softcapping": 30.0},
        {"sliding_window": 128}, {"block_sparse_size": 4},
    )  # fmt: skip
    for changed in others:
        assert name_of("dspatch", **changed) == theirs, changed
    from lmdeploy.pytorch.backends.cuda.attention import dspatch_mla

    with asked("dspatch"):
        sparse = SimpleNamespace(**{**MLA, "mla_index_topk": 512})
        assert not dspatch_mla.asked_for(sparse, (-1, -1))
    try:
        built("flash")
        said = "nothing"
    except ValueError as error:
        said = str(error)
    assert "'flash'" in said, said


def step(lengths: list[int], page: int = 64, heads: int = HEADS, seed: int = 0) -> SimpleNamespace:
    """A decoding step: every request's last token is new, its keys not yet in the cache."""
    from lmdeploy.pytorch.backends.cuda.attention import TritonAttentionMetadata

    one = cases.step(lengths, heads=heads, page=page, dtype=torch.float16, seed=seed)
    at = torch.arange(len(lengths))
    last = one.lengths.long() - 1
    pages = one.table[at, last // page].long()
    cache = one.cache[:, :, None].clone()
    new = cache[pages, last % page].clone()
    cache[pages, last % page] = 7.0
    told = TritonAttentionMetadata(
        is_decoding=True,
        block_offsets=one.table.clone(),
        q_start_loc=at.to(torch.int32),
        q_seqlens=torch.ones_like(one.lengths),
        kv_seqlens=one.lengths.clone(),
        cu_seqlens_q=torch.arange(len(lengths) + 1, dtype=torch.int32),
        max_q_seqlen=1,
    )
    given = {"query": one.q[:, 0], "key": new, "value": new[..., :LATENT]}
    caches = {"k_cache": cache, "v_cache": cache[..., :LATENT]}
    return SimpleNamespace(one=one, told=told, given={**given, **caches, "attn_metadata": told})


def truth(one: Any) -> torch.Tensor:
    """Attention of a step in float64, of every request by itself."""
    rows = []
    for query, pages, length in zip(one.q[:, 0], one.table, one.lengths.tolist(), strict=True):
        keys = one.cache[pages.long()].flatten(0, 1)[:length].double()
        weights = (query.double() @ keys.T * SCALE).softmax(-1)
        rows.append(weights @ keys[:, :LATENT])
    return torch.stack(rows)


def off(got: torch.Tensor, want: torch.Tensor) -> float:
    """The relative error, over all."""
    return float((got.double() - want).norm() / want.norm())


def numbers() -> None:
    """A step through the engine's own forward, which writes the new token before our kernels decode."""
    for lengths, page in (([70, 1, 130], 64), ([33, 90], 16)):
        one, made = step(lengths, page), built()
        got, want = made.forward(**one.given), truth(one.one)
        assert made._decoders, "the step was not decoded by our kernels"
        assert got.shape == want.shape, got.shape
        assert off(got, want) < 2e-3, off(got, want)
        written = one.given["k_cache"][:, :, 0].nan_to_num(9)
        assert torch.equal(written, one.one.cache.nan_to_num(9))


def buffers() -> None:
    """Layers share buffers; a batch that grows has its own, and one of a shape too."""
    made, other = built(), built(scale=SCALE / 2)
    made._decoders.clear()
    for lengths in ([5, 9, 70], [3, 4, 5, 6], [8], [2, 9, 4, 7, 5]):
        one = step(lengths)
        assert off(made.forward(**one.given), truth(one.one)) < 2e-3
    assert sorted(most for _, _, most in made._decoders) == [1, 4, 8]
    again = step([5, 9, 70])
    halved = other.forward(**again.given)
    assert len(other._decoders) == 3
    assert off(halved, truth(again.one)) > 0.01, "the scale of the layer is not used"


def fallback() -> None:
    """What our kernels do not serve goes to upstream's, with all that it was given."""
    from lmdeploy.messages import QuantPolicy

    made, calls = built(), []
    made._decoders.clear()
    made.paged_attention_fwd = lambda *given, **more: calls.append((given, more)) or given[0]
    one = step([70, 3])
    plain = one.given
    told = one.told
    scales = {"k_scales_zeros": torch.ones(1), "v_scales_zeros": torch.ones(1)}
    args = (plain["query"], plain["k_cache"], plain["v_cache"], told, 1)
    two = (plain["query"].repeat_interleave(2, 0), *args[1:4], 2)
    made._forward_decoding(*two)
    made._forward_decoding(args[0].bfloat16(), *args[1:])
    told.quant_policy = QuantPolicy.INT8
    made._forward_decoding(*args, **scales)
    assert len(calls) == 3
    assert not made._decoders
    given, more = calls[-1]
    assert given[1] is plain["k_cache"]
    assert more["k_scales_zeros"] is scales["k_scales_zeros"]
    assert more["quant_policy"] == QuantPolicy.INT8
    assert calls[0][1]["max_seqlen_q"] == 2
    assert more["softmax_scale"] == SCALE


def interface() -> None:
    """What the engine asks of its attention is answered as upstream's own class answers it."""
    import inspect

    made, theirs = built(), built(None)
    assert made.get_step_metadata_provider() == theirs.get_step_metadata_provider()
    assert made.get_step_metadata_provider() is not None
    ours, base = (inspect.signature(each._forward_decoding).parameters for each in (made, theirs))
    positional = [name for name in ours if name != "kwargs"]
    assert positional == list(base)[: len(positional)], positional
    assert all(base[name].default is None for name in list(base)[len(positional) :])


CHECKS = {each.__name__: each for each in (chosen, numbers, buffers, fallback, interface)}

ATTENTION = "lmdeploy.pytorch.backends.cuda.attention"


def planted(faults: dict[str, list[str]]) -> Iterator[str]:
    """The faults that their checks see, each planted in a copy of the engine's attention."""
    package = sys.modules[BARE[-1]]
    there = Path(package.__path__[0])
    for fault, (name, find, instead, check) in faults.items():
        with TemporaryDirectory() as folder:
            copy = shutil.copytree(there / "attention", Path(folder) / "attention")
            text = (copy / name).read_text()
            assert text.count(find) == 1, (fault, text.count(find))
            (copy / name).write_text(text.replace(find, instead))
            package.__path__ = [folder, str(there)]
            for module in [each for each in sys.modules if each.startswith(ATTENTION)]:
                del sys.modules[module]
            importlib.invalidate_caches()
            importlib.import_module(f"{ATTENTION}.dspatch_mla")
            try:
                CHECKS[check]()
            except (AssertionError, RuntimeError, TypeError, ValueError):
                yield fault


def main() -> None:
    """Run every check, then plant every fault."""
    folder, tree = sys.argv[1:]
    engine(tree)
    for check in CHECKS.values():
        check()
    faults = json.loads((Path(folder) / "faults.json").read_text())
    print(json.dumps({"held": list(CHECKS), "seen": list(planted(faults))}))


if __name__ == "__main__":
    main()
