"""A command line taken apart: variables in front, what starts the server, its options and other words."""

from __future__ import annotations

import re
import shlex
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import takewhile
from pathlib import PurePath

from dspatch.errors import ServeWordsError
from dspatch.serve.engines import Facts, Server

_ASSIGNMENT = re.compile(r"[A-Za-z_][A-Za-z0-9_]*=")
_IMAGE = re.compile(r"(^|/)vllm-openai(-[a-z0-9]+)?(:|@|$)")


@dataclass(frozen=True, kw_only=True)
class Line:
    """The parts of a command line, each in the order given.

    `launcher` are words in front that belong to neither (`env`, `numactl`, `docker run …`); `program`
    is empty when the words were options only, and `server` is then the one that they are held against.
    """

    assignments: tuple[tuple[str, str], ...]
    launcher: tuple[str, ...]
    program: tuple[str, ...]
    server: Server | None
    arguments: tuple[str, ...]


def parse(words: Sequence[str], facts: Facts) -> Line:
    """Take a command line apart; one word with blanks in it is split as a shell would."""
    given = [each for each in split(words) if each.strip() not in ("", "\\")]
    start, end, server = _program(given, facts)
    front = given[:start]
    return Line(
        assignments=tuple(_assignments(front)),
        launcher=tuple(each for each in front if not _ASSIGNMENT.match(each)),
        program=tuple(given[start:end]),
        server=server,
        arguments=tuple(given[end:]),
    )


def split(words: Sequence[str]) -> list[str]:
    """The words of a command line, also where it was given as one. Raises `ServeWordsError`."""
    if len(words) != 1:
        return list(words)
    try:
        return shlex.split(words[0], comments=True)
    except ValueError as error:
        raise ServeWordsError(
            "the command line cannot be split into words.", why=str(error),
            next="quote it as for a shell, or write its words behind --",
        ) from None  # fmt: skip


def _assignments(words: Sequence[str]) -> Iterator[tuple[str, str]]:
    for word in words:
        if _ASSIGNMENT.match(word):
            name, _, value = word.partition("=")
            yield name, value


def _program(words: Sequence[str], facts: Facts) -> tuple[int, int, Server | None]:
    """Where the words that name the server begin and end, and which server they name."""
    by_module = {server.words[0]: server for server in facts.servers if not server.command}
    by_command = [server for server in facts.servers if server.command]
    for at, word in enumerate(words):
        module = words[at + 1] if word == "-m" and at + 1 < len(words) else _module(word)
        if module in by_module:
            begin = _python(words, at)
            return begin, at + (2 if word == "-m" else 1), by_module[module]
        if PurePath(word).name in facts.programs and not word.startswith("-"):
            return at, *_command(words, at + 1, by_command)
        if _IMAGE.search(word):
            # The image's entry point is the server, and what follows are its options.
            return at, at + 1, next(iter(by_module.values()), None)
    options = next((at for at, word in enumerate(words) if word.startswith("-")), len(words))
    default = by_command[0] if by_command else None
    # Behind assignments alone, options are taken for those of the server that is asked most.
    alone = options == len(list(takewhile(_ASSIGNMENT.match, words)))
    return (options, options, default) if alone else (len(words), len(words), None)


def _command(words: Sequence[str], at: int, servers: Sequence[Server]) -> tuple[int, Server | None]:
    for server in servers:
        end = at + len(server.words)
        if tuple(words[at:end]) == server.words:
            return end, server
    return at, None


def _module(word: str) -> str:
    """The module that a path to a Python file names, as `python path/to/api_server.py` does."""
    return word.removesuffix(".py").replace("/", ".").lstrip(".") if word.endswith(".py") else ""


def _python(words: Sequence[str], at: int) -> int:
    """Where the Python in front of a module stands."""
    for begin in range(at - 1, -1, -1):
        if PurePath(words[begin]).name.startswith("python"):
            return begin
    return at
