"""A patch as mail: the form that `git am` takes, read back to the same object and written to the same bytes."""

from __future__ import annotations

import re
import unicodedata
from dataclasses import dataclass
from email.header import decode_header, make_header

from dspatch.git import IDENTITY

# git's own first line of a mail, with the zero commit id: it names no commit of anybody.
_SEPARATOR = f"From {'0' * 40} Mon Sep 17 00:00:00 2001"
# The date of every commit that dspatch writes (`git.EPOCH`).
_DATE = "Sat, 1 Jan 2000 00:00:00 +0000"
_HEADER = f"""\
{_SEPARATOR}
From: {IDENTITY}
Date: {_DATE}
Subject: {{subject}}
MIME-Version: 1.0
Content-Type: text/plain; charset=UTF-8
Content-Transfer-Encoding: 8bit

"""
_BREAK = "---\n\n"
_WIDTH = 76
# Lines of a message that git (mailsplit, mailinfo) or a reader of diffs would take for structure.
_STRUCTURE = re.compile(
    r"diff -|Index: |---|>?From |\[PATCH|(From|Subject|Date|Message-ID|MIME-Version|Content-[a-z-]+):"
    r"|.*(>8|8<|>%|%<)",
    re.IGNORECASE,
)
_FIELD = re.compile(r"([A-Z][A-Za-z]*(?:-[A-Za-z]+)*): (.*)")
# What git strips from the start of a subject.
_STRIPPED = re.compile(r"re:|\[|:", re.IGNORECASE)


@dataclass(frozen=True, kw_only=True)
class PatchMail:
    """A subject, a body, named fields (the first is `Patch`, the patch's name), and the diff.

    Text takes its normal form when the object is made: no trailing space, no control characters.
    """

    subject: str
    body: str
    fields: tuple[tuple[str, str], ...] = ()
    diff: str

    def __post_init__(self) -> None:
        object.__setattr__(self, "subject", " ".join(_clean(self.subject).split()))
        object.__setattr__(self, "body", text(self.body))
        values = tuple((name, _folding(value)) for name, value in self.fields)
        object.__setattr__(self, "fields", tuple(item for item in values if item[1]))
        ended = self.diff if self.diff.endswith("\n") or not self.diff else self.diff + "\n"
        object.__setattr__(self, "diff", ended)

    def get(self, name: str) -> str:
        """The value of a field, empty when it is not there."""
        return next((value for key, value in self.fields if key == name), "")

    @property
    def message(self) -> str:
        """Body and fields, with every line guarded that looks like structure."""
        guarded = "\n".join(_guard(line) for line in self.body.split("\n"))
        fields = "\n".join(f"{name}: {value}".replace("\n", "\n ") for name, value in self.fields)
        return "\n\n".join(part for part in (guarded, fields) if part)


def write(mail: PatchMail) -> bytes:
    """The mail's bytes, a function of its content alone."""
    head = _HEADER.format(subject=_header_value(_stuffed_subject(mail)))
    message = f"{mail.message}\n" if mail.message else ""
    return (head + message + _BREAK + mail.diff).encode("utf-8", "surrogateescape")


def is_written(data: bytes) -> bool:
    """Whether bytes begin as every mail of ours."""
    return data.startswith(_SEPARATOR.encode() + b"\n")


def is_own(data: bytes) -> bool:
    """Whether bytes are a mail that `write` made of a patch with its fields."""
    return is_written(data) and b"\nPatch: " in data


def read_own(data: bytes) -> PatchMail:
    """The mail that `write` made these bytes of."""
    header, _, rest = data.decode("utf-8", "surrogateescape").partition("\n\n")
    message, _, diff = ("\n" + rest).partition(f"\n{_BREAK}")
    subject = re.search(r"^Subject: (.*(?:\n .*)*)", header, re.MULTILINE)
    body, fields = split_message(message)
    mail = PatchMail(
        subject=header_text(subject[1] if subject else ""), body=body, fields=fields, diff=diff
    )
    return PatchMail(
        subject=_unstuffed_subject(mail), body=mail.body, fields=mail.fields, diff=mail.diff
    )


def split_message(message: str) -> tuple[str, tuple[tuple[str, str], ...]]:
    """A commit message without its subject, as body and fields; no fields without `Patch:`."""
    before, found, block = ("\n\n" + message.strip("\n")).rpartition("\n\nPatch: ")
    if not found:
        return text(message), ()
    block, _, after = f"Patch: {block}".partition("\n\n")
    body = f"{before}\n\n{after}".strip("\n")
    return "\n".join(_unguard(line) for line in body.split("\n")), fields_of(block)


def header_text(value: str) -> str:
    """A header's value as text: unfolded, and decoded where it is an RFC 2047 word."""
    unfolded = re.sub(r"\r?\n[ \t]+", " ", value).strip()
    if "=?" not in unfolded:
        return unfolded
    try:
        return str(make_header(decode_header(unfolded)))
    except (LookupError, ValueError):
        return unfolded


def text(value: str) -> str:
    """Text in its normal form: lines end in one newline and in no space, the ends are bare."""
    lines = _clean(value).replace("\r\n", "\n").replace("\r", "\n").split("\n")
    return "\n".join(line.rstrip() for line in lines).strip()


def _clean(value: str) -> str:
    """Without control characters, which no mail carries, and without lone surrogates."""
    valid = value.encode("utf-8", "replace").decode()
    return "".join(c for c in valid if c in "\n\r\t" or unicodedata.category(c) != "Cc")


def _folding(value: str) -> str:
    return "\n".join(line.strip() for line in text(value).split("\n") if line.strip())


def _guard(line: str) -> str:
    return f" {line}" if _STRUCTURE.match(line.lstrip(" ")) else line


def _unguard(line: str) -> str:
    return line[1:] if line.startswith(" ") and _STRUCTURE.match(line.lstrip(" ")) else line


def fields_of(block: str) -> tuple[tuple[str, str], ...]:
    """The `Name: value` lines of a block; an indented line continues the one before."""
    found: list[tuple[str, str]] = []
    for line in block.split("\n"):
        match = _FIELD.fullmatch(line)
        if match:
            found.append((match.group(1), match.group(2)))
        elif found:
            found[-1] = (found[-1][0], f"{found[-1][1]}\n{line.strip()}")
    return tuple(found)


def _stuffed_subject(mail: PatchMail) -> str:
    """git strips `[...]` and `Re:` from the start of a subject; behind the patch's name they stay."""
    prefix = f"{mail.get('Patch')}: "
    needed = _STRIPPED.match(mail.subject) or mail.subject.startswith(prefix)
    return prefix + mail.subject if needed else mail.subject


def _unstuffed_subject(mail: PatchMail) -> str:
    return mail.subject.removeprefix(f"{mail.get('Patch')}: ")


def _header_value(value: str) -> str:
    plain = value.isascii() and "=?" not in value
    parts = value.split(" ") if plain else [""]
    if not plain:
        return "\n ".join(f"=?UTF-8?q?{word}?=" for word in _encoded(value))
    lines = [parts[0]]
    for part in parts[1:]:
        if len(lines[-1]) + len(part) + 1 > _WIDTH - (len("Subject: ") if len(lines) == 1 else 1):
            lines.append(part)
        else:
            lines[-1] += f" {part}"
    return "\n ".join(lines)


def _encoded(value: str) -> list[str]:
    """RFC 2047's Q encoding, cut between characters so that every word stands alone."""
    words = [""]
    for char in value:
        safe = char.isascii() and char.isalnum()
        code = char if safe else "_" if char == " " else "".join(f"={b:02X}" for b in char.encode())
        if len(words[-1]) + len(code) > _WIDTH - len("Subject: =?UTF-8?q??="):
            words.append("")
        words[-1] += code
    return words
