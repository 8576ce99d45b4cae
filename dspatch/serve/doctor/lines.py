"""A log as blocks of whole lines: a file of any size or stdin, packed or not, and one line made readable."""

from __future__ import annotations

import bz2
import gzip
import json
import lzma
import re
import sys
import zlib
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Any

from dspatch.errors import EmptyLogError, LogError

BLOCK = 1 << 20  # bytes; a longer line is read in pieces of so many
LONGEST = 8192  # characters of a line that are matched, around what drew attention
_PACKED = {b"\x1f\x8b": gzip.open, b"BZh": bz2.open, b"\xfd7zXZ\x00": lzma.open}
_ZSTD = b"\x28\xb5\x2f\xfd"
_COLOUR = re.compile(rb"\x1b\[[0-9;?]{0,30}[A-Za-z]")
_UNSEEN = re.compile(r"[\x00-\x08\x0b-\x1f\x7f-\x9f]+")
# Where loggers put a line, and a traceback, into a JSON object.
_FIELDS = ("log", "message", "msg", "MESSAGE", "text", "event", "body", "textPayload")
_TRACES = ("exc_info", "exception", "exc_text", "stack_info", "stack", "stacktrace", "stack_trace")
_BROKEN = (EOFError, zlib.error, lzma.LZMAError, gzip.BadGzipFile)


@dataclass(frozen=True, kw_only=True)
class Block:
    """Whole lines of a log, and the number of the first one, from 1."""

    data: bytes
    first: int


@dataclass(kw_only=True)
class Log:
    """An open log: its name, and what came to light while it was read: lines, bytes, why it was cut."""

    name: str
    stream: IO[bytes]
    lines: int = 0
    size: int = 0
    cut: str = ""

    def blocks(self) -> Iterator[Block]:
        """The log from its beginning; raises `EmptyLogError` when there is nothing in it."""
        number = 1
        for data in self._read():
            if not self.size:
                data = data.removeprefix(b"\xef\xbb\xbf")
            self.size += len(data)
            yield Block(data=_COLOUR.sub(b"", data) if b"\x1b" in data else data, first=number)
            number += data.count(b"\n")
            self.lines = number - data.endswith(b"\n")
        if not self.size and not self.cut:
            raise EmptyLogError(
                f"{self.name} is empty.",
                why="an engine prints its log on stderr: `vllm serve … > server.log` keeps the rest only",
                next="record both: vllm serve … > server.log 2>&1",
            )

    def _read(self) -> Iterator[bytes]:
        """Pieces that end with a line, unless a line is longer than a block."""
        rest = b""
        while data := self._more():
            whole, newline, data = data.rpartition(b"\n")
            if newline:
                yield rest + whole + newline
                rest = data
            else:
                rest += data
                if len(rest) >= BLOCK:
                    yield rest
                    rest = b""
        if rest:
            yield rest

    def _more(self) -> bytes:
        """The next block, shorter at the end only; a packed log that is cut gives what there is."""
        got: list[bytes] = []
        size = 0
        while size < BLOCK and (data := self._piece()):
            got.append(data)
            size += len(data)
        return b"".join(got)

    def _piece(self) -> bytes:
        read = getattr(self.stream, "read1", self.stream.read)
        try:
            return bytes(read(BLOCK))
        except _BROKEN as error:
            self.cut = str(error) or type(error).__name__
        except OSError as error:
            raise LogError(f"{self.name} cannot be read.", why=str(error)) from None
        return b""


@contextmanager
def opened(given: str) -> Iterator[Log]:
    """A log by its path, `-` for stdin; raises `LogError` when it is not there or no log."""
    if given == "-":
        yield Log(name="stdin", stream=sys.stdin.buffer)
        return
    path = Path(given).expanduser()
    if path.is_dir():
        raise _folder(path)
    try:
        with path.open("rb") as plain:
            head = plain.read(6)
        if head.startswith(_ZSTD):
            raise LogError(
                f"{path} is packed by zstd.", next=f"zstd -dc {path} | dspatch serve doctor -"
            )
        opener = next((each for magic, each in _PACKED.items() if head.startswith(magic)), open)
        with opener(path, "rb") as stream:  # type: ignore[operator]
            yield Log(name=str(path), stream=stream)
    except FileNotFoundError:
        raise LogError(
            f"There is no log at {path}.",
            next="name a file, or `-` for stdin; without one the machine is looked at",
        ) from None
    except OSError as error:
        raise LogError(f"{path} cannot be read.", why=str(error)) from None


def _folder(path: Path) -> LogError:
    return LogError(f"{path} is a folder, not a log.", next=f"name one of its files: ls {path}")


def parts(line: bytes, around: int = 0) -> list[str]:
    """The readable lines in one line of a log: those that JSON or carriage returns hold, without junk.

    A long one is cut to `LONGEST` characters around the byte that drew attention.
    """
    text = _unwrapped(line)
    if text is None:
        start = max(0, around - LONGEST // 2)
        text = line[start : start + LONGEST].decode("utf-8", "replace")
    pieces = (piece for row in text.split("\n") for piece in row.split("\r"))
    return [_UNSEEN.sub(" ", piece)[:LONGEST].rstrip() for piece in pieces if piece.strip()]


def _unwrapped(line: bytes) -> str | None:
    """The message in a line that is a JSON object; `None` when it is none."""
    start = line.find(b"{")
    if start < 0 or b'":' not in line or not line.rstrip().endswith(b"}"):
        return None
    try:
        found: Any = json.loads(line[start:].decode("utf-8", "replace"))
    except (ValueError, RecursionError):
        return None
    if not isinstance(found, dict):
        return None
    told = [found.get(name) for name in (*_FIELDS, *_TRACES)]
    nested = found.get("error") or found.get("record")
    if isinstance(nested, dict):
        told += [nested.get(name) for name in (*_FIELDS, *_TRACES)]
    words = [each for each in told if isinstance(each, str)]
    return "\n".join(words) if words else None
