"""A patch folder as a mail that holds all of it, and back: the words of patch.toml as fields."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping, Sequence
from typing import Any

import tomlkit

from dspatch.carry.exchange.mail import PatchMail
from dspatch.errors import DiffFormatError, PatchFormatError
from dspatch.patchfile import TARGETS, Patch

_NOT_SAID = "never: nobody has said yet where it stands with upstream"
_LANDED = re.compile(r"https://[^ ]+/commit/[0-9a-f]{7,40}/?")
_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]*")
_LISTS = ("targets", "needs", "families")


def as_mail(patch: Patch, diff: str, *, engine: str, made_on: str) -> PatchMail:
    """A patch with its change on one revision."""
    lists = {key: getattr(patch, key) for key in _LISTS if getattr(patch, key)}
    applies_to = [f"{engine} {made_on}", *(f"{k} {', '.join(v)}" for k, v in lists.items())]
    fields = [
        ("Patch", patch.name),
        ("Upstream", patch.upstream),
        _dep3(patch.upstream),
        ("Drop-when", patch.drop_when),
        ("Applies-to", "; ".join(applies_to)),
        ("Reference-ops", ", ".join(patch.reference_ops)),
        ("Written-for", patch.written_for or ""),
    ]
    if patch.fuzz:
        fields.append(("Fuzz", _as_json(context=patch.fuzz.context, reason=patch.fuzz.reason)))
    for one in patch.waived:
        fields.append(("Waive", _as_json(symbol=one.symbol, reason=one.reason, shape=one.shape)))
    return PatchMail(subject=patch.subject, body=patch.reason, fields=tuple(fields), diff=diff)


def as_table(mail: PatchMail, *, written_for: str | None = None) -> dict[str, Any]:
    """The keys of patch.toml that a mail says; what it does not say takes the widest meaning.

    `written_for` is the pin that a patch is taken to be written for which came without our fields.
    """
    said = _applies_to(mail)
    if mail.get("Applies-to"):
        written_for = None
    table: dict[str, Any] = {
        "subject": mail.subject,
        "reason": mail.body,
        "upstream": _upstream(mail),
        "drop-when": mail.get("Drop-when") or "upstream has the same change",
        "targets": said.get("targets") or list(TARGETS),
    }
    more: dict[str, Any] = {
        "needs": said.get("needs"),
        "families": said.get("families"),
        "reference-ops": [op for op in mail.get("Reference-ops").split(", ") if op],
        "written-for": mail.get("Written-for") or written_for,
        "fuzz": _from_json(mail, mail.get("Fuzz") or "null"),
        "waive": [_from_json(mail, value) for name, value in mail.fields if name == "Waive"],
    }
    return table | {key: value for key, value in more.items() if value}


def made_on(mail: PatchMail) -> tuple[str, str] | None:
    """The engine and the revision that a mail's diff was made on, where it says so."""
    first = mail.get("Applies-to").split("; ", 1)[0].split(" ")
    return (first[0], first[1]) if len(first) == 2 else None


def toml(table: Mapping[str, Any]) -> bytes:
    """The text of patch.toml."""
    document = tomlkit.document()
    for key, value in table.items():
        document.add(key, string(value) if isinstance(value, str) else tomlkit.item(value))
    return tomlkit.dumps(document).encode()


def string(value: str) -> Any:
    """A TOML string: on lines of its own when it has several."""
    if "\n" not in value.strip():
        return tomlkit.string(value.strip())
    text = value.strip("\n") + "\n"
    return _block(text, literal='"' in text or "\\" in text)


def _block(text: str, *, literal: bool = True) -> Any:
    """Several lines, literally where that is wished and can be."""
    special = "'''" in text or re.search(r"[\x00-\x08\x0b-\x1f\x7f]", text)
    quoted = tomlkit.string(text, literal=literal and not special, multiline=True).as_string()
    # A newline right behind the opening quotes is no part of the string; tomlkit puts one where the
    # text starts with its own.
    start = quoted[:3] if text.startswith("\n") else f"{quoted[:3]}\n"
    return tomlkit.value(start + quoted[3:])


def updated(
    toml: bytes, *, keys: Mapping[str, str] | None = None, texts: Mapping[int, str] | None = None
) -> bytes:
    """A patch.toml with new values for some keys, and new texts for some edits; the rest as it was."""
    document = tomlkit.parse(toml.decode())
    for key, value in (keys or {}).items():
        document[key] = string(value)
    for index, text in (texts or {}).items():
        edit: Any = document["edit"][index]
        edit["text"] = _block(text) if "\n" in text else string(text)
    return tomlkit.dumps(document).encode()


def slug(subject: str) -> str:
    """A patch's name from its subject: a few plain words."""
    bare = re.sub(r"\[[^\]]*\]|\(#\d+\)", " ", subject)
    words = re.findall(r"[a-z0-9]+", bare.lower().encode("ascii", "ignore").decode())
    name = ""
    for word in words:
        if name and len(name) + len(word) >= 40:
            break
        name = f"{name}-{word}" if name else word[:40]
    return name or "patch"


def check_name(name: str) -> None:
    """Raise `PatchFormatError` for what cannot be the name of a folder."""
    if not _NAME.fullmatch(name):
        raise PatchFormatError(
            f"`{name}` cannot be the name of a patch.",
            why="a name is letters, digits, `-`, `_` and `.`, for it is the name of a folder",
        )


def check_free(name: str, names: Sequence[str]) -> None:
    """Raise `PatchFormatError` for a name that another patch has."""
    if name in names:
        raise PatchFormatError(f"there is a patch `{name}` already.", next="give another --name")


def name_of(mail: PatchMail, names: Sequence[str]) -> str:
    """The name of a new patch: the one it brings, otherwise words of its subject, numbered if taken.

    Raises `PatchFormatError` when the one it brings is taken.
    """
    brought = mail.get("Patch")
    if _NAME.fullmatch(brought):
        check_free(brought, names)
        return brought
    base = slug(mail.subject)
    return next(
        name for n in range(1, 1000) if (name := f"{base}-{n}" if n > 1 else base) not in names
    )


def _dep3(upstream: str) -> tuple[str, str]:
    """Where a patch stands with upstream in the words of DEP-3."""
    if _LANDED.fullmatch(upstream):
        return ("Origin", f"backport, {upstream}")
    return ("Forwarded", upstream if upstream.startswith("https://") else "no")


def _upstream(mail: PatchMail) -> str:
    """Our own field first, then what DEP-3 has for it."""
    origin = mail.get("Origin").partition(", ")[2]
    links = (mail.get("Upstream"), origin, mail.get("Forwarded"), mail.get("Applied-Upstream"))
    return next((link for link in links if link.startswith(("https://", "never:"))), _NOT_SAID)


def _applies_to(mail: PatchMail) -> dict[str, list[str]]:
    parts = [part.partition(" ") for part in mail.get("Applies-to").split("; ")[1:]]
    return {key: values.split(", ") for key, _, values in parts if key in _LISTS}


def _as_json(**values: Any) -> str:
    said = {key: value for key, value in values.items() if value is not None}
    return json.dumps(said, ensure_ascii=False)


def _from_json(mail: PatchMail, value: str) -> Any:
    try:
        return json.loads(value)
    except ValueError:
        raise DiffFormatError(
            f"the mail of `{mail.subject}` has a field that cannot be read.",
            why=f"it is no JSON: {value[:80]}",
            next="mend the field, or take it out",
        ) from None
