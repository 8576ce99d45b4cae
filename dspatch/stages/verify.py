"""`dspatch wheel verify`: a wheel held against its record, its pedigree and its base wheel."""

from __future__ import annotations

from pathlib import Path

from dspatch import job, receipt
from dspatch.console import Console
from dspatch.index import download
from dspatch.wheel.verify import Verification, verify


def run(path: str | None, base_wheel: str | None, console: Console) -> Verification:
    """Verify a wheel; without a path, the wheel of the job applied last, and against its base.

    Raises `WheelVerifyError` that names every faulty member, `NoJobError` when there is no wheel.
    """
    if path is not None:
        return verify(Path(path), Path(base_wheel) if base_wheel else None)
    last = job.last()
    content = receipt.require(last, "build-wheel")
    base = content["base"]
    with console.progress(f"fetching {base['filename']}") as progress:
        original = download(
            base["project"], base["filename"], base["sha256"], size=base["size"], progress=progress
        )
    return verify(last.dist / content["wheel"]["path"], original)
