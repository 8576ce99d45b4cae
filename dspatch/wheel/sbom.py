"""Write an overlay's bill of materials: CycloneDX 1.6, with the pedigree of what was changed."""

from __future__ import annotations

import hashlib
import json
from collections import Counter
from collections.abc import Iterator
from datetime import UTC, datetime
from typing import TYPE_CHECKING
from uuid import NAMESPACE_URL, uuid5

from dspatch import __version__
from dspatch.wheel.components import ancestor_component, file_component, patch_entry
from dspatch.wheel.plan import Difference, MemberChange, OverlayPlan, Rewrite

if TYPE_CHECKING:
    from cyclonedx.model import Property
    from cyclonedx.model.component import Component

REF = "overlay"


def sbom(
    plan: OverlayPlan,
    changes: tuple[MemberChange, ...],
    differences: tuple[Difference, ...],
    rewrites: tuple[Rewrite, ...],
) -> bytes:
    """The bill of materials as JSON: ancestors, patches with their diffs, and every changed member.

    Dated by the plan's epoch and numbered by its contents, so that it is the same bytes every time.
    """
    # Half a second of imports, which only a build pays for.
    from cyclonedx.model.bom import Bom, BomMetaData
    from cyclonedx.model.component import Component, ComponentType
    from cyclonedx.model.tool import ToolRepository
    from cyclonedx.output.json import JsonV1Dot6

    tool = Component(
        name="dspatch", version=__version__, type=ComponentType.APPLICATION, bom_ref="tool"
    )
    bom = Bom(
        serial_number=uuid5(NAMESPACE_URL, _fingerprint(plan, changes)),
        metadata=BomMetaData(
            timestamp=datetime.fromtimestamp(plan.epoch, UTC),
            tools=ToolRepository(components=[tool]),
            component=_overlay(
                plan,
                files=[file_component(change) for change in changes if change.change != "removed"],
                facts=list(_facts(plan, changes, differences, rewrites)),
            ),
        ),
    )
    text: str = JsonV1Dot6(bom).output_as_string(indent=1)
    # Key order is the library's; sorting makes it ours.
    return (json.dumps(json.loads(text), indent=1, sort_keys=True) + "\n").encode()


def _fingerprint(plan: OverlayPlan, changes: tuple[MemberChange, ...]) -> str:
    facts = [plan.name, plan.version, str(plan.epoch), repr(changes)]
    facts += [patch.sha256 for patch in plan.patches]
    facts += [ancestor.sha256 for ancestor in plan.ancestors]
    return "dspatch:" + hashlib.sha256("\n".join(facts).encode()).hexdigest()


def _overlay(plan: OverlayPlan, files: list[Component], facts: list[Property]) -> Component:
    from cyclonedx.model.component import Component, ComponentType, Pedigree
    from packageurl import PackageURL

    return Component(
        name=plan.name,
        version=plan.version,
        type=ComponentType.LIBRARY,
        bom_ref=REF,
        purl=PackageURL(type="pypi", name=plan.name, version=plan.version),
        properties=facts,
        # Inside the wheel, not beside it: an assembly, no dependencies.
        components=files,
        pedigree=Pedigree(
            ancestors=[ancestor_component(ancestor) for ancestor in plan.ancestors],
            patches=[patch_entry(patch) for patch in plan.patches],
        ),
    )


def _facts(
    plan: OverlayPlan,
    changes: tuple[MemberChange, ...],
    differences: tuple[Difference, ...],
    rewrites: tuple[Rewrite, ...],
) -> Iterator[Property]:
    from cyclonedx.model import Property

    # CycloneDX keeps patches as a set; their order and hashes are told here.
    for at, patch in enumerate(plan.patches, start=1):
        yield Property(name=f"dspatch:patch:{at:03}", value=patch.name)
        yield Property(name=f"dspatch:patch:{at:03}:sha256", value=patch.sha256)
        yield Property(name=f"dspatch:patch:{at:03}:diff-sha256", value=_sha256(patch.diff))
        yield Property(name=f"dspatch:patch:{at:03}:upstream", value=patch.upstream)
    for change in changes:
        if change.change == "removed":
            yield Property(name=f"dspatch:removed:{change.path}", value=" ".join(change.patches))
    # By rule: a CUDA build packs two thousand files of other projects beside the source's own.
    for (kind, rule, reason), count in Counter(
        (item.kind, item.rule, item.reason) for item in differences
    ).items():
        value = f"{kind} {rule} ({count} files): {reason}"
        yield Property(name="dspatch:accepted-difference", value=value)
    for rewrite in rewrites:
        value = f"{rewrite.file}: {rewrite.old!r} became {rewrite.new!r}"
        yield Property(name="dspatch:rewrite", value=value)


def _sha256(text: str) -> str:
    return hashlib.sha256(text.encode("utf-8", "surrogateescape")).hexdigest()
