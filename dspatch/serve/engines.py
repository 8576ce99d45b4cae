"""The servers of engines, from `data/servers.toml`: how their commands begin and which files tell of them."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from fnmatch import fnmatch
from functools import cache
from pathlib import Path
from typing import Any

from dspatch import tomlfile
from dspatch.audit.source import Source, read_together
from dspatch.errors import PatchFormatError, UnknownEngineError
from dspatch.paths import PACKAGE

DATA = PACKAGE / "serve" / "data"


@dataclass(frozen=True, kw_only=True)
class Server:
    """A server: the words behind the program that name it, and where its parser is built.

    `command` is the subcommand whose parser it is, empty where the function builds that parser itself.
    """

    words: tuple[str, ...]
    start: tuple[str, ...]
    command: str = ""

    @property
    def name(self) -> str:
        """The server as it is told."""
        return " ".join(self.words)


@dataclass(frozen=True, kw_only=True)
class Facts:
    """What is known of an engine's servers before its source is read.

    `metrics` and `parsers` are patterns of paths; those of `parsers` are only fetched ahead. A file of
    `metrics_need` counts only where the class that it names by `path:class` is there.
    """

    engine: str
    package: str
    programs: tuple[str, ...]
    servers: tuple[Server, ...]
    environment: tuple[str, ...]
    elsewhere: tuple[str, ...]
    prefixes: tuple[str, ...]
    metric_prefix: str
    metrics: tuple[str, ...]
    parsers: tuple[str, ...]
    metrics_need: Mapping[str, str]


@cache
def facts(engine: str, path: Path = DATA / "servers.toml") -> Facts:
    """What is known of an engine's servers; raises `UnknownEngineError` and `PatchFormatError`."""
    source = tomlfile.load(path, PatchFormatError)
    table: Mapping[str, Any] = source.get(source.data, engine, dict, default={})
    if not table:
        raise UnknownEngineError(
            f"nothing is known of a server of {engine}.",
            why=f"those known: {', '.join(sorted(source.data))}",
            next="name one of these with --engine",
        )
    servers = [
        Server(
            words=source.strings(each, "words"),
            start=source.strings(each, "start"),
            command=str(each.get("command", "")),
        )
        for each in source.get(table, "servers", list)
    ]
    return Facts(
        engine=engine,
        package=source.get(table, "package", str),
        programs=source.strings(table, "programs"),
        servers=tuple(servers),
        environment=source.strings(table, "environment"),
        elsewhere=source.strings(table, "environment-elsewhere"),
        prefixes=source.strings(table, "prefixes"),
        metric_prefix=source.get(table, "metric-prefix", str),
        metrics=source.strings(table, "metrics"),
        parsers=source.strings(table, "parsers"),
        metrics_need=source.get(table, "metrics-need", dict, default={}),
    )


def fitting(source: Source, patterns: Iterable[str]) -> Iterator[str]:
    """The paths of a source that fit patterns, looked for when they are asked for."""
    patterns = tuple(patterns)
    yield from (p for p in source.files.paths() if any(fnmatch(p, each) for each in patterns))


def ahead(source: Source, paths: Iterable[str]) -> None:
    """Fetch files of a release at once, so that none costs a round trip; elsewhere reading costs none."""
    if source.kind == "release":
        read_together(source, paths)
