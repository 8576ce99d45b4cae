"""The checks of an installed wheel that a packed one needs not: what lies in its folders."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator

from dspatch.wheel import lineage
from dspatch.wheel.base import OpenWheel, in_data
from dspatch.wheel.fault import Fault
from dspatch.wheel.installed import Installed, named, recorded
from dspatch.wheel.record import Entry

Check = Callable[[Installed], Iterable[Fault]]


def record(wheel: Installed) -> Iterator[Fault]:
    """Every file has RECORD's hash and size; none is missing, and none is there that RECORD lacks."""
    own = f"{wheel.dist_info}/RECORD"
    for path, row in wheel.record.items():
        if path == own or (row is None and path.endswith(".pyc")):
            continue
        if not (wheel.site / path).is_file():
            yield Fault(member=path, expected=_told(row), got="no such file")
        elif row is not None and (found := wheel.entry(path)) != row:
            yield Fault(member=path, expected=_told(row), got=_told(found))
    extra = sorted(wheel.infos.keys() - wheel.record.keys())
    others = _of_others(wheel) if extra else set()
    for path in extra:
        if path not in others:
            yield Fault(member=path, expected="no such file, as RECORD names none", got="a file")


def delta(wheel: Installed) -> Iterator[Fault]:
    """No delta was stopped while it changed the installation."""
    for place in sorted(wheel.site.glob(".*.dspatch-delta/journal.json")):
        member = place.parent.name
        yield Fault(
            member=member, expected="a finished delta", got="one that was stopped; run it again"
        )


def unpatched(base: OpenWheel) -> Check:
    """The check that an installation without a pedigree is a wheel, file by file."""

    def check(wheel: Installed) -> Iterator[Fault]:
        own = {f"{base.dist_info}/RECORD", *wheel.generated}
        for path in sorted((wheel.infos.keys() | base.infos.keys()) - own):
            expected = _told(base.entry(path)) if path in base.infos else "no such file"
            got = _told(wheel.entry(path)) if path in wheel.infos else "no such file"
            # What goes to other folders than site-packages, RECORD alone can tell.
            if expected != got and not in_data(path):
                yield Fault(member=path, expected=expected, got=got)

    return check


def against(wheel: Installed, base: OpenWheel) -> Check:
    """The check of an installation against its base wheel, with the pedigree that it has or without."""
    return lineage.against(base) if wheel.patched else unpatched(base)


def _of_others(wheel: Installed) -> set[str]:
    """The files of all other wheels in the site-packages, which may share a folder.

    What else their RECORDs say is not this wheel's fault.
    """
    others = (folder for folder, _ in named(wheel.site) if folder != wheel.path)
    return {path for folder in others for path in recorded(folder)}


def _told(row: Entry | None) -> str:
    return "a file" if row is None else f"sha256 {row.sha256} of {row.size} bytes"
