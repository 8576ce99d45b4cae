"""What a wheel asks for: torch and Python from its METADATA, symbol versions from its ELF files."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

from packaging.metadata import parse_email
from packaging.requirements import InvalidRequirement, Requirement

from dspatch.wheel.elf import Version, wheel_needs

MACHINES = ("x86_64", "aarch64", "ppc64le", "s390x", "riscv64", "armv7l", "i686")


@dataclass(frozen=True, kw_only=True)
class Needs:
    """The newest symbol versions that a wheel's shared objects need, None where they need none."""

    glibc: str | None
    glibcxx: str | None


def elf_needs(wheel: Path) -> Needs:
    """The needs of all shared objects of a wheel together."""
    found = wheel_needs(wheel)
    return Needs(
        glibc=_newest(each.glibc for each in found), glibcxx=_newest(each.glibcxx for each in found)
    )


def requires_python(metadata: bytes) -> str | None:
    """The `Requires-Python` of a METADATA or PKG-INFO file."""
    return parse_email(metadata)[0].get("requires_python")


def requirement(metadata: bytes, name: str, platform: str) -> str | None:
    """The requirement on a project that METADATA states for a platform, without its marker."""
    environment = {
        "extra": "",
        "os_name": "posix",
        "sys_platform": "linux",
        "platform_system": "Linux",
        "platform_machine": machine_of(platform),
    }
    for text in parse_email(metadata)[0].get("requires_dist", []):
        try:
            each = Requirement(text)
        except InvalidRequirement:
            continue
        if each.name == name and (each.marker is None or each.marker.evaluate(environment)):
            return f"{each.name}{each.specifier}"
    return None


def machine_of(platform: str) -> str:
    """The machine of a platform tag: `manylinux_2_28_x86_64` is for `x86_64`."""
    return next((each for each in MACHINES if platform.endswith(f"_{each}")), "")


def _newest(versions: Iterable[Version | None]) -> str | None:
    highest = max((version for version in versions if version), default=None)
    return ".".join(map(str, highest)) if highest else None
