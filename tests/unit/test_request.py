"""Requests: names, pins and config files looked up before anything is fetched."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from dspatch import variants
from dspatch.commands import words
from dspatch.errors import UnknownVariantError
from dspatch.stages.request import Request, known, resolve, served

CONFIGS = Path(__file__).parents[1] / "data" / "configs"


def test_no_variant_is_the_whole_family() -> None:
    assert [v.name for v in served(())] == list(variants.names())


def test_a_variant_is_named_or_shown_by_its_config(tmp_path: Path) -> None:
    published = CONFIGS / "deepseek-v2-lite.json"
    (tmp_path / "config.json").write_bytes(published.read_bytes())
    names = ("deepseek-v2-lite", str(published), str(tmp_path))
    assert [v.name for v in served(names)] == ["deepseek-v2-lite"]
    resolved = resolve(Request(engine="vllm", rev="v0.27.1", variants=(str(published),)))
    assert str(resolved.job.id) == "vllm-0.27.1-cpu-deepseek-v2-lite"


def test_a_config_that_matches_none_names_the_fields(tmp_path: Path) -> None:
    config = json.loads((CONFIGS / "deepseek-v2-lite.json").read_text())
    path = tmp_path / "config.json"
    path.write_text(json.dumps({**config, "kv_lora_rank": 384}))
    with pytest.raises(UnknownVariantError) as error:
        served((str(path),))
    assert "kv_lora_rank" in f"{error.value.what} {error.value.why}"


@pytest.mark.parametrize("text", [None, "{", "[]"])
def test_a_file_that_is_no_config_is_an_error(text: str | None, tmp_path: Path) -> None:
    path = tmp_path / "config.json"
    if text is not None:
        path.write_text(text)
    with pytest.raises(UnknownVariantError):
        served((str(path),))


def test_what_looks_at_every_variant_looks_at_those_too_that_a_job_has_to_name() -> None:
    assert [v.name for v in known(())] == list(variants.table())
    assert known(("deepseek-v3",)) == served(("deepseek-v3",))


def test_conformance_finds_the_job_of_a_form_or_of_a_config() -> None:
    shown = str(CONFIGS / "deepseek-v2-lite.json")
    assert words.models((shown, "deepseek-v3/fp8")) == ("deepseek-v2-lite", "deepseek-v3/fp8")
    asked = {"engine": None, "rev": "v0.32.0", "target": "cpu", "variants": ("deepseek-v3/fp8",)}
    assert str(words.job_to_prove(asked).id) == "vllm-0.32.0-cpu-deepseek"
    own = words.job({**asked, "variants": ("deepseek-v3",)})
    own.receipt("apply").parent.mkdir(parents=True)
    own.receipt("apply").write_text("{}")
    assert words.job_to_prove(asked).id == own.id
