"""Anyone's patches as mail objects: git's and GitHub's mails, mailboxes, quilt's headers, plain diffs."""

from __future__ import annotations

import email
import re
from email.message import Message

from dspatch.carry.exchange import mail
from dspatch.carry.exchange.mail import PatchMail
from dspatch.errors import DiffFormatError

# A mailbox's separator, by git's rule: "From ", and further on a time and a year.
_FROM = re.compile(rb"^From [^\n]*\d:\d\d(:\d\d)?[^\n]* (19|20)\d\d\s*$", re.MULTILINE)
_HEADER_LINE = re.compile(r"[A-Za-z][A-Za-z-]*:( |$)")
_DIFF_LINE = re.compile(r"^(diff -|Index: |--- \S|Binary files )", re.MULTILINE)
_MESSAGE_END = re.compile(r"^(diff -|Index: |--- \S|---\s*$)", re.MULTILINE)
_PATCH_TAG = re.compile(r"\s*(\[[^\]]*PATCH[^\]]*\]|re:)\s*", re.IGNORECASE)
_TRAILER = re.compile(
    r"(Signed-off-by|Co-authored-by|Reviewed-by|Acked-by|Tested-by|Change-Id|Cc|cherry picked from"
    r"|\(cherry picked from)\b",
    re.IGNORECASE,
)


def read(data: bytes, name: str) -> tuple[PatchMail, ...]:
    """The patches in some bytes; `name` is the subject of a plain diff that says nothing itself.

    Raises `DiffFormatError`, also for a mail without a diff.
    """
    parts = _split(data)
    mails = tuple(_one(part, name) for part in parts)
    found = tuple(each for each in mails if each.diff.strip())
    if not found:
        raise DiffFormatError(
            f"{name} holds no diff.",
            why="no line starts one (`diff --git`, or `---` and `+++`)",
            next="make it with `git format-patch` or `git diff --binary --full-index`",
        )
    return found


def reason_of(body: str) -> str:
    """A commit message's body without the trailers that say who signed it."""
    blocks = mail.text(body).split("\n\n")
    while blocks and all(_TRAILER.match(line) for line in blocks[-1].split("\n")):
        blocks.pop()
    return "\n\n".join(blocks)


def _split(data: bytes) -> list[bytes]:
    if not _FROM.match(data):
        return [data]
    starts = [found.start() for found in _FROM.finditer(data)]
    return [data[a:b] for a, b in zip(starts, [*starts[1:], len(data)], strict=True)]


def _one(data: bytes, name: str) -> PatchMail:
    if mail.is_own(data):
        return mail.read_own(data)
    data = _FROM.sub(b"", data, count=1).lstrip(b"\n\r") if _FROM.match(data) else data
    if re.match(rb"[A-Za-z-]+:[^\n]*\r\n", data):
        # A transport gave every line its line end; git strips it too.
        data = data.replace(b"\r\n", b"\n")
    text = data.decode("utf-8", "surrogateescape")
    if _HEADER_LINE.match(text) and re.search(r"^(Subject|From):", text, re.MULTILINE):
        return _from_mail(data, name)
    return _from_text(text, name)


def _from_mail(data: bytes, name: str) -> PatchMail:
    parsed = email.message_from_bytes(data)
    subject = _subject(mail.header_text(str(parsed.get("Subject", ""))))
    message, diff = _divided(_payload(parsed))
    body, fields = mail.split_message(message)
    return PatchMail(subject=subject or name, body=reason_of(body), fields=fields, diff=diff)


def _payload(parsed: Message) -> str:
    """The text of a mail, its transfer encoding undone; of a multipart one, all text in order."""
    texts = []
    for part in parsed.walk():
        if part.is_multipart():
            continue
        raw = part.get_payload(decode=True)
        texts.append(raw.decode("utf-8", "surrogateescape") if isinstance(raw, bytes) else "")
    return "\n".join(texts)


def _subject(value: str) -> str:
    while found := _PATCH_TAG.match(value):
        value = value[found.end() :]
    return value


def _divided(text: str) -> tuple[str, str]:
    """Message and diff; a summary between `---` and the diff belongs to neither."""
    end = _MESSAGE_END.search(text)
    message = text[: end.start()] if end else text
    begin = _DIFF_LINE.search(text, end.start() if end else len(text))
    return message, text[begin.start() :] if begin else ""


def _from_text(text: str, name: str) -> PatchMail:
    """A diff with or without words before it; quilt's and Debian's headers are among the words."""
    message, diff = _divided(text)
    lines = mail.text(message).split("\n")
    described = re.match(r"(Description|Subject): *(.*)", lines[0])
    subject = _subject(described.group(2) if described else lines[0]) or name
    rest = "\n".join(lines[1:])
    fields = mail.fields_of(rest) if described else ()
    body = _description(rest) if described else reason_of(rest)
    return PatchMail(subject=subject, body=body, fields=fields, diff=diff)


def _description(rest: str) -> str:
    """The continuation of a DEP-3 description: indented lines, ` .` for an empty one."""
    lines = []
    for line in rest.split("\n"):
        if line and not line.startswith((" ", "\t")):
            break
        lines.append("" if line.strip() == "." else line.strip())
    return "\n".join(lines)
