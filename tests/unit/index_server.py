"""A package index on the loopback interface, with faults to plant in it."""

from __future__ import annotations

import hashlib
import json
import ssl
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from urllib.parse import urlsplit

import pytest

TLS = Path(__file__).parents[1] / "data" / "tls" / "localhost.pem"


@dataclass(kw_only=True)
class Served:
    """A file of the index: its bytes, what the page says of it, and the faults of its delivery."""

    data: bytes
    sha256: str | None = None  # as the page states it; the true one by default
    size: int | None = None
    cuts: list[int] = field(default_factory=list)  # bytes after which the connection breaks
    ranges: bool = True
    status: int = 200
    pause: float = 0.0  # seconds between two halves
    redirect: bool = False
    yanked: bool = False
    gets: int = 0


@dataclass(kw_only=True)
class Index:
    """The served files by project and name, and the paths that were asked for."""

    url: str = ""
    html: bool = False
    status: int = 200
    hashes: bool = True
    files: dict[str, dict[str, Served]] = field(default_factory=dict)
    requests: list[str] = field(default_factory=list)
    ranges: list[str] = field(default_factory=list)

    def add(self, filename: str, served: Served, project: str = "engine") -> str:
        """Serve a file; its true sha256."""
        self.files.setdefault(project, {})[filename] = served
        return hashlib.sha256(served.data).hexdigest()

    def alone(self, monkeypatch: pytest.MonkeyPatch) -> None:
        """Make this the one place that pip's configuration names."""
        for name in ("FIND_LINKS", "EXTRA_INDEX_URL", "NO_INDEX", "PROXY", "CERT"):
            monkeypatch.delenv(f"PIP_{name}", raising=False)
        monkeypatch.setenv("PIP_CONFIG_FILE", "/dev/null")
        monkeypatch.setenv("PIP_INDEX_URL", self.simple)

    @property
    def simple(self) -> str:
        return f"{self.url}/simple"


@contextmanager
def serve(*, tls: bool = False) -> Iterator[Index]:
    """Serve an index until the block ends."""
    index = Index()
    server = _Server(("127.0.0.1", 0), type("Bound", (_Handler,), {"index": index}))
    if tls:
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        context.load_cert_chain(TLS)
        server.socket = context.wrap_socket(server.socket, server_side=True)
    index.url = f"{'https' if tls else 'http'}://127.0.0.1:{server.server_port}"
    thread = threading.Thread(target=server.serve_forever, args=(0.02,))
    thread.start()
    try:
        yield index
    finally:
        server.shutdown()
        thread.join()
        server.server_close()


class _Server(ThreadingHTTPServer):
    def handle_error(self, request: object, client_address: object) -> None:
        """A client that went away is part of the tests."""


class _Handler(BaseHTTPRequestHandler):
    index: Index

    def do_GET(self) -> None:
        path = urlsplit(self.path).path
        self.index.requests.append(path)
        if path.startswith("/simple/"):
            self._page(path.split("/")[2])
        else:
            project, filename = path.split("/")[-2:]
            self._file(self.index.files[project][filename], path)

    def _page(self, project: str) -> None:
        files = self.index.files.get(project)
        if files is None or self.index.status != 200:
            self.send_error(404 if files is None else self.index.status)
            return
        kind, body = (_html if self.index.html else _json)(self.index, project, files)
        self._send(200, body.encode(), {"Content-Type": kind})

    def _file(self, served: Served, path: str) -> None:
        served.gets += 1
        if served.redirect and "/moved/" not in path:
            self._send(302, b"", {"Location": path.replace("/files/", "/files/moved/")})
            return
        if served.status != 200:
            self.send_error(served.status)
            return
        wanted = self._wanted(served)
        self._deliver(served, served.data[wanted], wanted if served.ranges else None)

    def _wanted(self, served: Served) -> slice:
        asked = self.headers.get("Range")
        self.index.ranges.append(asked or "")
        if asked is None or not served.ranges:
            return slice(0, None)
        first, _, last = asked.removeprefix("bytes=").partition("-")
        if not first:
            return slice(max(0, len(served.data) - int(last)), None)
        return slice(int(first), int(last) + 1 if last else None)

    def _deliver(self, served: Served, data: bytes, part: slice | None) -> None:
        partial = part is not None and self.headers.get("Range") is not None
        self.send_response(206 if partial else 200)
        self.send_header("Content-Length", str(len(data)))
        if partial and part is not None:
            last = part.start + len(data) - 1
            self.send_header("Content-Range", f"bytes {part.start}-{last}/{len(served.data)}")
        self.end_headers()
        if served.cuts:
            self.wfile.write(data[: served.cuts.pop(0)])
            return
        half = len(data) // 2
        self.wfile.write(data[:half])
        self.wfile.flush()
        time.sleep(served.pause)
        self.wfile.write(data[half:])

    def _send(self, status: int, body: bytes, headers: dict[str, str]) -> None:
        self.send_response(status)
        for name, value in headers.items():
            self.send_header(name, value)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, format: str, *args: object) -> None:
        pass


def _sha256(index: Index, served: Served) -> str | None:
    true = hashlib.sha256(served.data).hexdigest() if index.hashes else None
    return served.sha256 or true


def _json(index: Index, project: str, files: dict[str, Served]) -> tuple[str, str]:
    rows = [
        {
            "filename": name,
            "url": f"../../files/{project}/{name}",
            "hashes": {"sha256": sha256} if (sha256 := _sha256(index, served)) else {},
            "size": len(served.data) if served.size is None else served.size,
            "requires-python": ">=3.10",
            "yanked": served.yanked,
        }
        for name, served in files.items()
    ]
    return "application/vnd.pypi.simple.v1+json", json.dumps({"files": rows})


def _html(index: Index, project: str, files: dict[str, Served]) -> tuple[str, str]:
    rows = [
        f'<a href="../../files/{project}/{name}{f"#sha256={sha256}" if sha256 else ""}" '
        f'data-requires-python="&gt;=3.10">{name}</a>'
        for name, served in files.items()
        for sha256 in [_sha256(index, served)]
    ]
    return "text/html; charset=utf-8", "<!DOCTYPE html><html><body>" + "\n".join(rows)
