"""Server-sent events, read strictly: what each one says, and what is wrong with how it is said."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

DONE = "[DONE]"


@dataclass(frozen=True, kw_only=True)
class Events:
    """The JSON objects of a stream in order, and the faults of its form (empty: well formed)."""

    objects: tuple[Mapping[str, Any], ...]
    faults: tuple[str, ...]


def read(body: bytes) -> Events:
    """Read the body of a stream, which must end with one `[DONE]`."""
    objects: list[Mapping[str, Any]] = []
    faults: list[str] = []
    ended = False
    for number, data in enumerate(_data(body, faults)):
        if ended:
            faults.append(f"event {number} comes after [DONE]")
        elif data == DONE:
            ended = True
        else:
            objects += _object(number, data, faults)
    if not ended:
        faults.append("the stream ends without [DONE]")
    return Events(objects=tuple(objects), faults=tuple(faults))


def _data(body: bytes, faults: list[str]) -> Iterator[str]:
    """The data of each event; comments and other fields of the format are passed over."""
    try:
        text = body.decode()
    except UnicodeDecodeError as error:
        faults.append(f"byte {error.start} of the stream is no UTF-8")
        text = body.decode(errors="replace")
    lines: list[str] = []
    for line in [*text.replace("\r\n", "\n").split("\n"), ""]:
        if not line:
            if lines:
                yield "\n".join(lines)
            lines = []
            continue
        field, colon, value = line.partition(":")
        if field == "data":
            lines.append(value.removeprefix(" "))
        elif not (colon and field in ("", "event", "id", "retry")):
            faults.append(f"a line that is no field of an event: {line[:60]!r}")


def _object(number: int, data: str, faults: list[str]) -> list[Mapping[str, Any]]:
    try:
        value = json.loads(data)
    except (ValueError, RecursionError) as error:
        faults.append(f"event {number} is no JSON: {getattr(error, 'msg', error)}: {data[:60]!r}")
        return []
    if not isinstance(value, dict):
        faults.append(f"event {number} is no JSON object: {data[:60]!r}")
        return []
    return [value]
