"""A class with the bodies of its methods left out: what most questions need, at a fraction of the parsing."""

from __future__ import annotations

import re
from collections.abc import Iterator

# Below this the whole class is parsed as fast.
_WORTH_BYTES = 4096
_METHOD = re.compile(rb"^([ \t]+)(?:async )?def ", re.M)
_COLON = rb":[ \t]*(?:#[^\n]*)?\n"


def skeleton(source: bytes) -> bytes | None:
    """The source of a class with `...` for the body of every method, every line at its number.

    `None` when nothing can be left out. The result may be no Python where strings look like code;
    whoever parses it must be ready to parse the whole class.
    """
    first = _METHOD.search(source) if len(source) >= _WORTH_BYTES else None
    if first is None:
        return None
    return b"".join(_shortened(source, first.group(1)))


def _shortened(source: bytes, indent: bytes) -> Iterator[bytes]:
    starts = [m.start() for m in re.finditer(rb"^%s(?![ \t\r\n#)\]}])" % indent, source, re.M)]
    header = re.compile(
        rb"%s(?:async )?def (?:[^\n]*%s|[^\n]*\n(?:.*\n)*?%s\)[^\n]*%s)"
        % (indent, _COLON, indent, _COLON)
    )
    yield source[: starts[0]]
    for start, end in zip(starts, [*starts[1:], len(source)], strict=True):
        signature = header.match(source, start, end)
        lines = source.count(b"\n", signature.end(), end) if signature is not None else 0
        if signature is None or not lines:
            yield source[start:end]
        else:
            yield signature.group() + indent + b" ...\n" + b"\n" * (lines - 1)
