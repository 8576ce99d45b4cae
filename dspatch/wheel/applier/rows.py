"""The RECORD that an installation has afterwards, row by row as its installer would have written it."""

from __future__ import annotations

import re
import sys
from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING

from . import record
from .site import Installed

if TYPE_CHECKING:
    from .record import Record, Row


def rewritten(
    site: Installed,
    renamed: Mapping[str, str],
    written: Mapping[str, bytes],
    gone: set[str],
    own: str,
) -> bytes:
    """RECORD's bytes when files are renamed, written and gone; `own` is its path then."""
    installed = site.record
    rows = _rows(site, installed, renamed, written, gone)
    return installed.replaced([*rows, (own, "", "")]).text()


def compiled(path: str, tag: str) -> str:
    """Where Python keeps a source compiled, by the tag of its version."""
    folder, _, name = path.rpartition("/")
    return f"{folder}/__pycache__/{name[: -len('.py')]}.{tag}.pyc"


def _rows(
    site: Installed,
    installed: Record,
    renamed: Mapping[str, str],
    written: Mapping[str, bytes],
    gone: set[str],
) -> Iterator[Row]:
    tags = _tags(installed)
    lost = {compiled(path, tag) for path in gone for tag in tags if path.endswith(".py")}
    known = set()
    for path, sha256, size in installed.rows:
        new = renamed.get(path, path)
        known.add(new)
        if path in gone or path in lost or path == f"{site.info}/RECORD":
            continue
        if new in written and sha256:
            yield record.row_of(new, written[new])
        else:
            yield new, sha256, size
    for path in sorted(written.keys() - known):
        yield record.row_of(path, written[path])
        if path.endswith(".py") and sys.implementation.cache_tag in tags:
            yield compiled(path, str(sys.implementation.cache_tag)), "", ""


def _tags(installed: Record) -> set[str]:
    """Which Pythons the installer compiled the package for."""
    found = (re.search(r"__pycache__/[^/]+\.([^./]+)\.pyc$", row[0]) for row in installed.rows)
    return {match.group(1) for match in found if match}
