"""A folder of exported patches: written whole, read back in its order, held against what it should be."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path

from dspatch.carry.editing import folder
from dspatch.carry.exchange import mail, mailbox
from dspatch.carry.exchange.mail import PatchMail
from dspatch.errors import DiffFormatError, PatchFormatError

SERIES = "series"
PULL_REQUEST = "PULL_REQUEST.md"
_MARK = "# Written by `dspatch patch export`"
_PATCHES = (".patch", ".diff", ".mbox", ".eml")


def files_of(mails: Sequence[PatchMail], about: Sequence[str]) -> dict[str, bytes]:
    """The files of an export by name: a mail a patch, and their order."""
    return with_series(
        {
            f"{number:04}-{one.get('Patch')}.patch": mail.write(one)
            for number, one in enumerate(mails, 1)
        },
        about,
    )


def with_series(mails: Mapping[str, bytes], about: Sequence[str]) -> dict[str, bytes]:
    """Mails by name, and the file that says their order and by which an export knows its folder."""
    lines = [f"{_MARK}{about[0]}", *(f"# {line}" for line in about[1:]), *mails]
    return {SERIES: "".join(f"{line}\n" for line in lines).encode(), **mails}


def write(final: Path, files: Mapping[str, bytes]) -> bool:
    """Make the folder hold exactly an export's files; returns whether anything changed.

    Raises `PatchFormatError` for a folder that holds what no export wrote.
    """
    folder.finish(final)
    _refuse_foreign(final)
    if not differences(final, files):
        return False
    folder.replace(final, files)
    return True


def differences(final: Path, files: Mapping[str, bytes]) -> tuple[str, ...]:
    """Where a folder is not the export: a word and a file name each."""
    present = {path.name: path for path in final.iterdir()} if final.is_dir() else {}
    found = [f"extra {name}" for name in present if name not in files]
    for name, data in files.items():
        if name not in present:
            found.append(f"missing {name}")
        elif not present[name].is_file() or present[name].read_bytes() != data:
            found.append(f"changed {name}")
    return tuple(sorted(found))


def read(source: Path) -> tuple[PatchMail, ...]:
    """The patches of a folder: those its `series` lists, otherwise all, by file name.

    Raises `DiffFormatError`.
    """
    folder.finish(source)
    listed = source / SERIES
    names = _listed(listed) if listed.is_file() else _by_name(source)
    if not names:
        raise DiffFormatError(
            f"{source} holds no patches.",
            why="it has no `series`, and no file that ends in " + ", ".join(_PATCHES),
            next="name the folder of an export, of quilt, or of `git format-patch`",
        )
    for name in names:
        if not (source / name).is_file():
            raise DiffFormatError(f"{listed} lists {name}, which is not there.")
    return tuple(
        one for name in names for one in mailbox.read((source / name).read_bytes(), Path(name).stem)
    )


def _listed(series: Path) -> list[str]:
    """The names in a quilt series, without comments and `-p1`."""
    lines = (line.split("#", 1)[0].split() for line in series.read_text().splitlines())
    return [words[0] for words in lines if words]


def _by_name(source: Path) -> list[str]:
    return sorted(path.name for path in source.iterdir() if path.suffix in _PATCHES)


def _refuse_foreign(final: Path) -> None:
    if final.is_file():
        raise PatchFormatError(f"{final} is a file.", next="name a folder with -o")
    if not final.is_dir() or not any(final.iterdir()):
        return
    foreign = _foreign(final)
    if foreign:
        raise PatchFormatError(
            f"{final} holds files that no export wrote, so it is left as it is.",
            why=", ".join(foreign[:5]) + (", and more" if len(foreign) > 5 else ""),
            next="name another folder, or move them away",
        )


def _foreign(final: Path) -> list[str]:
    series = final / SERIES
    ours = series.is_file() and series.read_bytes().startswith(_MARK.encode())
    texts = {SERIES, PULL_REQUEST} if ours else set()
    mails = set(_listed(series)) if ours else set()
    return sorted(
        path.name
        for path in final.iterdir()
        if path.name not in texts and not (path.name in mails and _is_mail(path))
    )


def _is_mail(path: Path) -> bool:
    return path.is_file() and mail.is_written(path.read_bytes())
