"""pip's own configuration of package indexes, and an HTTP client that follows it."""

from __future__ import annotations

import os
import ssl
import sys
from collections.abc import Iterator, Mapping
from configparser import Error as ParserError
from configparser import RawConfigParser
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING

from dspatch import paths
from dspatch.errors import DownloadError

if TYPE_CHECKING:
    import httpx2
    from unearth.fetchers import PyPIClient

DEFAULT_TIMEOUT = 15.0  # seconds without a byte, as pip has it
MACHINE = Path("/etc/pip.conf")
SECTIONS = ("global", "download")  # what `pip download` reads; the later one wins
CHECK_NETWORK = (
    "check the network and pip's configuration (`pip config list`: index-url, proxy, cert), "
    "or fill the cache where there is a network"
)


@dataclass(frozen=True, kw_only=True)
class PipConfig:
    """Where packages come from, and how those places are reached. `timeout` is in seconds."""

    indexes: tuple[str, ...]
    find_links: tuple[str, ...] = ()
    trusted_hosts: tuple[str, ...] = ()
    cert: str | None = None
    client_cert: str | None = None
    proxy: str | None = None
    timeout: float = DEFAULT_TIMEOUT


@cache
def default_index() -> str:
    """The index that pip asks when nothing is configured, as pip itself names it."""
    from pip._internal.models.index import PyPI

    return PyPI.simple_url


def load(env: Mapping[str, str] | None = None) -> PipConfig:
    """Read the configuration files and `PIP_*` variables; `DownloadError` for a malformed one.

    A mirror that `DSPATCH_MIRROR` names is asked alone, whatever pip is told.
    """
    if env is None and (mirror := paths.mirror()) is not None:
        return PipConfig(indexes=(), find_links=(str(mirror),))
    env = os.environ if env is None else env
    values: dict[str, str] = {}
    for path in config_files(env):
        values |= _read(path)
    values |= _variables(env)
    return PipConfig(
        indexes=_indexes(values),
        find_links=tuple(_split(values, "find-links")),
        trusted_hosts=tuple(_split(values, "trusted-host")),
        # requests, and so pip, takes these two as well.
        cert=values.get("cert") or env.get("REQUESTS_CA_BUNDLE") or env.get("CURL_CA_BUNDLE"),
        client_cert=values.get("client-cert") or None,
        proxy=values.get("proxy") or None,
        timeout=_timeout(values),
    )


@contextmanager
def client(config: PipConfig) -> Iterator[PyPIClient]:
    """An HTTP client as pip would have it: certificate, proxy, credentials, trusted hosts, `file://`."""
    from unearth.auth import MultiDomainBasicAuth
    from unearth.fetchers import PyPIClient

    with PyPIClient(
        trusted_hosts=config.trusted_hosts,
        verify=_verify(config.cert),
        cert=config.client_cert,
        proxy=config.proxy,
        timeout=config.timeout,
        follow_redirects=True,
        auth=MultiDomainBasicAuth(prompting=False, index_urls=config.indexes),
        mounts=_proxied(config),
    ) as opened:
        yield opened


def redact(url: str) -> str:
    """The address without its credentials and fragment."""
    from unearth.link import Link

    return str(Link(url).redacted)


def config_files(env: Mapping[str, str]) -> Iterator[Path]:
    """The configuration files that pip reads, weakest first, whether they exist or not."""
    named = env.get("PIP_CONFIG_FILE")
    if named == os.devnull:
        return
    home = Path(env.get("HOME") or Path.home())
    for folder in (env.get("XDG_CONFIG_DIRS") or "/etc/xdg").split(os.pathsep):
        yield Path(folder) / "pip" / "pip.conf"
    yield MACHINE
    if not (named and Path(named).exists()):
        yield home / ".pip" / "pip.conf"
        yield Path(env.get("XDG_CONFIG_HOME") or home / ".config") / "pip" / "pip.conf"
    yield Path(sys.prefix) / "pip.conf"
    if named:
        yield Path(named)


def _read(path: Path) -> dict[str, str]:
    parser = RawConfigParser()
    try:
        parser.read(path, encoding="utf-8")
    except (ParserError, UnicodeDecodeError, OSError) as error:
        raise DownloadError(
            f"pip's configuration file {path} cannot be read.",
            why=str(error).replace("\n", " "),
            next="mend the file, or name another in PIP_CONFIG_FILE",
        ) from error
    return {
        _key(name): value
        for section in SECTIONS
        if parser.has_section(section)
        for name, value in parser.items(section)
    }


def _variables(env: Mapping[str, str]) -> dict[str, str]:
    return {
        _key(name.removeprefix("PIP_")): value
        for name, value in env.items()
        if name.startswith("PIP_") and name != "PIP_CONFIG_FILE" and value
    }


def _key(name: str) -> str:
    key = name.lower().replace("_", "-")
    return {"default-timeout": "timeout", "pypi-url": "index-url"}.get(key, key)


def _indexes(values: Mapping[str, str]) -> tuple[str, ...]:
    if values.get("no-index", "").lower() in {"1", "true", "yes", "on", "y", "t"}:
        return ()
    return (values.get("index-url") or default_index(), *_split(values, "extra-index-url"))


def _split(values: Mapping[str, str], key: str) -> list[str]:
    return values.get(key, "").split()


def _timeout(values: Mapping[str, str]) -> float:
    try:
        return float(values.get("timeout") or DEFAULT_TIMEOUT)
    except ValueError as error:
        raise DownloadError(
            f"pip's timeout {values['timeout']!r} is not a number of seconds.",
            next="mend `timeout` in pip's configuration or PIP_TIMEOUT",
        ) from error


def _proxied(config: PipConfig) -> dict[str, httpx2.BaseTransport]:
    # unearth reaches trusted hosts past the proxy; pip does not.
    import httpx2

    if not config.proxy:
        return {}
    transport = httpx2.HTTPTransport(verify=False, proxy=config.proxy)
    return {f"all://{host}": transport for host in config.trusted_hosts}


def _verify(cert: str | None) -> ssl.SSLContext | bool:
    if not cert:
        return True
    path = Path(cert).expanduser()
    try:
        if path.is_dir():
            return ssl.create_default_context(capath=str(path))
        return ssl.create_default_context(cafile=str(path))
    except OSError as error:
        raise DownloadError(
            f"The certificate bundle {path} cannot be read.",
            why=str(error),
            next="mend `cert` in pip's configuration or PIP_CERT",
        ) from error
