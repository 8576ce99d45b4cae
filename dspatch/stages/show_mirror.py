"""Mirrors as plain lines and as the objects that --json prints."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

from dspatch.console import Console
from dspatch.stages.show import relative

if TYPE_CHECKING:
    from dspatch.pins.mirror import Mirror
    from dspatch.stages.mirror import Written


def written(done: Written, console: Console) -> None:
    """A mirror that was written, and how it is used."""
    _environments(done.mirror, console)
    new = f"{len(done.added)} of them new" if done.added else "none of them new"
    console.say(f"{relative(done.folder)}: {_sum(done.mirror)}, {new}")
    console.say(f"use it alone:  DSPATCH_MIRROR={relative(done.folder)} dspatch run …")
    console.result({**_facts(done.folder, done.mirror), "added": list(done.added)})


def checked(folder: Path, mirror: Mirror, console: Console) -> None:
    """A mirror in which every file is what it was."""
    _environments(mirror, console)
    console.say(f"{relative(folder)}: {_sum(mirror)}, verified")
    console.result(_facts(folder, mirror))


def _environments(mirror: Mirror, console: Console) -> None:
    rows = [
        (name, str(len(files)), _size(sum(mirror.files[each].size for each in files)))
        for name, files in mirror.environments.items()
    ]
    console.table(("ENVIRONMENT", "PACKAGES", "SIZE"), rows)


def _facts(folder: Path, mirror: Mirror) -> dict[str, Any]:
    return {
        "folder": folder,
        "files": len(mirror.files),
        "size": mirror.size,
        "jobs": list(mirror.jobs),
        "environments": {name: list(files) for name, files in mirror.environments.items()},
        "python": mirror.python,
        "machine": mirror.machine,
    }


def _sum(mirror: Mirror) -> str:
    return f"{len(mirror.files)} files, {_size(mirror.size)}"


def _size(count: int) -> str:
    return f"{count / 1e9:.2f} GB" if count >= 1e9 else f"{count / 1e6:.1f} MB"
