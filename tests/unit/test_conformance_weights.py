"""The random weights are the same always, and each of them matters."""

from __future__ import annotations

import numpy as np
import pytest

from dspatch.conformance import small
from dspatch.conformance.workers.oracle_worker import weights

CONFIG = small.case("deepseek-v3").config


def test_the_same_seed_gives_the_same_bytes() -> None:
    one, two = weights.tensors(CONFIG, 0), weights.tensors(CONFIG, 0)
    assert all(one[name].tobytes() == two[name].tobytes() for name in one)


def test_another_seed_gives_others() -> None:
    one, two = weights.tensors(CONFIG, 0), weights.tensors(CONFIG, 1)
    assert not any(np.array_equal(one[name], two[name]) for name in one)


def test_no_tensor_is_constant_or_broken() -> None:
    for name, value in weights.tensors(CONFIG, 0).items():
        assert np.isfinite(value).all(), name
        assert value.std() > 0, name
        assert value.dtype == np.float32, name


def test_matrices_keep_activations_at_unit_variance() -> None:
    rows = weights.tensors(CONFIG, 0)["model.layers.0.self_attn.o_proj.weight"]
    assert rows.std() * rows.shape[1] ** 0.5 == pytest.approx(1.0, rel=0.05)


def test_norms_differ_from_an_unloaded_norm() -> None:
    norm = weights.tensors(CONFIG, 0)["model.layers.1.self_attn.q_a_layernorm.weight"]
    assert norm.mean() == pytest.approx(1.0, abs=0.05)
    assert 0.05 < norm.std() < 0.2


def test_the_router_bias_has_both_signs_and_reaches_well_below_zero() -> None:
    bias = weights.tensors(CONFIG, 0)["model.layers.1.mlp.gate.e_score_correction_bias"]
    assert bias.max() > 0
    assert np.median(bias) < -0.3


def test_names_are_the_published_ones() -> None:
    names = {name for name, _ in weights.shapes(CONFIG)}
    assert {
        "model.layers.0.mlp.down_proj.weight",
        "model.layers.1.mlp.experts.15.gate_proj.weight",
        "model.layers.1.mlp.gate.e_score_correction_bias",
        "model.layers.2.self_attn.kv_a_proj_with_mqa.weight",
    } <= names
    lite = {name for name, _ in weights.shapes(small.case("deepseek-v2-lite").config)}
    assert "model.layers.0.self_attn.q_proj.weight" in lite
    assert not any("q_a_proj" in name or "correction_bias" in name for name in lite)


def test_the_bias_of_the_indexer_s_norm_is_not_taken_for_a_norm() -> None:
    sparse = weights.tensors(small.case("deepseek-v3.2").config, 0)
    bias = sparse["model.layers.1.self_attn.indexer.k_norm.bias"]
    assert abs(bias.mean()) < 0.2
    assert bias.std() > 0.3
    norm = sparse["model.layers.1.self_attn.indexer.k_norm.weight"]
    assert norm.mean() == pytest.approx(1.0, abs=0.05)
