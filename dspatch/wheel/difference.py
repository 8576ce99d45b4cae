"""Where a base wheel is not its pinned source, and whether every such place is accounted for."""

from __future__ import annotations

import hashlib
import zlib
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import replace

from dspatch.errors import BaseDiffersError
from dspatch.wheel.base import OpenWheel
from dspatch.wheel.plan import Accepted, Difference

_SHOWN = 20


def compare(base: OpenWheel, source: Mapping[str, bytes]) -> tuple[Difference, ...]:
    """Every file of the package that only one of the two has, or that is not the same in both."""
    return tuple(sorted(_compare(base, source), key=lambda difference: difference.path))


def accept(
    differences: Iterable[Difference], accepted: Iterable[Accepted], base_name: str
) -> tuple[Difference, ...]:
    """The differences with the reason of the first entry that matches each.

    Raises `BaseDiffersError` naming those that no entry matches.
    """
    rules = tuple(accepted)
    explained = tuple(_explain(difference, rules) for difference in differences)
    if unexplained := [item for item in explained if not item.reason]:
        lines = [f"{item.kind:>11}  {item.path}" for item in unexplained[:_SHOWN]]
        if more := len(unexplained) - _SHOWN:
            lines += [f"… and {more} more"] * (more > 0)
        raise BaseDiffersError(
            f"{base_name} differs from the pinned source in {len(unexplained)} unexplained files.",
            why="\n        ".join(["nobody has declared a reason for", *lines]),
            next="look at each; then accept it with a reason in the pin, or pin another base wheel",
        )
    return explained


def same_as(base: OpenWheel, path: str, data: bytes) -> bool:
    """Whether a member of the base has exactly these bytes, without inflating it.

    CRC and size are compared first; they differ where the bytes do, at a tenth of a hash's cost.
    """
    info = base.infos[path]
    if info.file_size != len(data) or zlib.crc32(data) != info.CRC:
        return False
    return base.entry(path).sha256 == hashlib.sha256(data).hexdigest()


def _compare(base: OpenWheel, source: Mapping[str, bytes]) -> Iterator[Difference]:
    roots = base.roots
    for path in base.infos:
        if not base.importable(path):
            continue
        data = source.get(path)
        if data is None:
            yield Difference(path=path, kind="base-only")
        elif not same_as(base, path, data):
            yield Difference(path=path, kind="differs")
    for path in source:
        if path.partition("/")[0] in roots and path not in base.infos:
            yield Difference(path=path, kind="source-only")


def _explain(difference: Difference, accepted: tuple[Accepted, ...]) -> Difference:
    for rule in accepted:
        if rule.covers(difference.path):
            drop = rule.drop and difference.kind == "base-only"
            return replace(difference, rule=rule.path, reason=rule.reason, drop=drop)
    return difference
