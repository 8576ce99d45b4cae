"""Whether the command line of a server has the options that a finding needs."""

from __future__ import annotations

import shlex
from collections.abc import Callable, Iterator, Mapping, Sequence
from operator import ge, gt, le, lt, ne

# Short names that vLLM's own parser takes.
_ALIASES: Mapping[str, str] = {
    "-tp": "--tensor-parallel-size", "-pp": "--pipeline-parallel-size", "-q": "--quantization",
    "-dp": "--data-parallel-size", "-dcp": "--decode-context-parallel-size",
    "-ep": "--enable-expert-parallel",
}  # fmt: skip
_COMPARED: Mapping[str, Callable[[float, float], bool]] = {
    ">": gt, ">=": ge, "<": lt, "<=": le, "!=": ne,
}  # fmt: skip


def given(option: str, command: Sequence[str] | None) -> bool | None:
    """Whether a command line has an option: `--name`, `--name value`, `--name > 1`, or `NAME=value`.

    `&` joins options of which all are needed. `None` where the command line does not say: there is
    none, or the option is no flag and may be set elsewhere.
    """
    if command is None:
        return None
    have = list(_words(command))
    missing = [each for each in option.split(" & ") if not _has(each, have)]
    if any(each.startswith("-") for each in missing):
        return False
    return None if missing else True


def words(options: Sequence[str]) -> str:
    """Alternatives in words; what another one includes is left out."""
    told = [
        each
        for each in options
        if not any(
            each != other and each.startswith((f"{other}=", f"{other} ")) for other in options
        )
    ]
    return " or ".join(each.replace(" & ", " and ") for each in told)


def _has(option: str, have: Sequence[str]) -> bool:
    wanted = list(_words(shlex.split(option)))
    if len(wanted) == 3 and wanted[1] in _COMPARED:
        values = [have[at + 1] for at, word in enumerate(have[:-1]) if word == wanted[0]]
        return any(_compares(value, wanted[1], wanted[2]) for value in values)
    return any(list(have[at : at + len(wanted)]) == wanted for at in range(len(have)))


def _compares(value: str, comparison: str, limit: str) -> bool:
    try:
        return _COMPARED[comparison](float(value), float(limit))
    except ValueError:
        return False


def _words(command: Sequence[str]) -> Iterator[str]:
    """The words of a command line; names and values that `=` joins apart, dashes in the names of flags."""
    for word in command:
        name, equals, value = word.partition("=")
        if name.startswith("-"):
            yield _ALIASES.get(name, name.replace("_", "-"))
        elif equals and not name.isidentifier():
            yield word
            continue
        else:
            yield name
        if equals:
            yield value
