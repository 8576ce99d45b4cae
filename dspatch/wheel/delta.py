"""Build a delta: one file that turns an installed base wheel into an overlay, and back."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from dspatch import __version__
from dspatch.errors import DeltaError
from dspatch.files import sha256
from dspatch.wheel import deltaedits
from dspatch.wheel.applier import manifest
from dspatch.wheel.applier import record as installed_record
from dspatch.wheel.base import OpenWheel, in_data, open_wheel
from dspatch.wheel.pedigree import stated_pedigree
from dspatch.wheel.rawzip import whole_zip, write_member

APPLIER = Path(manifest.__file__).parent
FOLDER = "dspatch_delta"
SUFFIX = ".delta.pyz"
_MAIN = f"from {FOLDER}.command import main\n\nraise SystemExit(main())\n"
# Whoever runs it may have no `python`, and runs it by the Python that has the engine.
_SHEBANG = b"#!/usr/bin/env python3\n"


@dataclass(frozen=True, kw_only=True)
class Delta:
    """A delta file, and how many files it changes, adds and removes."""

    path: Path
    sha256: str
    size: int
    changed: int
    added: int
    removed: int

    def as_dict(self) -> dict[str, object]:
        """The delta as receipts and `--json` tell it."""
        return {**asdict(self), "path": self.path.name}


def build_delta(base: Path, overlay: Path, dest: Path, *, epoch: int) -> Delta:
    """Write the delta between two wheels into the folder `dest`, whole or not at all.

    The same wheels give the same bytes on any machine. Raises `DeltaError` when a file differs that
    does not lie in the package, `WheelError` when a wheel is malformed.
    """
    with open_wheel(base) as old, open_wheel(overlay) as new:
        own = _identity(new)
        blobs: dict[str, bytes] = {}
        rows = [{**row, "identity": row["path"] in own} for row in _files(old, new, blobs)]
        content = {
            "format": 1,
            "dspatch": __version__,
            "base": _side(old),
            "overlay": _side(new),
            "files": rows,
        }
        path = dest / f"{new.dist_info.removesuffix('.dist-info')}{SUFFIX}"
    text = (json.dumps(content, indent=1, sort_keys=True) + "\n").encode()
    members = {f"{FOLDER}/{manifest.MANIFEST}": text}
    members |= {f"{FOLDER}/{name}": data for name, data in blobs.items()}
    _write(path, members, epoch)
    return Delta(
        path=path,
        sha256=sha256(path),
        size=path.stat().st_size,
        changed=sum(1 for row in rows if row["base"] and row["overlay"]),
        added=sum(1 for row in rows if not row["base"]),
        removed=sum(1 for row in rows if not row["overlay"]),
    )


def _files(old: OpenWheel, new: OpenWheel, blobs: dict[str, bytes]) -> Iterator[dict[str, Any]]:
    """A row for each file that is not the same in both wheels; RECORD is made where it is installed."""
    before, after = _neutral(old), _neutral(new)
    for path in sorted((before.keys() | after.keys()) - {f"{manifest.INFO}/RECORD"}):
        here, there = before.get(path), after.get(path)
        left = old.entry(here) if here else None
        right = new.entry(there) if there else None
        if left == right:
            continue
        if in_data(path):
            raise DeltaError(
                f"{path} differs, and an installer puts it outside of site-packages.",
                next="install the overlay wheel itself",
            )
        one = old.read(here) if here else None
        other = new.read(there) if there else None
        mode = (new if there else old).infos[there or here or ""].external_attr >> 16
        yield {
            "path": path,
            "base": left.sha256 if left else None,
            "overlay": right.sha256 if right else None,
            "to-overlay": _recipe(one, other, blobs),
            "to-base": _recipe(other, one, blobs),
            "executable": bool(mode & 0o100),
        }


def _recipe(
    source: bytes | None, result: bytes | None, blobs: dict[str, bytes]
) -> dict[str, Any] | None:
    if result is None:
        return None
    if source is not None:
        pieces = deltaedits.pieces(source, result)
        if len(json.dumps(pieces)) < len(result):
            return {"pieces": pieces}
    name = f"blobs/{len(blobs)}"
    blobs[name] = result
    return {"blob": name}


def _identity(overlay: OpenWheel) -> set[str]:
    """The files that state name, version and build: those that the bill of materials calls so."""
    changes = stated_pedigree(overlay).changes.values()
    stated = {change.path for change in changes if change.change == "identity"}
    return {overlay.renamed(path, "") for path in stated & overlay.infos.keys()}


def _neutral(wheel: OpenWheel) -> dict[str, str]:
    """Members by a name that does not depend on the version: `.dist-info/METADATA`."""
    return {wheel.renamed(path, ""): path for path in wheel.infos}


def _side(wheel: OpenWheel) -> dict[str, str]:
    record = installed_record.read(wheel.read_info("RECORD"))
    return asdict(
        manifest.Side(
            project=wheel.name.project,
            version=str(wheel.name.version),
            info=wheel.dist_info,
            members=installed_record.members_hash(record.by_path),
            wheel=wheel.path.name,
        )
    )


def _write(path: Path, members: Mapping[str, bytes], epoch: int) -> None:
    applier = {f"{FOLDER}/{each.name}": each.read_bytes() for each in APPLIER.glob("*.py")}
    whole = {"__main__.py": _MAIN.encode(), **applier, **members}
    with whole_zip(path, head=_SHEBANG, mode=0o755) as target:
        for name in sorted(whole):
            write_member(target, name, whole[name], epoch=epoch, mode=0o644)
