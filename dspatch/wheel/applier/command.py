"""The command line of a delta file: apply it, check whether it fits, or undo it."""

from __future__ import annotations

import argparse
import json
import pkgutil
import py_compile
import sys
from collections.abc import Callable, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

from . import fit, journal, manifest, plan, rows, site, way
from .manifest import Delta, Side
from .misfit import Misfit
from .site import Installed


def main(
    argv: Sequence[str] | None = None, read_member: Callable[[str], bytes] | None = None
) -> int:
    """Run a delta; its exit status. Without `read_member`, the delta's members lie beside this module."""
    words = _parser().parse_args(argv)
    try:
        delta = manifest.read(read_member or _beside)
        told = run(
            delta,
            words.site_packages,
            undo=words.undo,
            check=words.check,
            other=words.other_build,
        )
    except Misfit as error:
        told = {"error": error.what, "why": error.why, "next": error.next, "exit_code": error.code}
        print(json.dumps(told, indent=2) if words.json else f"error: {error}", file=_out(words))
        return error.code
    except OSError as error:
        print(
            f"error: {error}\n  next: run this again; it goes on where it stopped", file=sys.stderr
        )
        return 1
    print(json.dumps(told, indent=2, sort_keys=True) if words.json else told["text"])
    return 0


def run(
    delta: Delta, given: str | None, *, undo: bool = False, check: bool = False, other: bool = False
) -> dict[str, Any]:
    """Apply or undo a delta, or only look (`check`), and say what was found and done.

    `other` takes another build of the release than the pinned base wheel.
    """
    here, there = (delta.overlay, delta.base) if undo else (delta.base, delta.overlay)
    root = _root(delta, given)
    folder = journal.state(root, site.canonical(delta.overlay.project))
    with journal.alone(root):
        if check and journal.interrupted(folder):
            raise Misfit(f"An earlier run was stopped in {root}.", next="run without --check")
        finished = not check and journal.recover(root, folder)
        found = site.find((here, there), str(root))
        done = next((f for f in found if way.matches(f, there, other_build=other)), None)
        if done is not None:
            fit.before(way.of(delta, done, undo=not undo, other_build=other))
            verb = "finished now" if finished else "there already; nothing to do"
            return _told(done, f"{done} is {verb}", changed=finished)
        wanted = way.of(delta, _only(found, here, root, other), undo=undo, other_build=other)
        planned = plan.make(wanted)
        if check:
            text = f"fits: {len(planned.writes)} files to write in {root}"
            return _told(wanted.site, text, changed=False)
        journal.carry_out(planned, folder)
    _compile(planned)
    now = Installed(
        root=root,
        info=wanted.there.info,
        project=wanted.there.project,
        version=wanted.there.version,
    )
    return _told(now, f"{wanted.site} is now {now} in {root}", changed=True)


def _root(delta: Delta, given: str | None) -> Path:
    found = site.find((delta.base, delta.overlay), given)
    if found:
        return found[0].root
    if given is not None:
        return Path(given).resolve()
    raise _absent(delta.base, "for this Python", "run it with the Python that has it, or name")


def _only(found: Sequence[Installed], here: Side, root: Path, other: bool) -> Installed:
    if not found:
        raise _absent(here, f"in {root}", "install it there, or name")
    if len(found) > 1 or not way.matches(found[0], here, other_build=other):
        raise Misfit(
            f"This delta is for {here.project} {here.version}.",
            f"{root} has {' and '.join(map(str, found))}",
            f"install {here.wheel}; undo another delta with its own file",
        )
    return found[0]


def _absent(side: Side, where: str, how: str) -> Misfit:
    return Misfit(
        f"{side.project} {side.version} is not installed {where}.",
        f"this delta is for {side.wheel}",
        f"{how} another folder with --site-packages",
    )


def _compile(planned: plan.Plan) -> None:
    """Compile what the installer had compiled, for this Python."""
    recorded = planned.writes[-1].data
    for source in planned.sources:
        place = rows.compiled(source, str(sys.implementation.cache_tag))
        if f"{place},".encode() in recorded:
            with suppress(OSError, py_compile.PyCompileError):
                py_compile.compile(str(planned.site.root / source), doraise=True, quiet=2)


def _told(found: Installed, text: str, *, changed: bool) -> dict[str, Any]:
    return {
        "project": found.project,
        "version": found.version,
        "site-packages": str(found.root),
        "changed": changed,
        "text": text,
    }


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog=f"python {Path(sys.argv[0]).name}",
        description="Turn an installed wheel into its patched twin, and back.",
    )
    parser.add_argument(
        "--site-packages", metavar="DIR", help="where the wheel is installed; else this Python's"
    )
    parser.add_argument("--check", action="store_true", help="look whether it fits; write nothing")
    parser.add_argument("--undo", action="store_true", help="go back to the wheel as published")
    parser.add_argument(
        "--other-build",
        action="store_true",
        help="take another build of the release than the pinned wheel: a container image's own",
    )
    parser.add_argument("--json", action="store_true", help="print the result as one JSON object")
    return parser


def _beside(name: str) -> bytes:
    data = pkgutil.get_data(__package__, name)
    if data is None:
        raise Misfit("The delta file is damaged.", f"it has no {name}", "fetch or build it anew")
    return data


def _out(words: argparse.Namespace) -> Any:
    return sys.stdout if words.json else sys.stderr
