"""HTTP to a server under check: bounded in number, time and size, and counted."""

from __future__ import annotations

import json
import threading
from collections.abc import Mapping
from dataclasses import dataclass, field
from ipaddress import ip_address
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import httpx2

LARGEST = 16 << 20  # bytes of one answer that are read
# Seconds: uvicorn closes a connection that was idle for five, and who uses it just then is cut off.
IDLE = 1.0
REFUSED = 400


class GoneError(Exception):
    """No answer came: refused, cut off, or too late."""


class SpentError(Exception):
    """One more request would be more than the user allowed."""


@dataclass(frozen=True, kw_only=True)
class Answer:
    """One HTTP answer; `cut` says that the caller left before its end."""

    status: int
    kind: str
    body: bytes
    cut: bool = False

    @property
    def value(self) -> Any:
        """The JSON value of the body, `None` when it is none, or nested too deeply to be read."""
        try:
            return json.loads(self.body)
        except (ValueError, RecursionError):
            return None

    def field(self, name: str) -> Any:
        """That field of the JSON object in the body, `None` where there is no such."""
        value = self.value
        return value.get(name) if isinstance(value, dict) else None

    def told(self, length: int = 160) -> str:
        """Status and the beginning of the body, in one line."""
        text = " ".join(self.body.decode(errors="replace").split())
        return f"{self.status}: {text[:length]}"


@dataclass(kw_only=True)
class Wire:
    """The connection: base address without `/v1`, key or none, limits in requests and seconds."""

    base: str
    key: str | None = None
    limit: int = 600
    timeout: float = 60.0
    count: int = 0
    _lock: threading.Lock = field(default_factory=threading.Lock, repr=False)
    _client: httpx2.Client | None = field(default=None, repr=False)

    def get(self, path: str) -> Answer:
        """GET a path."""
        return self._send("GET", path, None, {})

    def post(self, path: str, body: Mapping[str, Any] | bytes, *, leave_after: int = 0) -> Answer:
        """POST a JSON object, or raw bytes as they are; leave a stream after so many of its events."""
        raw = body if isinstance(body, bytes) else json.dumps(body).encode()
        return self._send("POST", path, raw, {"content-type": "application/json"}, leave_after)

    def close(self) -> None:
        """Close the connections; the next request opens new ones."""
        if self._client is not None:
            self._client.close()
        self._client = None

    def _send(
        self,
        method: str,
        path: str,
        body: bytes | None,
        headers: Mapping[str, str],
        leave_after: int = 0,
    ) -> Answer:
        import httpx2

        self._take()
        known = {"authorization": f"Bearer {self.key}"} if self.key else {}
        try:
            with self._connection().stream(
                method, self.base + path, content=body, headers={**headers, **known}
            ) as response:
                answer = _read(response, leave_after)
                if answer.status >= REFUSED:
                    # uvicorn closes a connection over which an error went, without a word: who uses it again
                    # may be cut off.
                    response.extensions["network_stream"].close()
                return answer
        except (httpx2.HTTPError, httpx2.StreamError) as error:
            raise GoneError(f"{type(error).__name__}: {error}".rstrip(": ")) from error

    def _take(self) -> None:
        with self._lock:
            if self.count >= self.limit:
                raise SpentError(f"{self.limit} requests were allowed")
            self.count += 1

    def _connection(self) -> httpx2.Client:
        import httpx2

        with self._lock:
            if self._client is None:
                self._client = httpx2.Client(
                    timeout=self.timeout,
                    trust_env=not on_loopback(self.base),
                    limits=httpx2.Limits(max_connections=100, keepalive_expiry=IDLE),
                )
            return self._client


def _read(response: httpx2.Response, leave_after: int) -> Answer:
    body = bytearray()
    cut = False
    for part in response.iter_bytes():
        body += part
        if len(body) > LARGEST or (leave_after and body.count(b"\n\n") >= leave_after):
            cut = True
            break
    kind = response.headers.get("content-type", "").partition(";")[0].strip()
    return Answer(status=response.status_code, kind=kind, body=bytes(body), cut=cut)


def on_loopback(url: str) -> bool:
    """Whether the host of an address is this machine, by name or number."""
    import httpx2

    host = httpx2.URL(url).host
    try:
        return ip_address(host).is_loopback
    except ValueError:
        return host == "localhost"
