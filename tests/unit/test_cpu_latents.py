"""DeepSeek's attention over a cache of latents for old releases, its experts and its RoPE: rendered and run."""

from __future__ import annotations

import math
import sys
from collections.abc import Iterator, Sequence
from types import ModuleType, SimpleNamespace
from typing import Any

import pytest

from dspatch.render import Context, render_file
from tests.unit.templatekit import TEMPLATES, rendered

torch = pytest.importorskip("torch", reason="operators run on PyTorch, which the engine brings")

ROPE_MODULE = "vllm.model_executor.layers.deepseek_rope"
PLACES = {
    "mla/cpu_ops": "vllm.attention.ops.cpu_mla",
    "mla/cpu_reference": "vllm.attention.ops.cpu_mla_reference",
    "rope/deepseek_rope": ROPE_MODULE,
}
HEADS, RANK, ROPE, NOPE, VALUE, HIDDEN, BLOCK = 3, 24, 8, 12, 10, 16, 16
Tensor = Any


class Unquantized:
    """Stands for the engine's method of plain linear layers."""


@pytest.fixture(params=[True, False], ids=["new", "old"])
def latents(request: pytest.FixtureRequest) -> Iterator[ModuleType]:
    """The attention, as releases with or without chunks and pairs of blocks have it."""
    saved = {name: value for name, value in sys.modules.items() if name.startswith("vllm")}
    for name in saved:
        del sys.modules[name]
    for name in ("vllm", "vllm.attention", "vllm.attention.ops", "vllm.attention.backends"):
        sys.modules[name] = ModuleType(name)
    sdpa, linear = (ModuleType(name) for name in ("sdpa", "linear"))
    vars(sdpa)["TorchSDPABackend"] = type("TorchSDPABackend", (), {})
    vars(linear)["UnquantizedLinearMethod"] = Unquantized
    sys.modules["vllm.attention.backends.torch_sdpa"] = sdpa
    sys.modules["vllm.model_executor.layers.linear"] = linear
    for template, name in PLACES.items():
        module = rendered(template, name)
        parent, _, own = name.rpartition(".")
        vars(sys.modules.setdefault(parent, ModuleType(parent)))[own] = module
    yield rendered(
        "mla/cpu_latents",
        "rendered_latents",
        cpu_metadata_has_chunks=request.param,
        copied_blocks_are_pairs=request.param,
        deepseek_rope_module=ROPE_MODULE,
    )
    for name in [each for each in sys.modules if each.startswith("vllm")]:
        del sys.modules[name]
    sys.modules |= saved


class Linear:
    """A linear layer as the engine calls it: with no bias beside its output."""

    def __init__(self, rows: int, columns: int, quant_method: object = None) -> None:
        self.weight = torch.randn(rows, columns) / math.sqrt(columns)
        self.quant_method = quant_method or Unquantized()

    def __call__(self, x: Tensor) -> tuple[Tensor, None]:
        return x @ self.weight.T, None


def layer(latents: ModuleType, scaling: dict[str, Any] | None = None) -> SimpleNamespace:
    torch.manual_seed(0)
    rope = sys.modules[ROPE_MODULE]
    return SimpleNamespace(
        q_lora_rank=None, kv_lora_rank=RANK, qk_rope_head_dim=ROPE, qk_nope_head_dim=NOPE,
        qk_head_dim=NOPE + ROPE, v_head_dim=VALUE, num_local_heads=HEADS, scaling=0.3,
        q_proj=Linear(HEADS * (NOPE + ROPE), HIDDEN), kv_a_proj_with_mqa=Linear(RANK + ROPE, HIDDEN),
        kv_a_layernorm=lambda x: x * 0.5, kv_b_proj=Linear(HEADS * (NOPE + VALUE), RANK),
        o_proj=Linear(HIDDEN, HEADS * VALUE),
        rotary_emb=rope.DeepseekScalingRotaryEmbedding(ROPE, 10000.0, scaling),
    )  # fmt: skip


def expected(of: SimpleNamespace, hidden: Tensor) -> Tensor:
    """Attention of one whole request with full heads, nothing cached: [T, hidden]."""
    tokens = len(hidden)
    q = of.q_proj(hidden)[0].view(tokens, HEADS, NOPE + ROPE)
    kv_c, k_pe = of.kv_a_proj_with_mqa(hidden)[0].split([RANK, ROPE], dim=-1)
    kv = of.kv_b_proj(of.kv_a_layernorm(kv_c))[0].view(tokens, HEADS, NOPE + VALUE)
    q_pe, k_pe = of.rotary_emb(torch.arange(tokens), q[..., NOPE:], k_pe.unsqueeze(1))
    out = torch.empty(tokens, HEADS, VALUE)
    for head in range(HEADS):
        scores = q[:, head, :NOPE] @ kv[:, head, :NOPE].T + q_pe[:, head] @ k_pe[:, 0].T
        hides = torch.ones(tokens, tokens).triu(1).bool()
        weights = (scores * of.scaling).masked_fill(hides, -math.inf).softmax(-1)
        out[:, head] = weights @ kv[:, head, NOPE:]
    return of.o_proj(out.flatten(1))[0]


def metadata(
    blocks: Sequence[Sequence[int]], done: Sequence[int], new: Sequence[int], *, decode: bool
) -> SimpleNamespace:
    """The engine's metadata of a pass over `new` tokens a request after `done` cached ones."""
    slots = [
        row[at // BLOCK] * BLOCK + at % BLOCK
        for row, start, count in zip(blocks, done, new, strict=True)
        for at in range(start, start + count)
    ]
    ends = [a + b for a, b in zip(done, new, strict=True)]
    starts = torch.tensor([0, *new]).cumsum(0)
    return SimpleNamespace(
        num_prefills=0 if decode else len(new), num_prefill_tokens=0 if decode else sum(new),
        num_decode_tokens=len(new) if decode else 0, slot_mapping=torch.tensor(slots),
        seq_lens=ends, seq_lens_tensor=torch.tensor(ends), block_tables=torch.tensor(blocks),
        prefill_block_tables=torch.tensor(blocks) if any(done) else None, query_start_loc=starts,
    )  # fmt: skip


def passed(
    latents: ModuleType, of: SimpleNamespace, cache: Tensor, rows: Sequence[Tensor], told: Any
) -> Tensor:
    starts = [end - len(x) for end, x in zip(told.seq_lens, rows, strict=True)]
    positions = [torch.arange(at, at + len(x)) for at, x in zip(starts, rows, strict=True)]
    return latents.latent_attention(of, torch.cat(positions), torch.cat(list(rows)), cache, told)


BLOCKS = [[5, 0, 7], [2, 6, 1]]


@pytest.mark.parametrize("reference", [False, True], ids=["fast", "reference"])
def test_prompts_then_tokens_are_what_full_heads_give(
    latents: ModuleType, reference: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(latents, "_USE_REFERENCE_OPS", reference)
    of = layer(latents)
    cache = torch.full((8, BLOCK, RANK + ROPE), math.nan)
    both = [torch.randn(21, HIDDEN), torch.randn(36, HIDDEN)]
    want = [expected(of, each) for each in both]
    told = metadata(BLOCKS, [0, 0], [17, 32], decode=False)
    out = passed(latents, of, cache, [both[0][:17], both[1][:32]], told)
    torch.testing.assert_close(out, torch.cat([want[0][:17], want[1][:32]]), rtol=1e-4, atol=1e-5)
    for step in range(4):
        told = metadata(BLOCKS, [17 + step, 32 + step], [1, 1], decode=True)
        now = [both[0][17 + step : 18 + step], both[1][32 + step : 33 + step]]
        out = passed(latents, of, cache, now, told)
        torch.testing.assert_close(
            out, torch.stack([want[0][17 + step], want[1][32 + step]]), rtol=1e-4, atol=1e-5
        )
    assert cache[3:5].isnan().all()


@pytest.mark.parametrize("reference", [False, True], ids=["fast", "reference"])
def test_a_prompt_in_chunks_reads_what_came_before(
    latents: ModuleType, reference: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(latents, "_USE_REFERENCE_OPS", reference)
    monkeypatch.setattr(latents, "_EXPANDED_TOKENS", 7)
    if "prefill_block_tables" not in latents._prompts.__code__.co_names:
        return  # such a release never splits a prompt
    of = layer(latents)
    cache = torch.full((8, BLOCK, RANK + ROPE), math.nan)
    hidden = torch.randn(40, HIDDEN)
    told = metadata(BLOCKS[:1], [0], [25], decode=False)
    passed(latents, of, cache, [hidden[:25]], told)
    told = metadata(BLOCKS[:1], [25], [15], decode=False)
    out = passed(latents, of, cache, [hidden[25:]], told)
    torch.testing.assert_close(out, expected(of, hidden)[25:], rtol=1e-4, atol=1e-5)


def test_a_fault_in_the_absorbed_weights_is_seen(latents: ModuleType) -> None:
    of = layer(latents)
    cache = torch.zeros(8, BLOCK, RANK + ROPE)
    hidden = torch.randn(9, HIDDEN)
    passed(latents, of, cache, [hidden[:8]], metadata(BLOCKS[:1], [0], [8], decode=False))
    want = expected(of, hidden)[8:]
    of.kv_b_proj.weight[0, 0] += 1
    out = passed(latents, of, cache, [hidden[8:]], metadata(BLOCKS[:1], [8], [1], decode=True))
    assert (out - want).abs().max() > 1e-4


def test_a_quantized_projection_is_asked_for_its_weight_once(latents: ModuleType) -> None:
    of = layer(latents)
    of.kv_b_proj.quant_method = object()
    whole = latents._kv_b_weight(of)
    torch.testing.assert_close(whole, of.kv_b_proj.weight)
    assert latents._kv_b_weight(of) is whole


def test_the_cache_is_one_row_a_token_and_blocks_are_copied(latents: ModuleType) -> None:
    backend = latents.CPULatentBackend
    assert backend.get_kv_cache_shape(8, BLOCK, 1, RANK + ROPE) == (8, BLOCK, RANK + ROPE)
    caches = [torch.arange(8.0).view(8, 1, 1) + layer for layer in range(2)]
    pairs = torch.tensor([[1, 4], [1, 5], [2, 0]])
    old = "items" in backend.copy_blocks.__code__.co_names
    backend.copy_blocks(caches, {1: [4, 5], 2: [0]} if old else pairs)
    assert [each.flatten().tolist() for each in caches] == [
        [2, 1, 2, 3, 1, 1, 6, 7],
        [3, 2, 3, 4, 2, 2, 7, 8],
    ]


def test_the_width_is_that_of_latents_only(latents: ModuleType) -> None:
    def model(**facts: object) -> SimpleNamespace:
        return SimpleNamespace(hf_text_config=SimpleNamespace(qk_rope_head_dim=64, **facts))

    assert latents.latent_width(model(model_type="deepseek_v3", kv_lora_rank=512)) == 576
    assert latents.latent_width(model(model_type="deepseek_v2", kv_lora_rank=None)) is None
    assert latents.latent_width(model(model_type="minicpm3", kv_lora_rank=256)) is None


YARN = {
    "factor": 40, "original_max_position_embeddings": 64, "beta_fast": 8, "beta_slow": 1,
    "mscale": 1.0, "mscale_all_dim": 0.5,
}  # fmt: skip


def test_rope_turns_pairs_and_yarn_slows_the_slow_ones(latents: ModuleType) -> None:
    rope = sys.modules[ROPE_MODULE]
    plain = rope.DeepseekScalingRotaryEmbedding(ROPE, 100.0, None)
    x, positions = torch.randn(5, 2, ROPE), torch.tensor([0, 1, 5, 40, 900])
    turned = plain(positions, x, x)[0]
    pairs = torch.view_as_complex(x.unflatten(-1, (-1, 2)))
    angles = positions[:, None] * 100.0 ** (-torch.arange(0, ROPE, 2) / ROPE)
    want = pairs * torch.polar(torch.ones(()), angles).unsqueeze(1)
    torch.testing.assert_close(turned, torch.view_as_real(want).flatten(-2), rtol=1e-4, atol=1e-4)
    yarn = rope.DeepseekScalingRotaryEmbedding(ROPE, 100.0, YARN)
    ratio = (yarn.frequencies / plain.frequencies).tolist()
    assert ratio[0] == 1
    assert ratio[-1] == pytest.approx(1 / 40)
    assert ratio == sorted(ratio, reverse=True)
    scale = (0.1 * math.log(40) + 1) / (0.05 * math.log(40) + 1)
    torch.testing.assert_close(yarn(positions, x, x)[0].norm(), x.norm() * scale)


def chosen(logits: Tensor, bias: Tensor | None, groups: int, kept: int, top: int) -> list[int]:
    """Which experts one token takes, as the models' authors say it."""
    scores = logits.sigmoid() if bias is not None else logits.softmax(-1)
    choice = (scores + bias if bias is not None else scores).tolist()
    size = len(choice) // groups
    own = [sorted(choice[g * size : (g + 1) * size], reverse=True) for g in range(groups)]
    quality = [sum(each[: 2 if bias is not None else 1]) for each in own]
    best = sorted(range(groups), key=quality.__getitem__, reverse=True)[:kept]
    inside = [e for e in range(len(choice)) if e // size in best]
    return sorted(sorted(inside, key=choice.__getitem__, reverse=True)[:top])


@pytest.mark.parametrize("biased", [False, True])
@pytest.mark.parametrize("renormalize", [False, True])
def test_experts_are_chosen_within_groups(biased: bool, renormalize: bool) -> None:
    experts = rendered("moe/cpu_experts", "rendered_experts")
    torch.manual_seed(1)
    logits, hidden = torch.randn(40, 12), torch.randn(40, HIDDEN)
    bias = torch.randn(12) if biased else None
    weights, ids = experts.select_experts(
        hidden, logits, 4, True, renormalize, 2, 4,
        scoring_func="sigmoid" if biased else "softmax", e_score_correction_bias=bias,
    )  # fmt: skip
    scores = logits.sigmoid() if biased else logits.softmax(-1)
    for token in range(40):
        assert sorted(ids[token].tolist()) == chosen(logits[token], bias, 4, 2, 4)
    want = scores.gather(-1, ids)
    want = want / want.sum(-1, keepdim=True) if renormalize else want
    torch.testing.assert_close(weights, want)
    w13, w2 = torch.randn(12, 2 * 6, HIDDEN), torch.randn(12, HIDDEN, 6)
    out = experts.fused_experts(hidden, w13, w2, weights, ids)
    for token in (0, 39):
        total = torch.zeros(HIDDEN)
        for weight, expert in zip(weights[token], ids[token].tolist(), strict=True):
            gate, up = (w13[expert] @ hidden[token]).chunk(2)
            total += weight * (w2[expert] @ (torch.nn.functional.silu(gate) * up))
        torch.testing.assert_close(out[token], total, rtol=1e-4, atol=1e-4)


def test_the_share_takes_back_what_the_kernels_softmax_adds() -> None:
    context = Context(traits={"models_get_cache_config": True}, variants=[])  # type: ignore[arg-type]
    source = render_file(TEMPLATES, "models/deepseek_v2.py.j2", context).decode()
    start = source.index("def _within_groups")
    space = {"torch": torch, "Tuple": tuple}
    exec(source[start : source.index("class DeepseekV2MoE")], space)
    torch.manual_seed(2)
    logits = torch.randn(30, 12)
    left, share = space["_within_groups"](logits, 4, 2)  # type: ignore[operator]
    weights, ids = (left.softmax(-1) * share).topk(4, dim=-1)
    for token in range(30):
        assert sorted(ids[token].tolist()) == chosen(logits[token], None, 4, 2, 4)
    torch.testing.assert_close(weights, logits.softmax(-1).gather(-1, ids))
