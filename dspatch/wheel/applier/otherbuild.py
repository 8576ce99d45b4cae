"""An installation that is not the pinned base wheel: its own name and version rewritten, its own kept."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

from .manifest import INFO, File, hash_of
from .misfit import Misfit
from .site import Installed
from .way import BILL, KEPT, ORIGIN, Way


def rewritten(way: Way, file: File, data: bytes) -> bytes:
    """A file that every build writes itself, saying the overlay's name and version."""
    if file.path == f"{INFO}/METADATA":
        return _metadata(way, data)
    if file.path.startswith(f"{INFO}/"):
        return data
    return _version_module(way.site, way.there.version, data, file.path)


def kept(way: Way, files: dict[str, bytes]) -> dict[str, bytes]:
    """What is kept of the build, so that it can be had back; by path."""
    folder = f"{way.there.info}/{KEPT}"
    origin = {
        "project": way.site.project,
        "version": way.site.version,
        "info": way.site.info,
        "wheel": f"the build of {way.site}",
    }
    text = json.dumps(origin, indent=1, sort_keys=True) + "\n"
    return {
        f"{folder}/{ORIGIN}": text.encode("utf-8"),
        **{f"{folder}/{path}": data for path, data in files.items()},
    }


def is_kept(way: Way, file: File) -> bool:
    """Whether the build had other bytes there than the pinned base wheel."""
    return _place(way, file).is_file()


def original(way: Way, file: File) -> bytes:
    """A file as the build had it."""
    return _place(way, file).read_bytes()


def bill(way: Way, data: bytes, written: dict[str, bytes]) -> bytes:
    """The bill of materials, saying that the base was another build, with the hashes of its own files."""
    document = json.loads(data)
    overlay = document["metadata"]["component"]
    for component in overlay.get("components", []):
        if component["name"] in written:
            component["hashes"][0]["content"] = hash_of(written[component["name"]])
    fact: dict[str, Any] = {"name": "dspatch:other-build", "value": f"applied to {way.site}"}
    overlay["properties"] = [*overlay.get("properties", []), fact]
    return (json.dumps(document, indent=1, sort_keys=True) + "\n").encode("utf-8")


def is_bill(file: File) -> bool:
    """Whether a file is the bill of materials."""
    return file.path == BILL


def _place(way: Way, file: File) -> Path:
    return way.site.root / way.site.info / KEPT / file.path


def _metadata(way: Way, data: bytes) -> bytes:
    head, gap, body = data.partition(b"\n\n")
    for key, value in (("Name", way.there.project), ("Version", way.there.version)):
        line = f"{key}: {value}".encode()
        head, count = re.subn(rb"(?m)^" + key.encode() + rb":[^\r\n]*", line, head)
        if count != 1:
            raise Misfit(f"METADATA of {way.site} states {count} times a {key}.")
    return head + gap + body


def _version_module(site: Installed, version: str, data: bytes, path: str) -> bytes:
    public, _, local = version.partition("+")
    numbers = re.findall(r"\d+", public)
    text, count = re.subn(
        r"(['\"])" + re.escape(site.version) + r"\1", repr(version), data.decode("utf-8")
    )
    if not count or ".".join(numbers) != public:
        raise Misfit(f"{path} does not state the version {site.version}, so it cannot be changed.")
    parts = ", ".join([*numbers, repr(local)])
    text = re.sub(r"(?m)^(.*\bversion_tuple\s*=\s*)\(.*\)", rf"\g<1>({parts})", text)
    return text.encode("utf-8")
