"""Small models keep what kernels and patches depend on."""

from __future__ import annotations

import pytest

from dspatch import variants
from dspatch.conformance import small
from dspatch.errors import UnknownVariantError

KEPT = (
    "kv_lora_rank",
    "qk_nope_head_dim",
    "qk_rope_head_dim",
    "v_head_dim",
    "topk_method",
    "scoring_func",
    "norm_topk_prob",
    "routed_scaling_factor",
    "n_shared_experts",
    "rms_norm_eps",
)


@pytest.mark.parametrize(
    "name", ["deepseek-v2-lite", "deepseek-v2", "deepseek-v2.5", "deepseek-v3", "deepseek-v3.2"]
)
def test_a_small_model_keeps_heads_router_and_rope_of_its_variant(name: str) -> None:
    facts, config = variants.variant(name).facts, small.case(name).config
    assert {key: config[key] for key in KEPT} == {key: facts[key] for key in KEPT}
    assert config["rope_scaling"]["mscale_all_dim"] == facts["rope.mscale_all_dim"]
    assert (config["q_lora_rank"] is None) == (facts["q_lora_rank"] is None)
    assert config["hidden_size"] < facts["hidden_size"]


def test_groups_stay_a_real_limit_after_shrinking() -> None:
    config = small.case("deepseek-v3").config
    assert 1 < config["topk_group"] < config["n_group"]
    per_group = config["n_routed_experts"] // config["n_group"]
    assert config["num_experts_per_tok"] <= per_group * config["topk_group"]


def test_a_model_without_groups_gets_none() -> None:
    assert small.case("deepseek-v2-lite").config["n_group"] == 1


def test_quantisation_and_prediction_layers_are_left_out() -> None:
    assert not {"quantization_config", "num_nextn_predict_layers"} & set(
        small.case("deepseek-v3").config
    )


def test_the_indexer_keeps_its_heads_and_decides_for_the_longer_prompts_only() -> None:
    facts, config = variants.variant("deepseek-v3.2").facts, small.case("deepseek-v3.2").config
    for key in ("index_n_heads", "index_head_dim"):
        assert config[key] == facts[key]
    lengths = [len(ids) + small.steps() for ids in small.prompts().values()]
    assert sum(length <= config["index_topk"] for length in lengths) == 2
    assert sum(length > config["index_topk"] for length in lengths) == 2
    assert "index_topk" not in small.case("deepseek-v3").config


def test_forms_change_only_what_they_say() -> None:
    plain, published = small.case("deepseek-v3/plain-rope"), small.case("deepseek-v3")
    changed = {k for k in published.config if plain.config[k] != published.config[k]}
    assert changed == {"rope_scaling"}
    assert plain.config["rope_scaling"] is None
    assert small.case("deepseek-v3/saved").written_by == "transformers"
    assert small.case("deepseek-v3/odd-heads").config["kv_lora_rank"] == 96


def test_an_alias_names_the_same_case() -> None:
    assert small.case("DeepSeek-V3-Base").name == "deepseek-v3"


def test_one_model_stands_for_all_that_shrink_alike() -> None:
    chosen = small.standing_for(["deepseek-v3", "deepseek-r1", "deepseek-v3.1"])
    assert [name for name in chosen if "/" not in name] == ["deepseek-v3"]
    assert "deepseek-v3/saved" in chosen


def test_the_whole_family_is_proven_by_every_distinct_latent_model() -> None:
    chosen = small.standing_for(variants.names())
    assert [name for name in chosen if "/" not in name] == [
        "deepseek-v2-lite",
        "deepseek-v2",
        "deepseek-v2.5",
        "deepseek-v3",
    ]


def test_forms_follow_the_models_that_were_asked_for() -> None:
    assert small.standing_for(["deepseek-v2"]) == ["deepseek-v2"]


def test_a_form_that_was_asked_for_stands_for_itself() -> None:
    assert small.standing_for(["deepseek-v3/odd-heads"]) == ["deepseek-v3/odd-heads"]


def test_a_model_without_latent_attention_is_refused_with_one_that_has_it() -> None:
    with pytest.raises(UnknownVariantError) as caught:
        small.standing_for(["deepseek-llm-7b"])
    assert "deepseek-v2-lite" in caught.value.next


def test_an_unknown_form_names_those_that_exist() -> None:
    with pytest.raises(UnknownVariantError, match="plain-rope"):
        small.case("deepseek-v3/no-such-form")


def test_prompts_are_the_same_always_and_within_the_vocabulary() -> None:
    prompts, sizes = small.prompts(), small.rules()["sizes"]
    assert prompts == small.prompts()
    assert all(0 <= token < sizes["vocab_size"] for ids in prompts.values() for token in ids)


def test_prompts_cover_a_partial_block_a_whole_one_and_several_chunks() -> None:
    from dspatch.engines import Options

    lengths = [len(ids) for ids in small.prompts().values()]
    assert min(lengths) < 16
    assert any(length % 16 == 0 for length in lengths)
    assert any(length % 16 for length in lengths)
    assert max(lengths) > 2 * Options().max_num_batched_tokens
    assert max(lengths) + small.steps() <= Options().max_model_len


def test_the_longest_prompt_reaches_past_the_original_positions() -> None:
    yarn = small.case("deepseek-v3").config["rope_scaling"]
    assert max(map(len, small.prompts().values())) > yarn["original_max_position_embeddings"]


def test_forms_go_one_after_another() -> None:
    case = small.case("deepseek-v3/two-dense/sixteen-heads/bfloat16")
    assert case.name == "deepseek-v3/two-dense/sixteen-heads/bfloat16"
    plain, sizes = small.case("deepseek-v3").config, ("num_attention_heads", "num_key_value_heads")
    changed = {"first_k_dense_replace": 2, "torch_dtype": "bfloat16", **dict.fromkeys(sizes, 16)}
    assert case.config == {**plain, **changed}
    both = small.case("deepseek-v3/fp8/sixteen-heads")
    assert (both.stored, both.config["q_lora_rank"]) == ("fp8-blocks", 256)
    assert small.case("deepseek-v3/sixteen-heads/saved").written_by == "transformers"
    assert not small.judged_in("deepseek-v3/quiet/sixteen-heads", "bfloat16")
    with pytest.raises(UnknownVariantError, match="no form 'sixteen'"):
        small.case("deepseek-v3/saved/sixteen")
