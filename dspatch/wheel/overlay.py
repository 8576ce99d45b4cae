"""Build an overlay wheel: patched files into a base wheel, everything else copied raw."""

from __future__ import annotations

import zipfile
from copy import copy
from dataclasses import replace
from pathlib import Path

from dspatch.files import sha256
from dspatch.wheel.base import OpenWheel, open_wheel
from dspatch.wheel.contents import Contents, decide
from dspatch.wheel.difference import accept, compare
from dspatch.wheel.native import refuse_native
from dspatch.wheel.plan import SBOM_NAME, Ancestor, Overlay, OverlayPlan
from dspatch.wheel.rawzip import copy_member, whole_zip, write_member
from dspatch.wheel.record import Entry, entry_of, write_record
from dspatch.wheel.sbom import sbom


def build_overlay(plan: OverlayPlan, dest: Path) -> Overlay:
    """Build the wheel that `plan` describes in the folder `dest`, whole or not at all.

    The same plan gives the same bytes on any machine. Raises `NativeSourceError` when the series
    changes what must be compiled, `BaseDiffersError` when base and source differ without a declared
    reason, `WheelError` when the base or the plan is malformed.
    """
    if not plan.compiled:
        refuse_native(plan.changes.keys() - _own_sources(plan), plan.patches)
    with open_wheel(plan.base) as base:
        differences = accept(compare(base, plan.source), plan.accepted, plan.base.name)
        contents = decide(plan, base, differences)
        plan = replace(plan, ancestors=_with_base(plan, base))
        path = dest / base.name.renamed(plan.name, plan.version)
        with whole_zip(path) as target:
            _write(plan, base, contents, target)
        raw = [base.infos[old].compress_size for old in contents.kept.values()]
    return Overlay(
        path=path,
        sha256=sha256(path),
        size=path.stat().st_size,
        name=plan.name,
        version=plan.version,
        differences=differences,
        changes=contents.changes,
        rewrites=contents.rewrites,
        unpackaged=contents.unpackaged,
        raw_members=len(raw),
        raw_bytes=sum(raw),
    )


def _own_sources(plan: OverlayPlan) -> frozenset[str]:
    """The sources of our own extensions; never a file that upstream has, whose object is the base's."""
    return frozenset(path for path in plan.extension_sources if path not in plan.source)


def _with_base(plan: OverlayPlan, base: OpenWheel) -> tuple[Ancestor, ...]:
    if any(ancestor.filename == plan.base.name for ancestor in plan.ancestors):
        return plan.ancestors
    own = Ancestor(
        project=base.name.project,
        version=str(base.name.version),
        filename=plan.base.name,
        sha256=sha256(plan.base),
    )
    return (own, *plan.ancestors)


def _write(plan: OverlayPlan, base: OpenWheel, contents: Contents, target: zipfile.ZipFile) -> None:
    sbom_path = f"{contents.dist_info}/{SBOM_NAME}"
    bill = sbom(plan, contents.changes, contents.differences, contents.rewrites)
    written = {**contents.written, sbom_path: bill}
    rows: dict[str, Entry] = {}
    for name in _order(contents, base, written):
        old = contents.kept.get(name)
        if old is not None:
            info = _with_mode(base.infos[old], plan.executable.get(old))
            copy_member(base.archive, info, target, name)
            rows[name] = base.entry(old)
        else:
            mode = _mode(plan, base, name)
            write_member(target, name, written[name], epoch=plan.epoch, mode=mode)
            rows[name] = entry_of(written[name])
    record = f"{contents.dist_info}/RECORD"
    write_member(target, record, write_record(rows, record), epoch=plan.epoch, mode=0o644)


def _order(contents: Contents, base: OpenWheel, written: dict[str, bytes]) -> list[str]:
    """The base's order, then what is new; `.dist-info` last, as the wheel format recommends."""
    place = {name: at for at, name in enumerate(base.infos)}
    renamed = {new: place[old] for new, old in contents.kept.items()}
    names = {*contents.kept, *written}

    def key(name: str) -> tuple[bool, int, str]:
        at = renamed.get(name, place.get(name, len(place)))
        return name.startswith(f"{contents.dist_info}/"), at, name

    return sorted(names, key=key)


def _mode(plan: OverlayPlan, base: OpenWheel, name: str) -> int:
    if name in plan.extensions:
        return 0o755
    info = base.infos.get(name)
    was = info is not None and bool(info.external_attr >> 16 & 0o100)
    return 0o755 if plan.executable.get(name, was) else 0o644


def _with_mode(info: zipfile.ZipInfo, executable: bool | None) -> zipfile.ZipInfo:
    """A member of the base whose mode, not its bytes, the series changed."""
    if executable is None:
        return info
    info = copy(info)
    info.external_attr = (0o100755 if executable else 0o100644) << 16
    return info
