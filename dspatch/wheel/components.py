"""The parts of a bill of materials, as CycloneDX has them."""

from __future__ import annotations

from typing import TYPE_CHECKING
from urllib.parse import urlsplit

from dspatch.wheel.plan import Ancestor, MemberChange, PatchRecord

if TYPE_CHECKING:
    from cyclonedx.model.component import Component, Patch


def ancestor_component(ancestor: Ancestor) -> Component:
    """What the overlay descends from, by name, file and hash."""
    from cyclonedx.model import HashAlgorithm, HashType, Property
    from cyclonedx.model.component import Component
    from packageurl import PackageURL

    hashes = (
        [HashType(alg=HashAlgorithm.SHA_256, content=ancestor.sha256)] if ancestor.sha256 else []
    )
    qualifiers = {"file_name": ancestor.filename}
    if ancestor.url:
        qualifiers["vcs_url" if ancestor.url.startswith("git+") else "download_url"] = ancestor.url
    return Component(
        name=ancestor.project,
        version=ancestor.version,
        bom_ref=f"ancestor:{ancestor.filename}",
        purl=PackageURL("pypi", None, ancestor.project, ancestor.version, qualifiers),
        hashes=hashes,
        properties=[Property(name="dspatch:file", value=ancestor.filename)],
    )


def patch_entry(patch: PatchRecord) -> Patch:
    """A patch with its diff; the issue it resolves tells its name, subject, reason and link."""
    from cyclonedx.model import AttachedText, XsUri
    from cyclonedx.model.component import Diff, Patch, PatchClassification
    from cyclonedx.model.issue import IssueClassification, IssueType, IssueTypeSource

    link = patch.upstream if urlsplit(patch.upstream).scheme in ("http", "https") else ""
    issue = IssueType(
        type=IssueClassification.DEFECT,
        id=patch.name,
        name=patch.subject,
        description=patch.reason,
        source=IssueTypeSource(name="upstream", url=XsUri(link)) if link else None,
    )
    return Patch(
        type=PatchClassification.UNOFFICIAL,
        diff=Diff(text=AttachedText(content=patch.diff, content_type="text/x-diff")),
        resolves=[issue],
    )


def file_component(change: MemberChange) -> Component:
    """A member that is not the base wheel's: its hash, what became of it, by which patches."""
    from cyclonedx.model import HashAlgorithm, HashType, Property
    from cyclonedx.model.component import Component, ComponentType

    return Component(
        name=change.path,
        type=ComponentType.FILE,
        bom_ref=f"file:{change.path}",
        hashes=[HashType(alg=HashAlgorithm.SHA_256, content=change.sha256)],
        properties=[
            Property(name="dspatch:change", value=change.change),
            *(Property(name="dspatch:patch", value=name) for name in change.patches),
        ],
    )
