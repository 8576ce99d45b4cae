"""Names and versions of wheels: reading them from a file name, and making an overlay's own."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from packaging.tags import Tag
from packaging.utils import InvalidWheelFilename, canonicalize_name, parse_wheel_filename
from packaging.version import InvalidVersion, Version

from dspatch.errors import WheelError

Target = Literal["cpu", "cuda"]
DIGEST_LENGTH = 12


@dataclass(frozen=True, kw_only=True)
class WheelName:
    """A wheel's file name in parts; `rest` is everything behind the version, without `.whl`."""

    project: str
    version: Version
    rest: str
    tags: frozenset[Tag]

    @classmethod
    def parse(cls, filename: str) -> WheelName:
        """Read a wheel's file name; raises `WheelError` when it is none."""
        try:
            project, version, _, tags = parse_wheel_filename(filename)
        except (InvalidWheelFilename, InvalidVersion) as error:
            raise WheelError(
                f"{filename} is not the file name of a wheel.",
                why=str(error),
                next="give the wheel under the name it was published with",
            ) from None
        rest = filename.removesuffix(".whl").split("-", 2)[2]
        return cls(project=project, version=version, rest=rest, tags=tags)

    def renamed(self, name: str, version: str) -> str:
        """The file name of a wheel with the same build and tags under another name and version."""
        return f"{stem(name, version)}-{self.rest}.whl"


def stem(name: str, version: str) -> str:
    """`name-version` as wheel file names and `.dist-info` folders spell it."""
    return f"{canonicalize_name(name).replace('-', '_')}-{Version(version)}"


def overlay_version(base: str, target: Target, digest: str) -> str:
    """The version of an overlay on a base wheel's version: `0.27.1+cpu.dspatch.1a2b3c4d5e6f`.

    `digest` is the hex digest of all inputs, of which the first 12 digits are used.
    """
    version = Version(base)
    local = version.local.split(".") if version.local else []
    # vLLM picks its CPU platform by finding "cpu" in its own version.
    if target == "cpu" and not any("cpu" in part for part in local):
        local.insert(0, "cpu")
    return f"{version.public}+{'.'.join([*local, 'dspatch', _segment(digest)])}"


def _segment(digest: str) -> str:
    short = digest.lower()[:DIGEST_LENGTH]
    # A segment of digits only is a number to PEP 440, and loses its leading zeros.
    return f"x{short[:-1]}" if short.isdecimal() else short
