"""Output formats: from a small TOML file to what a server's answers shall look like."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from pathlib import Path
from pprint import pformat
from typing import Any

from dspatch import tomlfile
from dspatch.errors import OutputFormatError

# The objects that a server answers with; those of streams are the chunks.
OBJECTS = ("chat.completion", "chat.completion.chunk", "text_completion", "text_completion.chunk")
CHUNK = ".chunk"
LISTS = ("choices", "choices.message.tool_calls", "choices.delta.tool_calls")

_RULES = ("drop", "rename", "copy", "add")
_CHOICES = {"role": ("first", "every"), "usage": ("last", "every"), "finish-reason": ("own",)}
_SHAPE = (*_CHOICES, "empty-choices")
_NAME = re.compile(r"[a-z0-9][a-z0-9.-]*")
_PATH = re.compile(r"[A-Za-z_][\w-]*(\.[A-Za-z_][\w-]*)*")

_CALL = ("id", "type", "index", "function", "function.name", "function.arguments")
_USAGE = tuple(f"usage.{name}_tokens" for name in ("prompt", "completion", "total"))
_EVERY = ("id", "object", "created", "model", "choices", "choices.index", "choices.finish_reason")


def _kept(said: str) -> tuple[str, ...]:
    calls = (f"{said}.tool_calls", *(f"{said}.tool_calls.{name}" for name in _CALL))
    return (*_EVERY, *_USAGE, said, f"{said}.role", f"{said}.content", *calls)


# What the official client needs to read an answer: no format takes it away or gives it another meaning.
KEPT = {
    "chat.completion": _kept("choices.message"),
    "chat.completion.chunk": _kept("choices.delta"),
    "text_completion": (*_EVERY, *_USAGE, "choices.text"),
    "text_completion.chunk": (*_EVERY, *_USAGE, "choices.text"),
}


@dataclass(frozen=True, kw_only=True)
class Rules:
    """What becomes of one kind of object. A path names fields from the outside in and goes through lists.

    `rename`: path -> the field's new name; `copy`: path of the new field -> path of its source, as
    the engine names it; `add`: path -> value. The last four are of chunks only, and empty where a chunk
    stays as the engine makes it.
    """

    drop: tuple[str, ...] = ()
    rename: Mapping[str, str] = field(default_factory=dict)
    copy: Mapping[str, str] = field(default_factory=dict)
    add: Mapping[str, Any] = field(default_factory=dict)
    role: str = ""
    usage: str = ""
    finish_reason: str = ""
    empty_choices: bool = True

    def renamed(self, path: str) -> str:
        """The path of a field of the engine's, as the format has it; empty where it is dropped."""
        found: list[str] = []
        parts = path.split(".")
        for number, part in enumerate(parts):
            own = ".".join(parts[: number + 1])
            if own in self.drop:
                return ""
            found.append(self.rename.get(own, part))
        return ".".join(found)

    def placed(self, path: str, name: str | None = None) -> str:
        """A path as the format has the outer fields; its last one as it stands, or under another name."""
        outer, dot, last = path.rpartition(".")
        return f"{self.renamed(outer)}{dot}{name or last}"

    def made(self) -> list[tuple[str, str]]:
        """The paths of the fields that rules make, as the format has them, and each one's rule."""
        renamed = [(self.placed(path, name), "rename") for path, name in self.rename.items()]
        others = [(path, key) for key in ("copy", "add") for path in getattr(self, key)]
        return [*renamed, *((self.placed(path), key) for path, key in others)]


@dataclass(frozen=True, kw_only=True)
class OutputFormat:
    """A downstream contract by name, which is part of a job's: rules by the object they are for."""

    name: str
    objects: Mapping[str, Rules] = field(default_factory=dict)

    def rules(self, kind: str) -> Rules:
        """The rules for a kind of object; empty ones where the format says nothing of it."""
        return self.objects.get(kind, Rules())

    @property
    def literal(self) -> str:
        """The rules as a Python literal, the same for the same format, for a template."""
        return pformat(
            {kind: _plain(rules) for kind, rules in self.objects.items()}, width=88, sort_dicts=True
        )


# What patches are looked at with where no job asks: it changes nothing.
NONE = OutputFormat(name="none")


def load(path: Path) -> OutputFormat:
    """Read a format. Raises `OutputFormatError` with file and line."""
    source = tomlfile.load(path, OutputFormatError)
    source.check_keys(source.data, ("name", "chat", "text_completion"))
    name = source.get(source.data, "name", str, default=path.stem.lower())
    if not _NAME.fullmatch(name):
        raise source.fail(
            f"`name` must be small letters, digits, `-` and `.`, for jobs are named by it, not {name!r}",
            key="name",
        )
    found = {kind: _rules(source, kind, table) for kind, table in _tables(source) if table}
    if not found:
        raise source.fail(f"a format needs one of the tables {', '.join(OBJECTS)}")
    return OutputFormat(name=name, objects=found)


def given(content: Mapping[str, Any] | None) -> OutputFormat | None:
    """A format as receipts keep it."""
    if content is None:
        return None
    objects = {
        kind: Rules(**{**rules, "drop": tuple(rules["drop"])})
        for kind, rules in content["objects"].items()
    }
    return OutputFormat(name=content["name"], objects=objects)


def _plain(rules: Rules) -> dict[str, Any]:
    """The rules that say something."""
    nothing = asdict(Rules())
    found = {name: value for name, value in asdict(rules).items() if value != nothing[name]}
    return {**found, **({"drop": list(rules.drop)} if rules.drop else {})}


def _tables(source: tomlfile.TomlFile) -> list[tuple[str, dict[str, Any]]]:
    """The tables of a file by the object that each is for."""
    chat = source.get(source.data, "chat", dict, default={})
    source.check_keys(chat, ("completion",), within="chat")
    found: list[tuple[str, dict[str, Any]]] = []
    for kind, outer, key in (
        ("chat.completion", chat, "completion"),
        ("text_completion", source.data, "text_completion"),
    ):
        table = dict(source.get(outer, key, dict, within="chat", default={}))
        chunk = source.get(table, "chunk", dict, within=kind, default={})
        table.pop("chunk", None)
        found += [(kind, table), (kind + CHUNK, chunk)]
    return found


def _rules(source: tomlfile.TomlFile, kind: str, table: dict[str, Any]) -> Rules:
    streamed = kind.endswith(CHUNK)
    source.check_keys(table, (*_RULES, *(_SHAPE if streamed else ())), within=kind)
    rename, copy, add = (
        dict(source.get(table, key, dict, within=kind, default={})) for key in _RULES[1:]
    )
    rules = Rules(
        drop=source.strings(table, "drop", within=kind),
        rename=rename,
        copy=copy,
        add=add,
        role=_choice(source, kind, table, "role"),
        usage=_choice(source, kind, table, "usage"),
        finish_reason=_choice(source, kind, table, "finish-reason"),
        empty_choices="empty-choices" not in table
        or source.get(table, "empty-choices", bool, within=kind),
    )
    _check(source, kind, rules)
    return rules


def _choice(source: tomlfile.TomlFile, kind: str, table: Mapping[str, Any], key: str) -> str:
    if key not in table:
        return ""
    value = source.get(table, key, str, within=kind)
    if value not in _CHOICES[key]:
        wanted = " or ".join(f'"{one}"' for one in _CHOICES[key])
        raise source.fail(f"`{key}` must be {wanted}, not {value!r}", key=key, within=kind)
    return value


def _check(source: tomlfile.TomlFile, kind: str, rules: Rules) -> None:
    """Refuse what is no path, what would break an answer, and rules that contradict each other."""
    for key, paths in (
        ("drop", rules.drop), ("rename", rules.rename), ("copy", rules.copy), ("add", rules.add),
    ):  # fmt: skip
        for path in paths:
            _check_path(source, kind, key, path)
            if path in KEPT[kind]:
                raise source.fail(
                    f"`{path}` is needed by every client, so a format leaves it as it is",
                    key=key, within=kind,
                )  # fmt: skip
    for path, name in rules.rename.items():
        if not isinstance(name, str) or not _PATH.fullmatch(name) or "." in name:
            raise source.fail(
                f"`{path}` must get one name, not {name!r}", key="rename", within=kind
            )
    for path, origin in rules.copy.items():
        if not isinstance(origin, str):
            raise source.fail(f"`{path}` must be copied from a path", key="copy", within=kind)
        _check_path(source, kind, "copy", origin)
    for path, value in rules.add.items():
        _check_value(source, kind, path, value)
    _check_places(source, kind, rules)


def _check_path(source: tomlfile.TomlFile, kind: str, key: str, path: str) -> None:
    if not _PATH.fullmatch(path):
        raise source.fail(
            f"`{path}` is no path; write fields with dots between, such as choices.message.reasoning",
            key=key, within=kind,
        )  # fmt: skip


def _check_value(source: tomlfile.TomlFile, kind: str, path: str, value: Any) -> None:
    try:
        json.dumps(value, allow_nan=False)
    except (TypeError, ValueError):
        raise source.fail(
            f"`{path}` cannot be added: {value!r} is nothing that JSON has", key="add", within=kind
        ) from None


def _check_places(source: tomlfile.TomlFile, kind: str, rules: Rules) -> None:
    """Each field of an answer comes from one rule, which no other takes away again."""
    for path in rules.rename:
        if any(path == gone or path.startswith(f"{gone}.") for gone in rules.drop):
            raise source.fail(f"`{path}` is dropped, and renamed", key="rename", within=kind)
    for path in (*rules.copy, *rules.add):
        if path in rules.drop or path in rules.rename:
            raise source.fail(f"`{path}` is dropped, and made", key="drop", within=kind)
    for path, origin in rules.copy.items():
        _check_lists(source, kind, path, origin)
    seen: dict[str, str] = {}
    for path, key in rules.made():
        if path in KEPT[kind]:
            raise source.fail(
                f"`{path}` is needed by every client, so nothing else takes its name",
                key=key, within=kind,
            )  # fmt: skip
        if path in seen:
            raise source.fail(
                f"`{path}` comes from two rules, {seen[path]} and {key}", key=key, within=kind
            )
        seen[path] = key


def _check_lists(source: tomlfile.TomlFile, kind: str, path: str, origin: str) -> None:
    """A copy does not leave the item of a list that its source is in."""
    for each in LISTS:
        if f"{origin}.".startswith(f"{each}.") and not f"{path}.".startswith(f"{each}."):
            raise source.fail(
                f"`{path}` comes from each of `{each}`, and goes to none of them",
                key="copy", within=kind,
            )  # fmt: skip
