"""The cards that kernels are compiled for, and what ptxas made of one: registers, spills, instructions."""

from __future__ import annotations

import re
import subprocess
import tempfile
from pathlib import Path
from typing import Any

import triton

# Capability, and shared memory a block: A100, L40S and RTX cards, H100 and H200.
CARDS = {"sm_80": ((8, 0), 166912), "sm_89": ((8, 9), 101376), "sm_90": ((9, 0), 232448)}
TOOLS = Path(triton.__file__).parent / "backends" / "nvidia" / "bin"


def facts(kernel: Any) -> dict[str, Any]:
    """Of a kernel that Triton compiled for an NVIDIA card."""
    with tempfile.NamedTemporaryFile(suffix=".cubin") as cubin:
        cubin.write(kernel.asm["cubin"])
        cubin.flush()
        usage = _tool("cuobjdump", "--dump-resource-usage", cubin.name)
        code = _tool("nvdisasm", "-c", cubin.name)
    registers, stack = map(int, re.search(r"REG:(\d+) STACK:(\d+)", usage).groups())  # type: ignore[union-attr]
    return {
        "shared": kernel.metadata.shared,
        "registers": registers,
        "stack": stack,
        "wgmma": len(re.findall(r"\bHGMMA\b", code)),
        "mma": len(re.findall(r"\bHMMA\b", code)),
        "wgmma_waits": len(re.findall(r"WARPGROUP\.DEPBAR", code)),
        "asynchronous_copies": len(re.findall(r"\b(?:LDGSTS|UTMALDG)\b", code)),
        "copies_in_flight": [int(n) for n in re.findall(r"async_wait .*?num = (\d+)", kernel.asm["ttgir"])],
    }  # fmt: skip


def _tool(name: str, *arguments: str) -> str:
    return subprocess.run(
        [TOOLS / name, *arguments], capture_output=True, text=True, check=True
    ).stdout
