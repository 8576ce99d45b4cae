"""What a tied DeepSeek checkpoint loads: its embedding twice, an output of its own never."""

from __future__ import annotations

from types import SimpleNamespace

import pytest

from tests.unit.templatekit import rendered

EMBEDDING = ("model.embed_tokens.weight", "e")
WEIGHTS = [EMBEDDING, ("model.norm.weight", "n"), ("lm_head.weight", "h")]


@pytest.mark.parametrize(
    ("config", "loaded"),
    [
        (SimpleNamespace(tie_word_embeddings=True), [EMBEDDING, ("lm_head.weight", "e"), WEIGHTS[1]]),
        (SimpleNamespace(tie_word_embeddings=False), WEIGHTS),
        (SimpleNamespace(), WEIGHTS),
    ],
)  # fmt: skip
def test_the_output_is_the_embedding_where_the_config_says_so(
    config: SimpleNamespace, loaded: list[tuple[str, str]]
) -> None:
    module = rendered("models/deepseek_tied", "tied_embeddings")
    assert list(module.tied(WEIGHTS, config)) == loaded
