"""Exports, imports and edits of patches as lines, and as the objects that --json prints."""

from __future__ import annotations

from dataclasses import asdict
from typing import TYPE_CHECKING

from dspatch.console import Console
from dspatch.stages.show import relative

if TYPE_CHECKING:
    from dspatch.stages.exchange import Exported
    from dspatch.stages.importing import Imported

_CAME = {
    "strict": "as it is",
    "merged": "merged three-way",
}


def exported(done: Exported, console: Console, *, check: bool) -> None:
    """The files of an export; with --check, that the folder holds them."""
    count = len(done.files) - 1
    where = relative(done.folder)
    state = "is up to date" if check or not done.changed else f"written, {count} patches"
    for name in sorted(done.files) if done.changed else ():
        console.say(name)
    console.say(f"{where}: {state}")
    left = [item for item in done.tree.plan if not item.applies]
    if left and not check:
        console.note("not part of the series here: " + ", ".join(i.patch.name for i in left))
    console.result(
        {
            "folder": done.folder,
            "changed": done.changed,
            "files": sorted(done.files),
            "base_tree": done.tree.checkout.tree,
            "tree": done.tree.tree,
            "left": [{"patch": i.patch.name, "status": i.status, "why": i.why} for i in left],
        }
    )


def imported(done: Imported, console: Console) -> None:
    """The new patches, how each came onto the pin, and what upstream has already."""
    for one in done.taken:
        paths = f"{len(one.paths)} files" if len(one.paths) > 1 else one.paths[0]
        console.say(f"{one.name}: {_CAME.get(one.how, one.how)} onto {done.made_on}, {paths}")
    for subject in done.upstream:
        console.say(f"nothing to do for `{subject}`: {done.made_on} has it already")
    if done.taken:
        console.say(f"in {relative(done.folder)}; next: dspatch apply")
    console.result(asdict(done))
