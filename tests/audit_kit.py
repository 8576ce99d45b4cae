"""What tests of the audit share: a small engine's sources, findings about it, releases of it on an index."""

from __future__ import annotations

import base64
import hashlib
import io
import zipfile
from pathlib import Path

import pytest

from dspatch.audit import finding as findings
from tests.support import dedent
from tests.unit.index_server import Index, Served

# The releases that README says are proven; of LMDeploy, what the conversion of its models does.
PROVEN = {"vllm": ("v0.20.2", "v0.26.0", "v0.27.1", "v0.32.0"), "lmdeploy": ("v0.13.0",)}

BAD = """\
class CpuPlatform:
    @classmethod
    def backend(cls, use_mla):
        if use_mla:
            raise NotImplementedError("no latent attention")
        return "SDPA"
"""
GOOD = """\
class CpuPlatform:
    @classmethod
    def backend(cls, use_mla):
        return "CPU_MLA" if use_mla else "SDPA"
"""
MODELS = 'MODELS = {"DeepseekV2ForCausalLM": "deepseek_v2"}\n'
FILES = {"vllm/__init__.py": "", "vllm/cpu.py": BAD, "vllm/models.py": MODELS}

REFUSED = """
    id = "vllm-cpu-refused"
    title = "The CPU platform refuses latent attention"
    severity = "crash"
    what = "It raises while the engine starts."
    workaround = "VLLM_MLA_DISABLE=1"
    references = ["https://example.org/pull/1"]
    bug-cases = ["B01"]
    established = "run"
    date = 2026-11-29

    [applies]
    families = ["mla"]
    targets = ["cpu"]

    [probe]
    file = "vllm/cpu.py"
    symbol = "CpuPlatform.backend"
    contains = 'raise NotImplementedError(...)'

    [[tested]]
    rev = "v0.9.0"
    has = true

    [[tested]]
    rev = "v0.11.0"
    has = false
"""
ABSENT = """
    id = "vllm-v3-absent"
    title = "DeepSeek-V3 is not served"
    severity = "missing"
    what = "The table of models has no such architecture."
    blocks = true
    established = "read"
    date = 2026-11-29

    [applies]
    variants = ["deepseek-v3"]

    [probe]
    file = "vllm/models.py"
    symbol = "MODELS"
    no-entry = "DeepseekV3ForCausalLM"

    [[tested]]
    rev = "v0.9.0"
    has = true
"""
KERNEL = """
    id = "vllm-kernel-int32"
    title = "A kernel computes offsets in int32"
    severity = "wrong"
    what = "Rows beyond 2**31 are read from other addresses."
    established = "reported"
    date = 2026-11-29

    [applies]
    cards = ["sm80"]
    options = ["--kv-cache-dtype fp8"]

    [probe]
    file = "csrc/kernel.cu"
    regex = "int32_t offset"

    [[tested]]
    rev = "v0.9.0"
    has = true
    native = true
"""
ALL = (REFUSED, ABSENT, KERNEL)


def write(folder: Path, *texts: str, engine: str = "vllm") -> Path:
    """Write findings, each into the file of its id."""
    place = folder / engine
    place.mkdir(parents=True, exist_ok=True)
    for text in texts:
        body = dedent(text)
        name = body.split('id = "')[1].split('"')[0]
        (place / f"{name}.toml").write_text(body)
    return folder


def know(monkeypatch: pytest.MonkeyPatch, folder: Path, *texts: str) -> None:
    """Make these the only findings that there are, with nothing recorded of them."""
    from dspatch.audit import recorded

    monkeypatch.setattr(findings, "FOLDER", write(folder / "findings", *texts))
    monkeypatch.setattr(recorded, "path_of", lambda engine: folder / f"ranges-{engine}.toml")


def offer(server: Index, **releases: dict[str, str]) -> None:
    """Serve wheels of vllm, by version with `_` for its dots."""
    for version, files in releases.items():
        plain = version.removeprefix("v").replace("_", ".")
        data = wheel(plain, files)
        server.add(f"vllm-{plain}-cp38-abi3-manylinux1_x86_64.whl", Served(data=data), "vllm")


def wheel(version: str, files: dict[str, str]) -> bytes:
    """A wheel with these sources and a RECORD."""
    info = f"vllm-{version}.dist-info"
    members = {
        **files,
        f"{info}/METADATA": f"Metadata-Version: 2.1\nName: vllm\nVersion: {version}\n",
    }
    rows = [f"{path},sha256={_digest(text)},{len(text)}" for path, text in members.items()]
    members[f"{info}/RECORD"] = "\n".join([*rows, f"{info}/RECORD,,", ""])
    out = io.BytesIO()
    with zipfile.ZipFile(out, "w", zipfile.ZIP_DEFLATED) as archive:
        for path, text in members.items():
            archive.writestr(path, text)
    return out.getvalue()


def _digest(text: str) -> str:
    return base64.urlsafe_b64encode(hashlib.sha256(text.encode()).digest()).rstrip(b"=").decode()
