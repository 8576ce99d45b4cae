"""What quantisation loses: which checkpoints and prompts are taken, and how the loss is told."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner

from dspatch import engines
from dspatch.cli import cli
from dspatch.conformance import given, loss, oracle, small
from dspatch.engines import Observed
from dspatch.errors import CheckpointError
from dspatch.stages import show_loss

FP8 = {"quant_method": "fp8", "weight_block_size": [128, 128]}
AWQ = {"quant_method": "awq", "bits": 4, "group_size": 128, "zero_point": True}


def folder(where: Path, said: dict[str, Any] | None = None, **changes: Any) -> Path:
    where.mkdir()
    config = {**small.case("deepseek-v3").config, **changes}
    own = {"quantization_config": said} if said else {}
    (where / "config.json").write_text(json.dumps({**config, **own}))
    (where / "model.safetensors").write_bytes(b"x" * 64)
    return where


@pytest.mark.parametrize(
    ("said", "stored"),
    [
        (FP8, "fp8-blocks"),
        (AWQ, "awq"),
        ({"quant_method": "gptq", "bits": 4}, "gptq"),
        ({"quant_method": "gptq", "bits": 8}, "gptq-8"),
    ],
)
def test_a_quantised_checkpoint_says_how_it_is_stored(
    said: dict[str, Any], stored: str, tmp_path: Path
) -> None:
    found = folder(tmp_path / "one", said)
    assert given.case(found, quantised=True).stored == stored
    with pytest.raises(CheckpointError) as refused:
        given.case(found)
    assert "--quantised-against" in str(refused.value.next)


@pytest.mark.parametrize(
    "said",
    [
        {"quant_method": "fp8"},
        {**AWQ, "bits": 3},
        {"quant_method": "bitsandbytes"},
        {"quant_method": "gptq"},
    ],
)
def test_what_nobody_reads_here_is_refused(said: dict[str, Any], tmp_path: Path) -> None:
    with pytest.raises(CheckpointError, match="no checkpoint that can be proven"):
        given.case(folder(tmp_path / "one", said), quantised=True)


def test_another_model_is_not_what_it_was_made_from(tmp_path: Path) -> None:
    before = given.case(folder(tmp_path / "before"))
    loss._need_alike(before, given.case(folder(tmp_path / "same", AWQ), quantised=True))
    other = given.case(folder(tmp_path / "other", AWQ, hidden_size=512), quantised=True)
    with pytest.raises(CheckpointError, match="not the model in") as refused:
        loss._need_alike(before, other)
    assert "hidden_size is 512, not 256" in refused.value.why


def test_folders_that_are_called_alike_are_told_apart(tmp_path: Path) -> None:
    (tmp_path / "a").mkdir()
    (tmp_path / "b").mkdir()
    cases = [given.case(folder(tmp_path / each / "ck")) for each in ("a", "b")]
    alone = replace(cases[0], name="other")
    assert [case.name for case in loss._named([*cases, alone])] == ["a/ck", "b/ck", "other"]


def test_prompts_are_random_or_those_of_a_file(tmp_path: Path) -> None:
    assert set(loss.prompts_of(None, 512)) == set(small.prompts())
    file = tmp_path / "prompts.json"
    file.write_text('{"code": [[12, 7], [3, 4, 5]]}')
    assert loss.prompts_of(file, 512) == {"code": [[12, 7], [3, 4, 5]]}


@pytest.mark.parametrize(
    "text",
    [
        "no json", "[]", '{"a": []}', '{"a": [5, 6]}', '{"a": [[1]]}', '{"a#1": [[1, 2]]}', '{"a": [[1, 512]]}',
        '{"a": [[1, -1]]}', '{"a": [[1, true]]}', json.dumps({"a": [[1] * 501]}),
    ],
)  # fmt: skip
def test_a_file_without_prompts_is_refused(text: str, tmp_path: Path) -> None:
    file = tmp_path / "prompts.json"
    file.write_text(text)
    with pytest.raises(CheckpointError, match="holds no prompts"):
        loss.prompts_of(file, 512)


class Reader:
    """An oracle that reads a checkpoint as 1,000 weights and measures the same loss everywhere."""

    identity = "one"

    def need_whole(self, cases: Any) -> None:
        assert [case.name for case in cases] == ["before", "fp8", "awq"]

    def work(self, tasks: Any) -> None:
        for task in tasks:
            target = Path(task["target"])
            if task["kind"] == "loss":
                row = {"tokens": 2, "kl_mean": 0.1, "kl_p99": 0.2, "kl_max": 0.3, "top1": 0.5}
                target.write_text(json.dumps({"code": row}))
            else:
                target.mkdir(parents=True)
                (target / "model.safetensors").write_bytes(bytes(4000))


class Runner:
    def observe(self, python: Path, trials: Any, *, out: Path, **more: Any) -> list[Observed]:
        found = []
        for trial in trials:
            assert trial.prompts == {"code#0": [12, 7]}
            (out / trial.name).mkdir(parents=True)
            (out / trial.name / "result.safetensors").write_bytes(b"")
            facts = {"vllm": "0.32.0", "device": "cpu", "seconds": {}}
            path = out / trial.name / "result.safetensors"
            found.append(Observed(trial=trial, tensors=path, facts=facts))
        return found


def test_every_checkpoint_is_run_once_and_held_against_the_first(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(oracle, "ensure", lambda progress: Reader())
    monkeypatch.setattr(engines, "get", lambda name: Runner())
    (tmp_path / "prompts.json").write_text('{"code": [[12, 7]]}')
    found = loss.run(
        before=folder(tmp_path / "before"),
        after=[folder(tmp_path / "fp8", FP8), folder(tmp_path / "awq", AWQ)],
        prompts=tmp_path / "prompts.json",
        python=Path("python"),
        out=tmp_path / "out",
    )
    assert [(row.checkpoint, row.prompts, row.kl_max) for row in found.rows] == [
        ("fp8", "code", 0.3),
        ("awq", "code", 0.3),
    ]
    assert [(one.checkpoint, one.stored, one.share, one.bits) for one in found.sizes] == [
        ("before", "unquantised", 1.0, 8 * 64 / 1000),
        ("fp8", "fp8-blocks", 1.0, 8 * 64 / 1000),
        ("awq", "awq", 1.0, 8 * 64 / 1000),
    ]
    assert found.facts == {"engine": "vllm", "vllm": "0.32.0", "device": "cpu"}
    assert not list((tmp_path / "out").rglob("result.safetensors"))


def test_the_loss_is_told_by_checkpoint_and_set_of_prompts() -> None:
    row = loss.Row(
        checkpoint="fp8",
        prompts="code",
        tokens=48,
        kl_mean=0.0191,
        kl_p99=0.15,
        kl_max=0.17,
        top1=0.8333,
    )
    size = loss.Size(checkpoint="fp8", stored="fp8-blocks", bytes=8_100_000, share=0.28, bits=8.95)
    page = show_loss.markdown(
        loss.Lost(before="plain", rows=(row,), sizes=(size,), facts={}), "vllm 0.32.0"
    )
    assert "| fp8 | code | 48 | 0.019 | 0.15 | 0.17 | 83.3% |" in page
    assert "| fp8 | fp8-blocks | 8.1 | 28% | 8.95 |" in page
    odd = loss.Lost(before="plain", rows=(replace(row, prompts="a|b"),), sizes=(size,), facts={})
    assert "| fp8 | a\\|b | 48 |" in show_loss.markdown(odd, "vllm 0.32.0")


@pytest.mark.parametrize(
    "more", [[], ["--checkpoint", ".", "--selftest"], ["--checkpoint", ".", "--dtype", "float32"]]
)
def test_what_does_not_go_with_it_is_a_usage_error(more: list[str]) -> None:
    done = CliRunner().invoke(cli, ["conformance", "--quantised-against", ".", *more])
    assert done.exit_code == 2
    assert "--quantised-against FOLDER goes with" in done.output
