"""The kit's server behind a rendered output format, right or with one rule that is not kept."""

from __future__ import annotations

import io
from collections.abc import Callable, Iterator, Mapping
from contextlib import closing, contextmanager
from types import ModuleType
from typing import Any

from dspatch.conformance.api.server import Server
from dspatch.conformance.api.wire import Wire
from dspatch.outputformat import OutputFormat
from tests.unit.apikit import CONTEXT, NAME, Asked, Handler, State, serving
from tests.unit.templatekit import rendered

Spoil = Callable[[bytes], bytes]


class Through:
    """What is written, on its way through the format's stream."""

    def __init__(self, to: Any, stream: Any, spoil: Spoil) -> None:
        self.to, self.stream, self.spoil = to, stream, spoil

    def write(self, data: bytes) -> int:
        self.to.write(self.spoil(self.stream.feed(data)))
        return len(data)

    def flush(self) -> None:
        self.to.flush()


class Formatted(Handler):
    """The kit's handler with the functions of the rendered module at its two ends."""

    module: ModuleType
    spoil: Spoil
    starting = False

    def do_POST(self) -> None:
        """A request, with usage asked for where the format has it."""
        raw, real = self.rfile.read(int(self.headers.get("content-length", 0))), self.rfile
        usage = self.module.FORMAT.get(self.module.chunk_of(self.path) or "", {}).get("usage")
        raw = self.module.asking(raw, usage) if usage else raw
        self.headers.replace_header("content-length", str(len(raw)))
        self.rfile = io.BytesIO(raw)  # type: ignore[assignment]
        try:
            super().do_POST()
        finally:
            self.rfile = real

    def end_headers(self) -> None:
        """After the headers of a stream everything goes through the format."""
        super().end_headers()
        if self.starting:
            self.starting = False
            self.wfile = Through(self.wfile, self.module.Stream(), self.spoil)  # type: ignore[assignment]

    def _stream(self, body: Mapping[str, Any], chat: bool, asked: list[Asked]) -> None:
        self.starting = True
        super()._stream(body, chat, asked)
        self.wfile = self.wfile.to  # type: ignore[attr-defined]

    def _send(self, status: int, kind: str, data: bytes) -> None:
        super()._send(status, kind, self.module.formatted(data) if status == 200 else data)


@contextmanager
def speaking(
    served: OutputFormat, wanted: OutputFormat, spoil: Spoil = lambda data: data
) -> Iterator[Server]:
    """What asks a server that answers in one format, and is told that it answers in another."""
    module = rendered("openai/output_format", "output_format_of_the_kit", format=served)
    bound = {"state": State(), "module": module, "spoil": staticmethod(spoil)}
    kind = type("One", (Formatted,), bound)
    with serving(handler=kind) as url, closing(Wire(base=url, limit=2000, timeout=10)) as wire:
        yield Server(wire=wire, model=NAME, context=CONTEXT, own=True, format=wanted)
