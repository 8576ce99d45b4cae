"""Give an overlay its own identity: the members that state its name and version."""

from __future__ import annotations

from collections.abc import Mapping

from dspatch.errors import WheelError
from dspatch.wheel.base import OpenWheel
from dspatch.wheel.metadata import rewrite_metadata, rewrite_wheel
from dspatch.wheel.names import stem
from dspatch.wheel.plan import OverlayPlan, Rewrite
from dspatch.wheel.versionfile import rewrite_version_file


def identity_members(
    plan: OverlayPlan, base: OpenWheel, written: Mapping[str, bytes]
) -> tuple[dict[str, bytes], tuple[Rewrite, ...]]:
    """METADATA, WHEEL and the version file as the overlay has them, and the lines that changed.

    `written` is what the overlay writes so far. Raises `WheelError` when the base states no name or
    version that can be replaced.
    """
    folder = f"{stem(plan.name, plan.version)}.dist-info"
    metadata, about_metadata = rewrite_metadata(
        base.read_info("METADATA"),
        name=plan.name,
        version=plan.version,
        requirements=plan.requirements,
    )
    wheel, about_wheel = rewrite_wheel(base.read_info("WHEEL"), base.name.tags)
    version, about_version = rewrite_version_file(
        _version_source(plan, base, written), plan.version_file, plan.version
    )
    identity = {
        plan.version_file: version,
        f"{folder}/METADATA": metadata,
        f"{folder}/WHEEL": wheel,
    }
    return identity, (*about_version, *about_metadata, *about_wheel)


def _version_source(plan: OverlayPlan, base: OpenWheel, written: Mapping[str, bytes]) -> bytes:
    if plan.version_file in written:
        return written[plan.version_file]
    if plan.version_file not in base.infos:
        raise WheelError(
            f"The base wheel has no {plan.version_file} to state the version in.",
            next="pin another base wheel for this revision",
        )
    return base.archive.read(plan.version_file)
