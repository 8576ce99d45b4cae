"""The text of a file that records ranges: the releases that were read, and tables of names with their ranges."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence

_WIDTH = 10  # releases in a line


def text(head: str, releases: Sequence[str], tables: Mapping[str, Mapping[str, str]]) -> str:
    """The whole file; the names of a table are keys as TOML has them."""
    return "\n".join([head, "releases = [", *_rows(releases), "]", *_tables(tables)]) + "\n"


def _rows(releases: Sequence[str]) -> Iterator[str]:
    for start in range(0, len(releases), _WIDTH):
        yield f"    {', '.join(map(json.dumps, releases[start : start + _WIDTH]))},"


def _tables(tables: Mapping[str, Mapping[str, str]]) -> Iterator[str]:
    for name, table in tables.items():
        yield from ("", f"[{name}]")
        for key, ranges in table.items():
            yield f"{key} = {json.dumps(ranges, ensure_ascii=False)}"
