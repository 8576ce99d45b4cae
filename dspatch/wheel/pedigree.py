"""Read an overlay's bill of materials back: which members it declares changed, and by what."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, get_args

from dspatch.errors import WheelError
from dspatch.wheel.base import Members
from dspatch.wheel.plan import SBOM_NAME, Change, MemberChange

# A removed member is no component of the wheel; it is told as a property of the whole.
_REMOVED = "dspatch:removed:"


@dataclass(frozen=True, kw_only=True)
class StatedPatch:
    """A patch as the bill of materials has it: its diff, and the sha256 stated for that diff."""

    name: str
    diff: str
    stated_sha256: str

    @property
    def diff_sha256(self) -> str:
        """The sha256 of the diff that is there."""
        return hashlib.sha256(self.diff.encode("utf-8", "surrogateescape")).hexdigest()


@dataclass(frozen=True, kw_only=True)
class Pedigree:
    """What an overlay says of itself; `ancestors` maps file names to sha256."""

    name: str
    version: str
    changes: Mapping[str, MemberChange]
    patches: tuple[StatedPatch, ...]
    ancestors: Mapping[str, str]


def read_pedigree(data: bytes) -> Pedigree:
    """Read a bill of materials that dspatch wrote; raises `WheelError` when it is malformed."""
    try:
        document = json.loads(data)
        if (document["bomFormat"], document["specVersion"]) != ("CycloneDX", "1.6"):
            raise ValueError("it is no CycloneDX 1.6 document")
        overlay = document["metadata"]["component"]
        properties = [(item["name"], item["value"]) for item in overlay.get("properties", [])]
        changes = [_change(item) for item in overlay.get("components", [])]
        changes += [_removed(*item) for item in properties if item[0].startswith(_REMOVED)]
        return Pedigree(
            name=overlay["name"],
            version=overlay["version"],
            changes={change.path: change for change in changes},
            patches=_patches(overlay.get("pedigree", {}), dict(properties)),
            ancestors=_ancestors(overlay.get("pedigree", {})),
        )
    except (ValueError, KeyError, TypeError, IndexError, AttributeError) as error:
        raise WheelError(
            "The wheel's bill of materials cannot be read.",
            why=f"{type(error).__name__}: {error}",
            next="build the wheel again",
        ) from None


def stated_pedigree(wheel: Members) -> Pedigree:
    """What a wheel says of itself; raises `WheelError` when it has no bill of materials."""
    return read_pedigree(wheel.read_info(SBOM_NAME))


def _change(item: Mapping[str, Any]) -> MemberChange:
    properties = [(entry["name"], entry["value"]) for entry in item["properties"]]
    change = dict(properties)["dspatch:change"]
    if change not in get_args(Change):
        raise ValueError(f"{item['name']} has the unknown change {change!r}")
    return MemberChange(
        path=item["name"],
        change=change,
        sha256=item["hashes"][0]["content"],
        patches=tuple(value for name, value in properties if name == "dspatch:patch"),
    )


def _removed(name: str, patches: str) -> MemberChange:
    path = name.removeprefix(_REMOVED)
    return MemberChange(path=path, change="removed", patches=tuple(patches.split()))


def _patches(pedigree: Mapping[str, Any], properties: Mapping[str, str]) -> tuple[StatedPatch, ...]:
    diffs = {
        item["resolves"][0]["id"]: item["diff"]["text"]["content"]
        for item in pedigree.get("patches", [])
    }
    # `dspatch:patch:001` names the first patch; its facts have one more part.
    order = sorted(key for key in properties if _is_place(key))
    names = [properties[key] for key in order]
    if sorted(names) != sorted(diffs):
        raise ValueError(f"it has diffs of {sorted(diffs)} and states the patches {sorted(names)}")
    return tuple(
        StatedPatch(
            name=properties[key],
            diff=diffs[properties[key]],
            stated_sha256=properties[f"{key}:diff-sha256"],
        )
        for key in order
    )


def _is_place(key: str) -> bool:
    return key.startswith("dspatch:patch:") and key.count(":") == 2


def _ancestors(pedigree: Mapping[str, Any]) -> dict[str, str]:
    found = {}
    for item in pedigree.get("ancestors", []):
        filename = {entry["name"]: entry["value"] for entry in item["properties"]}["dspatch:file"]
        found[filename] = next((entry["content"] for entry in item.get("hashes", [])), "")
    return found
