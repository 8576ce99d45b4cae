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

from . import journal, manifest, plan, site
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
        told = run(delta, words.site_packages, undo=words.undo, check=words.check)
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


def run(delta: Delta, given: str | None, *, undo: bool, check: bool) -> dict[str, Any]:
    """Apply or undo a delta, or only look (`check`), and say what was found and done."""
    here, there = (delta.overlay, delta.base) if undo else (delta.base, delta.overlay)
    root = _root(delta, given)
    folder = journal.state(root, site.canonical(delta.overlay.project))
    with journal.alone(root):
        if check and journal.interrupted(folder):
            raise Misfit(f"An earlier run was stopped in {root}.", next="run without --check")
        finished = not check and journal.recover(root, folder)
        found = site.find((here, there), str(root))
        done = _that(found, there)
        if done is not None:
            plan.check(delta, done, there)
            verb = "finished now" if finished else "there already; nothing to do"
            return _told(done.root, there, f"{there.project} {there.version} is {verb}", finished)
        planned = plan.make(delta, _only(found, here, root), here, there)
        if check:
            text = f"fits: {len(planned.writes)} files to write in {root}"
            return _told(root, here, text, False)
        journal.carry_out(planned, folder)
    _compile(planned)
    text = f"{here.project} {here.version} is now {there.project} {there.version} in {root}"
    return _told(root, there, text, True)


def _root(delta: Delta, given: str | None) -> Path:
    sides = (delta.base, delta.overlay)
    found = site.find(sides, given)
    if found:
        return found[0].root
    if given is not None and Path(given).is_dir():
        return Path(given).resolve()
    raise _absent(delta.base, "this Python", "run it with the Python that has it, or name")


def _that(found: Sequence[Installed], side: Side) -> Installed | None:
    return next((each for each in found if _is(each, side)), None)


def _only(found: Sequence[Installed], here: Side, root: Path) -> Installed:
    if not found:
        raise _absent(here, str(root), "install it there, or name")
    if len(found) > 1 or not _is(found[0], here):
        raise Misfit(
            f"This delta is for {here.project} {here.version}.",
            f"{root} has {' and '.join(map(str, found))}",
            f"install {here.wheel}; undo another delta with its own file",
        )
    return found[0]


def _absent(side: Side, where: str, how: str) -> Misfit:
    return Misfit(
        f"{side.project} {side.version} is not installed for {where}."
        if where == "this Python"
        else f"{side.project} {side.version} is not installed in {where}.",
        f"this delta is for {side.wheel}",
        f"{how} another folder with --site-packages",
    )


def _is(found: Installed, side: Side) -> bool:
    same = site.canonical(found.project) == site.canonical(side.project)
    return same and found.version == side.version


def _compile(planned: plan.Plan) -> None:
    """Compile what the installer had compiled, for this Python."""
    rows = planned.writes[-1].data
    for source in planned.sources:
        folder, _, name = source.rpartition("/")
        compiled = f"{folder}/__pycache__/{name[:-3]}.{sys.implementation.cache_tag}.pyc"
        if compiled.encode("utf-8") + b"," in rows:
            with suppress(OSError, py_compile.PyCompileError):
                py_compile.compile(str(planned.site.root / source), doraise=True, quiet=2)


def _told(root: Path, side: Side, text: str, changed: bool) -> dict[str, Any]:
    return {
        "project": side.project,
        "version": side.version,
        "site-packages": str(root),
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
    parser.add_argument("--json", action="store_true", help="print the result as one JSON object")
    return parser


def _beside(name: str) -> bytes:
    data = pkgutil.get_data(__package__, name)
    if data is None:
        raise Misfit(f"The delta file is damaged: it has no {name}.", next="fetch it again")
    return data


def _out(words: argparse.Namespace) -> Any:
    return sys.stdout if words.json else sys.stderr
