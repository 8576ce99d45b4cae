"""The words of a command line as `argparse` takes them: which is which option, which is whose value."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Literal

from dspatch.serve.option import Option
from dspatch.serve.options import Rules, Taken

How = Literal["exact", "abbreviated", "ambiguous", "unknown"]
_LEVEL = "--optimization-level"
_NEGATIVE = re.compile(r"^-\d+$|^-\d*\.\d+$")


@dataclass(frozen=True, kw_only=True)
class Given:
    """An option as it was given: its word, the option that it is (`None`: none), its values.

    `key` is the path of `--name.key`; `candidates` are what an ambiguous word may mean; `short` is how
    many values are lacking.
    """

    word: str
    how: How
    option: Option | None
    name: str = ""
    values: tuple[str, ...] = ()
    key: str = ""
    candidates: tuple[str, ...] = ()
    short: int = 0
    unwanted: bool = False  # `--flag=value` where the flag takes none


@dataclass(frozen=True, kw_only=True)
class Words:
    """What a command line gives: options in their order, positional words, and words that are too many."""

    given: tuple[Given, ...]
    positionals: tuple[str, ...]
    extra: tuple[str, ...]


def walk(arguments: Sequence[str], taken: Taken) -> Words:
    """Assign every word to an option or a place, as the parser of the server would."""
    words = _levels(arguments, taken) if taken.rules.level else list(arguments)
    given: list[Given] = []
    loose: list[str] = []
    at = 0
    while at < len(words):
        if words[at] == "--":
            loose += words[at + 1 :]
            break
        found = _recognised(words[at], taken)
        if found is None:
            loose.append(words[at])
            at += 1
            continue
        filled, at = _filled(found, words, at + 1, taken)
        given.append(filled)
    places = _places(taken)
    return Words(given=tuple(given), positionals=tuple(loose[:places]), extra=tuple(loose[places:]))


def _places(taken: Taken) -> int:
    """How many positional words there is room for."""
    if any(each.values in ("any", "some") for each in taken.positionals):
        return 1 << 30
    return len(taken.positionals)


def _levels(arguments: Sequence[str], taken: Taken) -> list[str]:
    """`-O3` as two words, as vLLM's parser makes of it: `-O`, or the option that took its place."""
    name = "-O" if "-O" in taken.table or _LEVEL not in taken.table else _LEVEL
    found: list[str] = []
    for at, word in enumerate(arguments):
        if word.startswith("-O") and word != "-O" and not word.startswith("-O."):
            found += [name, word[3:] if word[2] == "=" else word[2:]]
        elif word == "-O" and arguments[at + 1 : at + 2] and arguments[at + 1].isdigit():
            found.append(name)
        else:
            found.append(word)
    return found


def normal(word: str, rules: Rules) -> str:
    """A word's name as the parser looks it up: `_` as `-` up to the first dot, where it does so."""
    if not rules.underscores or not word.startswith("--"):
        return word
    name, equals, value = word.partition("=")
    first, dot, rest = name.partition(".") if rules.dotted else (name, "", "")
    return first.replace("_", "-") + dot + rest + equals + value


def _recognised(word: str, taken: Taken) -> Given | None:
    """The option that a word is, `None` when it is a value or a positional word."""
    if not word.startswith("-") or word == "-":
        return None
    clean = normal(word, taken.rules)
    if clean in taken.table:
        return Given(word=word, how="exact", option=taken.table[clean], name=clean)
    name, equals, value = clean.partition("=")
    inline = (value,) if equals else ()
    key = ""
    if taken.rules.dotted and "." in name:
        name, _, key = name.partition(".")
    if name in taken.table:
        return Given(
            word=word, how="exact", option=taken.table[name], name=name, values=inline, key=key
        )
    return _begun(word, name, inline, key, taken)


def _begun(word: str, name: str, inline: tuple[str, ...], key: str, taken: Taken) -> Given | None:
    """A word that is no whole name: the beginning of one, a negative number, a sentence, or unknown."""
    begun = (
        [each for each in taken.table if _abbreviates(name, each)]
        if taken.rules.abbreviations
        else []
    )
    if len(begun) == 1:
        return Given(
            word=word, how="abbreviated", option=taken.table[begun[0]], name=begun[0],
            values=inline, key=key,
        )  # fmt: skip
    if begun:
        return Given(
            word=word, how="ambiguous", option=None, name=name, values=inline,
            candidates=tuple(begun),
        )  # fmt: skip
    if _NEGATIVE.match(word) or " " in word:
        return None
    return Given(word=word, how="unknown", option=None, name=name, values=inline, key=key)


def _abbreviates(name: str, whole: str) -> bool:
    return name.startswith("--") and len(name) > 2 and whole.startswith(name)


def _filled(found: Given, words: list[str], at: int, taken: Taken) -> tuple[Given, int]:
    """An option with the words behind it that are its values, and where the next one stands."""
    option = found.option
    if found.values:
        return replace(found, unwanted=option is not None and option.values == "none"), at
    if option is None:
        # Whether a word behind an unknown option is its value, nobody can know; people mean it so.
        values = tuple(_following(words, at, taken))[:1]
        return replace(found, values=values), at + len(values)
    least, most = _room(option) if not found.key else (1, 1)
    values = tuple(_following(words, at, taken))[:most]
    return replace(found, values=values, short=max(0, least - len(values))), at + len(values)


def _room(option: Option) -> tuple[int, int]:
    """How many values an option needs at least, and takes at most."""
    if option.values == "none":
        return 0, 0
    if option.values == "one":
        return option.count, option.count
    many = 1 << 30
    return {"optional": (0, 1), "any": (0, many), "some": (1, many)}[option.values]


def _following(words: list[str], at: int, taken: Taken) -> Iterator[str]:
    for word in words[at:]:
        if word == "--" or _recognised(word, taken) is not None:
            return
        yield word
