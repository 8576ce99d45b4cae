"""Build and verify an overlay on a real base wheel: BASE SDIST TARGET DEST, facts as JSON."""

from __future__ import annotations

import difflib
import json
import re
import sys
import tempfile
from pathlib import Path
from typing import cast

from dspatch.archive import extract_sdist
from dspatch.wheel.files import FolderFiles
from dspatch.wheel.names import Target, overlay_version
from dspatch.wheel.overlay import build_overlay
from dspatch.wheel.plan import Accepted, Overlay, OverlayPlan, PatchRecord
from dspatch.wheel.verify import verify

PATCHED = "vllm/platforms/cpu.py"
ADDED = "vllm/added.py"
ACCEPTED = (
    Accepted(path="*.so", reason="compiled"),
    Accepted(path="vllm/_version.py", reason="generated"),
    Accepted(path="vllm/platforms/__init__.py", reason="a community edit"),
    Accepted(path="vllm/third_party/*", reason="fetched by upstream's build"),
    Accepted(path="vllm/vllm_flash_attn/*", reason="fetched by upstream's build"),
    Accepted(path="vllm/vllm-rs", reason="compiled"),
)


def main() -> None:
    """Print what was built and how much memory it took."""
    base, sdist, target, dest = sys.argv[1:]
    with tempfile.TemporaryDirectory() as folder:
        extract_sdist(Path(sdist), Path(folder) / "tree")
        source = FolderFiles(Path(folder) / "tree")
        overlay = build_overlay(plan(Path(base), source, cast(Target, target)), Path(dest))
    print(json.dumps({**facts(overlay, Path(base)), "peak_mib": peak_mib()}))


def peak_mib() -> float:
    """This process's own peak: ru_maxrss would start from that of the process it was forked from."""
    status = Path("/proc/self/status").read_text()
    return int(re.search(r"VmHWM:\s+(\d+) kB", status)[1]) / 1024


def plan(base: Path, source: FolderFiles, target: Target) -> OverlayPlan:
    """A plan with one patch that edits a file and adds one."""
    old = source[PATCHED]
    new = old + b"\n# patched\n"
    before, after = (data.decode().splitlines(True) for data in (old, new))
    edit = "".join(difflib.unified_diff(before, after, f"a/{PATCHED}", f"b/{PATCHED}"))
    diff = f"diff --git a/{PATCHED} b/{PATCHED}\n{edit}diff --git a/{ADDED} b/{ADDED}\nnew file mode 100644\n"
    return OverlayPlan(
        base=base,
        source=source,
        changes={PATCHED: new, ADDED: b""},
        name="vllm",
        version=overlay_version("0.27.1", target, "1a2b3c4d5e6f"),
        accepted=ACCEPTED,
        patches=(
            PatchRecord(
                name="edit",
                subject="Edit",
                reason="to see it",
                upstream="never: a test",
                sha256="00" * 32,
                diff=diff,
            ),
        ),
        epoch=1_700_000_000,
    )


def facts(overlay: Overlay, base: Path) -> dict[str, object]:
    """What a test asks of the overlay."""
    kinds = {
        kind: [change.path for change in overlay.changes if change.change in names]
        for kind, names in {"patched": ("patched", "added"), "source": ("source",)}.items()
    }
    return {
        "passed": verify(overlay.path, base).passed,
        "version": overlay.version,
        "sha256": overlay.sha256,
        "raw_members": overlay.raw_members,
        **kinds,
    }


if __name__ == "__main__":
    main()
