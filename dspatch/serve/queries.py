"""The metrics that dashboards and alert rules ask for: found in JSON or YAML, and held against a release."""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from dspatch.errors import ServeWordsError
from dspatch.serve.engines import Facts
from dspatch.serve.metrics import Exported, Metric
from dspatch.serve.verdict import Judge, Verdict

_RECORD = re.compile(r"^\s*-?\s*record:\s*[\"']?([a-zA-Z_:][a-zA-Z0-9_:]*)", re.M)
_COMMENT = re.compile(r"(^|\s)#.*$", re.M)


@dataclass(frozen=True, kw_only=True)
class Asked:
    """A metric's name as files ask for it, and where; `partial` is the rest of a pattern or a variable.

    `recorded`: a rule of these files makes it.
    """

    name: str
    places: tuple[str, ...]
    partial: str = ""
    recorded: bool = False


def of_files(paths: Sequence[Path], facts: Facts) -> list[Asked]:
    """The metrics of an engine that files ask for, each once, in their order.

    Raises `ServeWordsError` for a file that cannot be read.
    """
    found: dict[tuple[str, str], list[str]] = {}
    made: set[str] = set()
    for path in paths:
        text = _text(path)
        made |= set(_RECORD.findall(text))
        for name, partial, place in _names(path, text, facts):
            found.setdefault((name, partial), []).append(place)
    return [
        Asked(name=name, partial=partial, places=tuple(places), recorded=name in made)
        for (name, partial), places in found.items()
    ]


def _text(path: Path) -> str:
    try:
        return path.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise ServeWordsError(
            f"{path} cannot be read.", why=str(error), next="name dashboards (JSON) or rules (YAML)"
        ) from None


def _names(path: Path, text: str, facts: Facts) -> Iterator[tuple[str, str, str]]:
    """Names with what follows a partial one, and their places."""
    # A name, and behind it what makes it part of a longer one: a variable, or a regular expression.
    token = re.compile(
        rf"(?<![a-zA-Z0-9_:])({re.escape(facts.metric_prefix)}[a-zA-Z0-9_:]*)(\$\{{?\w+|\[\[\w+|\.[*+]|\(|\[)?"
    )
    for place, line in _lines(path, text):
        for found in token.finditer(line):
            rest = found[2] or ""
            # In PromQL a bracket is a range and a parenthesis never follows a name.
            partial = rest if rest.startswith(("$", "[[", ".", "(")) else ""
            yield found[1], partial, place


def _lines(path: Path, text: str) -> Iterator[tuple[str, str]]:
    """The texts of a file that may hold queries, with their places."""
    if text.lstrip()[:1] in ("{", "["):
        try:
            yield from (
                (f"{path}: {place}", words) for place, words in _strings(json.loads(text), "")
            )
            return
        except ValueError as error:
            raise ServeWordsError(f"{path} is no JSON.", why=str(error)) from None
    for number, line in enumerate(_COMMENT.sub("", text).splitlines(), 1):
        yield f"{path}:{number}", line


def _strings(value: Any, title: str) -> Iterator[tuple[str, str]]:
    """Every text of a dashboard, with the title of the panel that it is in."""
    if isinstance(value, str):
        yield title or "a query", value
    elif isinstance(value, dict):
        own = value.get("title")
        inner = own if isinstance(own, str) and own else title
        for key, each in value.items():
            if key not in ("title", "description"):
                yield from _strings(each, inner)
    elif isinstance(value, list):
        for each in value:
            yield from _strings(each, title)


def verdicts(
    asked: Iterable[Asked], exported: Exported, facts: Facts, judge: Judge
) -> Iterator[Verdict]:
    """A verdict on every name that was asked for."""
    for each in asked:
        yield _verdict(each, exported, facts, judge)


def _verdict(asked: Asked, exported: Exported, facts: Facts, judge: Judge) -> Verdict:
    place = asked.places[0] + (f" and {len(asked.places) - 1} more" if asked.places[1:] else "")
    if asked.recorded:
        return Verdict(
            word=asked.name, state="known", kind="metric", place=place, say="a rule here records it"
        )
    if asked.partial or asked.name == facts.metric_prefix:
        return _partial(asked, exported, place)
    metric = exported.samples.get(asked.name)
    if metric is not None:
        return _there(asked.name, metric, judge, place)
    whole = exported.metrics.get(asked.name)
    if whole is not None:
        return Verdict(
            word=asked.name, state="wrong", kind="metric", place=place, instead=whole.samples[:3],
            say=f"a {whole.kind}: the scraped names have a suffix",
        )  # fmt: skip
    missing = judge.missing(
        asked.name, asked.name, "metrics", exported.samples, whole=exported.whole, what="metric"
    )
    return replace(missing, place=place)


def _there(name: str, metric: Metric, judge: Judge, place: str) -> Verdict:
    answer = judge.answers.get(name)
    if metric.hidden:
        return Verdict(
            word=name, state="wrong", kind="metric", place=place,
            say="exported only with --show-hidden-metrics-for-version",
            exists=judge.told("metrics", name), instead=answer.instead if answer else (),
        )  # fmt: skip
    return Verdict(
        word=name, state="deprecated" if metric.deprecated else "known", kind="metric", place=place,
        exists=judge.told("metrics", name),
        say=answer.say if answer is not None and metric.deprecated else "",
    )  # fmt: skip


def _partial(asked: Asked, exported: Exported, place: str) -> Verdict:
    """A name that goes on with a pattern or a variable: whether anything can match it."""
    fits = sorted(each for each in exported.samples if each.startswith(asked.name))
    word = asked.name + asked.partial
    if fits:
        return Verdict(
            word=word, state="known", kind="metric", place=place,
            say=f"a pattern or a variable; {len(fits)} names begin so",
        )  # fmt: skip
    return Verdict(
        word=word, state="unknown" if exported.whole else "undecided", kind="metric", place=place,
        say="a pattern or a variable; no name begins so",
    )  # fmt: skip
