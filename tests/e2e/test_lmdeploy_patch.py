"""LMDeploy's conversion of MLA layers, as released and patched, run with the oracle's PyTorch."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from dspatch import edits, pipconfig, process, series
from dspatch.carry.remote import releases, remote
from dspatch.carry.remote.ranges import Traffic
from dspatch.conformance import oracle

pytestmark = pytest.mark.e2e

MODULE = "lmdeploy/turbomind/deploy/module.py"
WORKER = Path(__file__).with_name("lmdeploy_export.py")
# LlamaAttentionWeight registers them so for 16 heads of kv_lora_rank + qk_rope_dim = 576.
COMMON = {"kv_a_proj": [2048, 576], "wo": [9216, 2048]}
LITE = {"q_proj": [2048, 9216], **COMMON}
WITH_LORA = {"q_a_proj": [2048, 1536], "q_b_proj": [1536, 9216], **COMMON}


def source(rev: str) -> bytes:
    release = releases.published("lmdeploy").release(rev)
    assert release is not None
    assert release.wheel is not None
    with pipconfig.client(pipconfig.load()) as client:
        data = remote.open_wheel("lmdeploy", release.wheel, client, Traffic()).read(MODULE)
    assert data is not None
    return data


def patched(data: bytes) -> bytes:
    for spec in series.layered("lmdeploy").patch("turbomind-mla-q-proj").edits:
        edit = edits.Edit(
            file=spec.file, verb=spec.verb, symbol=spec.symbol, find=spec.find, text=spec.text
        )
        data = edits.apply_edit(data, edit)
    return data


def exported(data: bytes, lora: int, folder: Path) -> dict[str, Any]:
    path = folder / "module.py"
    path.write_bytes(data)
    python = oracle.ensure().python
    done = process.run([python, str(WORKER), str(path), str(lora)])
    return json.loads(done.stdout)


@pytest.mark.parametrize("rev", ["v0.12.2", "v0.12.3", "v0.13.0"])
def test_a_layer_without_q_lora_is_converted_only_when_patched(rev: str, tmp_path: Path) -> None:
    stock = source(rev)
    assert "is invalid for input of size 4718592" in exported(stock, 0, tmp_path)["error"]
    lite = exported(patched(stock), 0, tmp_path)
    assert lite["shapes"] == LITE
    assert max(lite["scores"], lite["output"]) < 1e-11


@pytest.mark.parametrize("rev", ["v0.12.2", "v0.13.0"])
def test_a_layer_with_q_lora_is_converted_as_before(rev: str, tmp_path: Path) -> None:
    stock = source(rev)
    before, after = exported(stock, 1536, tmp_path), exported(patched(stock), 1536, tmp_path)
    assert before == after
    assert after["shapes"] == WITH_LORA
    assert max(after["scores"], after["output"]) < 1e-11
