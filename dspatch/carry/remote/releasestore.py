"""What was found out about releases, kept in the cache: a file a release, headed by the hash of what it holds."""

from __future__ import annotations

import hashlib
import json
from pathlib import Path
from typing import Any

from dspatch import paths
from dspatch.carry.remote.releases import Release
from dspatch.files import write_atomically


def path(kind: str, engine: str, release: Release, inputs: str) -> Path:
    """The file of one kind about a release; `inputs` is all that its content depends on."""
    name = hashlib.sha256(inputs.encode()).hexdigest()[:32]
    return paths.cache() / kind / engine / f"{release.version}-{name}.json"


def read(place: Path) -> dict[str, Any]:
    """What a file holds; nothing when it is not there or was spoilt."""
    try:
        digest, _, body = place.read_bytes().partition(b"\n")
    except FileNotFoundError:
        return {}
    if digest.decode(errors="replace") != hashlib.sha256(body).hexdigest():
        return {}
    content: dict[str, Any] = json.loads(body)
    return content


def write(place: Path, content: dict[str, Any]) -> None:
    """Write a file, its keys in the order that they have; raises `DiskFullError`."""
    body = json.dumps(content).encode()
    digest = hashlib.sha256(body).hexdigest().encode()
    write_atomically(place, digest + b"\n" + body)
