"""Overlay wheels: build one from a base wheel and a patched tree, verify it, check a base wheel."""

from dspatch.wheel.compatible import check_base, check_tags
from dspatch.wheel.files import FolderFiles
from dspatch.wheel.machine import Machine, this_machine
from dspatch.wheel.names import overlay_version
from dspatch.wheel.overlay import build_overlay
from dspatch.wheel.plan import Accepted, Ancestor, Overlay, OverlayPlan, PatchRecord
from dspatch.wheel.verify import Verification, inspect, verify

__all__ = [
    "Accepted",
    "Ancestor",
    "FolderFiles",
    "Machine",
    "Overlay",
    "OverlayPlan",
    "PatchRecord",
    "Verification",
    "build_overlay",
    "check_base",
    "check_tags",
    "inspect",
    "overlay_version",
    "this_machine",
    "verify",
]
