"""Refuse a patched tree on which upstream symbols are not what the patches were written for."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from dspatch.carry import drift, usesfile
from dspatch.carry.drift import Drift
from dspatch.carry.modules import Read
from dspatch.carry.names import Names
from dspatch.errors import SignatureDriftError
from dspatch.patchfile import Patch, Waived


def drifts(patch: Patch, names: Names) -> tuple[Drift, ...]:
    """What has drifted under a patch and is not waived; nothing where it has recorded no uses."""
    recorded = usesfile.read(patch.folder)
    if recorded is None:
        return ()
    found = drift.check(recorded.uses, names)
    return tuple(one for one in found if not any(waives(w, one) for w in patch.waived))


def waives(waived: Waived, found: Drift) -> bool:
    """Whether a waiver is about a drift: its symbol, and its shape unless it leaves that open."""
    return waived.symbol == found.symbol and waived.shape in (None, found.now)


def check(where: str, patches: Iterable[Patch], read: Read) -> None:
    """Raise `SignatureDriftError` that tells every drift under the patches of a tree.

    where: the engine and revision, as the error names them. read: the files of the patched tree.
    """
    names = Names(read)
    found = {patch: drifts(patch, names) for patch in patches}
    failed = {patch: some for patch, some in found.items() if some}
    if failed:
        raise _error(where, failed)


def _error(where: str, failed: Mapping[Patch, tuple[Drift, ...]]) -> SignatureDriftError:
    names = ", ".join(patch.name for patch in failed)
    first = next(iter(failed.values()))[0]
    total = sum(map(len, failed.values()))
    symbols = "1 upstream symbol" if total == 1 else f"{total} upstream symbols"
    details = [
        f"{patch.name}, written for {patch.written_for}: {one.words}"
        for patch, some in failed.items()
        for one in some
    ]
    return SignatureDriftError(
        f"{where}: {names} would apply, but {symbols} used there changed; nothing was applied.",
        why="\n".join(details).replace("\n", "\n        "),
        next="mend the patch; if the change does not matter to it, say why in its patch.toml:\n"
        f'        [[waive]] symbol = "{first.symbol}", shape = "{first.now}", reason = "..."',
    )
