"""Where lines come from and how a series differs, as tables and as the objects that --json prints."""

from __future__ import annotations

import textwrap
from dataclasses import asdict
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from dspatch.carry.why import Origin
    from dspatch.console import Console
    from dspatch.patchfile import Patch
    from dspatch.stages.inspect import Compared, Explained

_HEADERS = ("LINES", "FROM", "")


def explained(found: Explained, console: Console) -> None:
    """One line with its patch in full, or a row for every run of lines."""
    if found.line is not None:
        _line(found, console)
    else:
        rows = [_row(origin, found) for origin in found.origins]
        rows += [("-", name, "took lines out") for name in found.took_out]
        console.table(_HEADERS, rows)
        if not rows:
            console.say(f"{found.path} is empty")
    console.result(
        {
            "engine": found.engine,
            "rev": found.rev,
            "path": found.path,
            "line": found.line,
            "text": found.text,
            "origins": [asdict(origin) for origin in found.origins],
            "took_out": list(found.took_out),
            "patches": {name: _facts(patch) for name, patch in found.patches.items()},
        }
    )


def _row(origin: Origin, found: Explained) -> tuple[str, str, str]:
    lines = str(origin.first) if origin.first == origin.last else f"{origin.first}-{origin.last}"
    patch = found.patches.get(origin.patch)
    subject = patch.subject if patch else _elsewhere(origin, found)
    return lines, origin.patch or origin.source, subject


def _elsewhere(origin: Origin, found: Explained) -> str:
    if origin.source == "edited":
        return "edited by hand, in no patch yet"
    return "" if origin.source == "upstream" else "a patch that the series no longer has"


def _line(found: Explained, console: Console) -> None:
    (origin,) = found.origins
    patch = found.patches.get(origin.patch)
    console.say(f"{found.path}:{found.line}: {found.text.strip()}")
    if origin.source == "upstream":
        console.say(f"  upstream's own, as {found.engine} {found.rev} has it")
    elif patch is None:
        console.say(f"  {origin.patch} {_elsewhere(origin, found)}".rstrip())
    else:
        console.say(f"  {patch.name}: {patch.subject}")
        console.say(textwrap.indent(patch.reason.strip(), "    "))
        console.say(f"  upstream:  {patch.upstream}")
        console.say(f"  drop when: {patch.drop_when}")


def _facts(patch: Patch) -> dict[str, Any]:
    return {
        "subject": patch.subject,
        "reason": patch.reason.strip(),
        "upstream": patch.upstream,
        "drop-when": patch.drop_when,
    }


def compared(found: Compared, console: Console) -> None:
    """A row a patch, then the differences in full."""
    first, second = found.revisions
    words = {"only on the first": f"only on {first}", "only on the second": f"only on {second}"}
    console.table(
        ("PATCH", f"{first} .. {second}", ""),
        [(pair.patch, words.get(pair.verdict, pair.verdict), pair.why) for pair in found.pairs],
    )
    for pair in found.pairs:
        if pair.diff:
            console.say(f"\n{pair.patch}:\n{pair.diff}")
    console.result(
        {
            "engine": found.engine,
            "revisions": list(found.revisions),
            "patches": [asdict(pair) for pair in found.pairs],
        }
    )
