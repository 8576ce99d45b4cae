import copy
import json
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dspatch import variants
from dspatch.errors import UnknownVariantError
from dspatch.identify import MAY_BE_MISSING, identify

CONFIGS = Path(__file__).parents[1] / "data" / "configs"
PUBLISHED = {
    "deepseek-llm-7b-chat": "deepseek-llm-7b",
    "deepseek-moe-16b": "deepseek-moe-16b",
    "deepseek-v2-lite": "deepseek-v2-lite",
    "deepseek-v2": "deepseek-v2",
    "deepseek-v2.5": "deepseek-v2.5",
    "deepseek-v3": "deepseek-v3",
    "deepseek-r1": "deepseek-r1",
    "deepseek-v3.1": "deepseek-v3.1",
    "deepseek-v3.2": "deepseek-v3.2",
}


def config(name: str):
    return json.loads((CONFIGS / f"{name}.json").read_text())


# -- facts -------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("name", "latent_bytes", "ratio"),
    [
        ("deepseek-v2-lite", 31_104, 8.89),
        ("deepseek-v2", 69_120, 71.11),
        ("deepseek-v3", 70_272, 71.11),
    ],
)
def test_cache_bytes_per_token(name, latent_bytes, ratio):
    variant = variants.variant(name)
    assert variant.latent_bytes_per_token() == latent_bytes
    assert variant.full_bytes_per_token() / latent_bytes == pytest.approx(ratio, abs=0.01)


@pytest.mark.parametrize(
    ("name", "squared"),
    [("deepseek-v2-lite", 1.58963), ("deepseek-v2", 1.58963), ("deepseek-v3", 1.87385)],
)
def test_softmax_scale_has_the_square_of_yarns_factor(name, squared):
    variant = variants.variant(name)
    assert variant.softmax_mscale**2 == pytest.approx(squared, abs=1e-5)
    assert variant.softmax_scale == pytest.approx(192**-0.5 * squared, rel=1e-5)


def test_plain_rope_leaves_the_softmax_scale_alone():
    assert variants.variant("deepseek-llm-7b").softmax_scale == 128**-0.5


@pytest.mark.parametrize(
    ("name", "families"),
    [
        ("deepseek-llm-7b", {"mha", "dense", "plain-rope"}),
        ("deepseek-llm-67b", {"gqa", "dense", "plain-rope"}),
        ("deepseek-moe-16b", {"mha", "moe", "softmax-router", "plain-rope"}),
        ("deepseek-v2-lite", {"mla", "moe", "softmax-router", "yarn"}),
        ("deepseek-v3", {"mla", "moe", "sigmoid-router", "yarn", "fp8", "mtp"}),
        ("deepseek-v3.2", {"mla", "moe", "sigmoid-router", "yarn", "fp8", "mtp", "sparse"}),
    ],
)
def test_families(name, families):
    assert variants.variant(name).families == families


def test_a_model_without_a_latent_cache_has_no_latent_bytes():
    with pytest.raises(AttributeError, match="no latent attention"):
        variants.variant("deepseek-llm-7b").latent_bytes_per_token()


def test_a_variant_like_another_keeps_the_facts_it_does_not_give():
    lite, v25, v31 = map(variants.variant, ("deepseek-v2-lite", "deepseek-v2.5", "deepseek-v3.1"))
    assert v25.rope.original_max_position_embeddings == lite.rope.original_max_position_embeddings
    assert v31.quantization.fmt == "e4m3"
    assert v31.quantization.scale_fmt == "ue8m0"
    assert v31.aliases == ()


def test_variants_that_no_config_tells_apart():
    assert variants.twins(variants.variant("deepseek-v3")) == ("deepseek-r1",)
    assert variants.twins(variants.variant("deepseek-v2.5")) == ("deepseek-coder-v2",)
    assert variants.twins(variants.variant("deepseek-v2")) == ()


# -- names -------------------------------------------------------------------------------------


def test_the_family_of_a_job_leaves_out_what_a_job_has_to_name():
    assert len(variants.names()) == 11
    assert "deepseek-v3.2" not in variants.names()
    assert variants.variant("deepseek-v3.2").by_name


@pytest.mark.parametrize(
    ("said", "name"),
    [
        ("deepseek-ai/DeepSeek-V2-Lite-Chat", "deepseek-v2-lite"),
        ("DeepSeek-R1-0528", "deepseek-r1"),
        ("deepseek-7b-base", "deepseek-llm-7b"),
        ("deepseek-coder-v2-lite-instruct", "deepseek-coder-v2-lite"),
    ],
)
def test_the_names_that_people_use(said, name):
    assert variants.variant(said).name == name


@pytest.mark.parametrize(
    ("name", "nearest"),
    [
        ("deepseek-13b", "deepseek-llm-7b"),
        ("deepseek-30b", "deepseek-llm-67b"),
        ("DeepSeek-V2-13B", "deepseek-v2-lite"),
        ("deepseek-v3-lite", "deepseek-v3"),
    ],
)
def test_names_that_never_existed_are_refused_with_why_and_the_nearest(name, nearest):
    with pytest.raises(UnknownVariantError, match="was ever published") as caught:
        variants.variant(name)
    assert f"nearest: {nearest}" in caught.value.why
    assert nearest in caught.value.next


def test_every_never_published_name_is_refused_and_its_nearest_exist():
    for name, row in variants._data().data[variants.NEVER].items():
        with pytest.raises(UnknownVariantError):
            variants.variant(name)
        assert [variants.variant(near).name for near in row["nearest"]] == row["nearest"]


def test_a_form_of_a_small_model_is_sent_to_conformance():
    with pytest.raises(UnknownVariantError, match="which only conformance makes") as caught:
        variants.variant("deepseek-v3.2/saved")
    assert caught.value.next.startswith("use --variant deepseek-v3.2, then dspatch conformance")


def test_a_mistyped_name_gets_the_nearest():
    with pytest.raises(UnknownVariantError, match="knows no DeepSeek model") as caught:
        variants.variant("deepsek-v2-lite")
    assert "nearest: deepseek-v2-lite" in caught.value.why


# -- identify ----------------------------------------------------------------------------------


@pytest.mark.parametrize(("file", "name"), PUBLISHED.items())
def test_published_configs_identify_to_themselves(file, name):
    found = identify(config(file))
    assert name in (found.name, *variants.twins(found))


@pytest.mark.parametrize("name", ["deepseek-v2-lite", "deepseek-v2", "deepseek-v3"])
def test_configs_as_transformers_5_writes_them(name):
    written = config(f"transformers5/{name}")
    assert "rope_parameters" in written
    assert "rope_scaling" not in written
    assert identify(written).name == name
    for key in ("topk_method", "scoring_func", "num_nextn_predict_layers", "moe_layer_freq"):
        written.pop(key, None)
    assert identify(written).name == name


def test_a_checkpoint_converted_to_bf16_is_still_its_model():
    changed = config("deepseek-v3")
    del changed["quantization_config"]
    assert identify(changed).name == "deepseek-v3"


def test_a_scale_format_makes_v3_1_of_v3():
    changed = config("deepseek-v3")
    changed["quantization_config"]["scale_fmt"] = "ue8m0"
    assert identify(changed).name == "deepseek-v3.1"


@pytest.mark.parametrize(
    ("file", "fields"),
    [
        ("deepseek-v4-flash", ["architecture", "num_key_value_heads", "kv_lora_rank"]),
        ("kimi-k2-instruct", ["num_attention_heads", "vocab_size", "rope.theta", "n_group"]),
        ("moonlight-16b-a3b-instruct", ["architecture", "rope.type", "rms_norm_eps"]),
        ("partial/deepseek-coder-v2-instruct", ["rope.type", "rope.mscale"]),
        ("partial/deepseek-coder-v2-lite-instruct", ["q_lora_rank", "rope.type"]),
    ],
)
def test_other_and_incomplete_configs_are_refused_with_the_differing_fields(file, fields):
    with pytest.raises(UnknownVariantError, match="the nearest is deepseek-") as caught:
        identify(config(file))
    for field in fields:
        assert f" {field}: " in caught.value.why


@pytest.mark.parametrize("value", [{}, {"rope_scaling": "yarn", "architectures": []}])
def test_a_config_that_says_nothing_is_refused(value):
    with pytest.raises(UnknownVariantError, match="no published DeepSeek model"):
        identify(value)


PLACES = {"rope": "rope_scaling", "quantization": "quantization_config"}


def put(changed, field, value):
    """Write a fact where config.json has it."""
    group, _, key = field.partition(".")
    if field == "architecture":
        changed["architectures"] = [value]
    elif field == "rope.theta":
        changed["rope_theta"] = value
    elif key:
        changed[PLACES[group]] = {**(changed.get(PLACES[group]) or {}), key: value}
    else:
        changed[field] = value


@st.composite
def changed_configs(draw):
    """A published config with one fact changed to what no published model has."""
    file = draw(st.sampled_from(sorted(PUBLISHED)))
    facts = variants.variant(PUBLISHED[file]).facts
    field = draw(st.sampled_from(sorted(facts)))
    said = facts[field]
    taken = [each.facts.get(field) for each in variants.table().values()]
    if isinstance(said, bool):
        value = not said
    elif isinstance(said, str):
        value = said + "-other"
    else:
        value = draw(st.integers(3, 10**6).filter(lambda number: number not in taken))
    changed = copy.deepcopy(config(file))
    put(changed, field, value)
    return changed, field


@given(changed_configs())
def test_one_changed_fact_is_refused_and_named(case):
    changed, field = case
    with pytest.raises(UnknownVariantError) as caught:
        identify(changed)
    assert f" {field}: " in caught.value.why


def keys_that_must_be_there():
    for file, name in PUBLISHED.items():
        for field in variants.variant(name).facts:
            if field in config(file) and field not in MAY_BE_MISSING:
                yield file, field


@pytest.mark.parametrize(("file", "field"), list(keys_that_must_be_there()))
def test_one_missing_fact_is_refused_and_named(file, field):
    changed = config(file)
    said = changed.pop(field)
    if said == 1.0 and field == "routed_scaling_factor":  # what every model class takes anyway
        assert identify(changed).name == PUBLISHED[file]
        return
    with pytest.raises(UnknownVariantError) as caught:
        identify(changed)
    assert f" {field}: 'absent'" in caught.value.why
