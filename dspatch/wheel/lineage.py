"""The checks of a wheel's descent: its pedigree against its members, these against its base."""

from __future__ import annotations

from collections.abc import Callable, Iterator

from packaging.utils import canonicalize_name

from dspatch.files import sha256
from dspatch.wheel.base import Members, OpenWheel, in_data, measure
from dspatch.wheel.fault import Fault, listed
from dspatch.wheel.native import diff_paths
from dspatch.wheel.pedigree import Pedigree, stated_pedigree
from dspatch.wheel.plan import SBOM_NAME, MemberChange
from dspatch.wheel.rawzip import same_raw


def pedigree(wheel: Members) -> Iterator[Fault]:
    """The bill of materials names this wheel, and its hashes, patches and members agree."""
    stated = stated_pedigree(wheel)
    member = f"{wheel.dist_info}/{SBOM_NAME}"
    own = (canonicalize_name(wheel.name.project), str(wheel.name.version))
    if (canonicalize_name(stated.name), stated.version) != own:
        got = f"{stated.name} {stated.version}"
        yield Fault(member=member, expected=" ".join(own), got=got)
    for patch in stated.patches:
        if patch.diff_sha256 != patch.stated_sha256:
            where = f"{member}, diff of {patch.name}"
            yield Fault(member=where, expected=patch.stated_sha256, got=patch.diff_sha256)
    yield from _patch_faults(wheel, stated)
    for change in stated.changes.values():
        yield from _declared_faults(wheel, change)


def against(base: OpenWheel) -> Callable[[Members], Iterator[Fault]]:
    """The check that a wheel is `base` except where its pedigree declares a change."""

    def check(wheel: Members) -> Iterator[Fault]:
        stated = stated_pedigree(wheel)
        digest = sha256(base.path)
        if digest not in stated.ancestors.values():
            known = listed(stated.ancestors.values())
            yield Fault(member=base.path.name, expected=known, got=digest)
        implied = {f"{wheel.dist_info}/{name}" for name in ("RECORD", SBOM_NAME)}
        implied |= wheel.generated
        own = wheel.dist_info.removesuffix(".dist-info")
        twins = {base.renamed(path, own): path for path in _comparable(base, wheel)}
        for path in sorted((wheel.infos.keys() | twins.keys() | stated.changes.keys()) - implied):
            change = stated.changes.get(path)
            expected = _EXPECTED[change.change if change else None]
            got = _relation(wheel, path, base, twins.get(path))
            if got not in expected:
                yield Fault(member=path, expected=" or ".join(expected), got=got)

    return check


_EQUAL, _OTHER, _NEW, _GONE = (
    "the base wheel's bytes",
    "other bytes than the base wheel's",
    "a member that the base wheel lacks",
    "no such member",
)
_EXPECTED: dict[str | None, tuple[str, ...]] = {
    None: (_EQUAL,),
    "same": (_EQUAL,),
    "patched": (_OTHER,),
    "source": (_OTHER,),
    "added": (_NEW,),
    "extension": (_NEW,),
    "removed": (_GONE,),
    # A version file or WHEEL may already say what it is made to say.
    "identity": (_OTHER, _EQUAL),
}


def _comparable(base: OpenWheel, wheel: Members) -> Iterator[str]:
    """The base's members, but for those of `.data` that an installer puts elsewhere."""
    packed = isinstance(wheel, OpenWheel)
    return (path for path in base.infos if packed or not in_data(path))


def _relation(wheel: Members, path: str, base: OpenWheel, twin: str | None) -> str:
    if path not in wheel.infos:
        return _GONE
    if twin is None:
        return _NEW
    return _EQUAL if _same_contents(wheel, path, base, twin) else _OTHER


def _same_contents(wheel: Members, path: str, base: OpenWheel, twin: str) -> bool:
    if not isinstance(wheel, OpenWheel):
        return wheel.entry(path) == base.entry(twin)
    mine, theirs = wheel.infos[path], base.infos[twin]
    if (mine.file_size, mine.CRC) != (theirs.file_size, theirs.CRC):
        return False
    if same_raw(wheel.archive, mine, base.archive, theirs):
        return True
    return measure(wheel.archive, mine) == measure(base.archive, theirs)


def _patch_faults(wheel: Members, stated: Pedigree) -> Iterator[Fault]:
    """Each patch's diff and the members declared changed by it are the same files."""
    roots = wheel.roots | {path.partition("/")[0] for path in stated.changes}
    for patch in stated.patches:
        told = {path for path in diff_paths(patch.diff) if path.partition("/")[0] in roots}
        declared = {path for path, item in stated.changes.items() if patch.name in item.patches}
        for path in sorted(told.symmetric_difference(declared)):
            by = ("its diff", "its members") if path in told else ("its members", "its diff")
            yield Fault(member=path, expected=f"{patch.name} in {by[1]}", got=f"only in {by[0]}")


def _declared_faults(wheel: Members, change: MemberChange) -> Iterator[Fault]:
    row = wheel.record.get(change.path)
    if change.change == "removed":
        if change.path in wheel.infos:
            yield Fault(member=change.path, expected="no such member", got="one, declared removed")
    elif row is None or row.sha256 != change.sha256:
        got = row.sha256 if row else "no such member"
        yield Fault(member=change.path, expected=f"sha256 {change.sha256}", got=got)
    if change.change in ("patched", "added", "same") and not change.patches:
        yield Fault(member=change.path, expected="a patch that explains it", got="none")
