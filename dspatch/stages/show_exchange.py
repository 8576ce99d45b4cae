"""Exports, imports and edits of patches as lines, and as the objects that --json prints."""

from __future__ import annotations

from dataclasses import asdict
from typing import TYPE_CHECKING

from dspatch.console import Console
from dspatch.stages.show import relative

if TYPE_CHECKING:
    from pathlib import Path

    from dspatch.stages.editing import Refreshed
    from dspatch.stages.exchange import Exported
    from dspatch.stages.importing import Imported
    from dspatch.stages.own import Begun, Dropped
    from dspatch.stages.upstreaming import Offered

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


def offered(done: Offered, console: Console) -> None:
    """The pull request's files, how its test is run, and what a reviewer will miss."""
    for name in done.files:
        console.say(name)
    state = f"written, on {done.made_on}" if done.changed else "as it was"
    console.say(f"{relative(done.folder)}: {state}")
    if done.test:
        console.say("in a clone of upstream, its test:")
    for command in done.test:
        console.say(f"  {command}")
    for lack in done.lacks:
        console.note(f"it has no {lack}")
    console.result(asdict(done))


def imported(done: Imported, console: Console) -> None:
    """The new patches, how each came onto the pin, and what upstream has already."""
    for one in done.taken:
        paths = f"{len(one.paths)} files" if len(one.paths) > 1 else one.paths[0]
        console.say(f"{one.name}: {_CAME.get(one.how, one.how)} onto {done.made_on}, {paths}")
        if one.note:
            console.say(f"  {one.note}")
    for subject in done.upstream:
        console.say(f"nothing to do for `{subject}`: {done.made_on}, as patched, has it already")
    if done.taken:
        console.say(f"in {relative(done.folder)}; next: {done.next}")
    console.result(asdict(done))


def begun(done: Begun, console: Console) -> None:
    """Where to edit, and what comes then."""
    console.say(f"{done.name}: edit files in {relative(done.job.tree)}")
    console.say("then: dspatch patch refresh")
    console.result({"patch": done.name, "job": str(done.job.id), "path": done.job.tree})


def standing(name: str, tree: Path, console: Console) -> None:
    """A tree that stands at one patch."""
    console.say(f"{relative(tree)} stands at {name}; the patches behind it wait")
    console.say("edit there, then: dspatch patch refresh (or dspatch apply --discard-edits)")
    console.result({"patch": name, "path": tree})


def words_edited(name: str, changed: bool, console: Console) -> None:
    """Whether patch.toml changed."""
    console.say(f"{name}: changed; apply the series anew" if changed else f"{name}: as it was")
    console.result({"patch": name, "changed": changed})


def refreshed(done: Refreshed, console: Console) -> None:
    """What each patch took in, and what only a form for this revision holds."""
    for one in done.patches:
        if one.new:
            console.say(f"{one.name}: a new patch of your own")
        for path in one.sources:
            console.say(f"{one.name}: {relative(path)}")
        if one.form and not one.new:
            console.say(f"{one.name}: {relative(one.form)}")
        if one.kept_as_form:
            paths = ", ".join(one.kept_as_form)
            console.say(
                f"  only as a diff for this revision: {paths}; its templates and edits do not say it"
            )
    if not done.patches:
        console.say("nothing to take in")
    if done.lint:
        console.note("dspatch patch lint --write brings the goldens up to date")
    if not done.moved:
        console.note("the tree was edited meanwhile and is left as it is; run it again")
    console.result({**asdict(done), "job": str(done.job.id), "path": done.job.tree})


def dropped(done: Dropped, console: Console) -> None:
    """What is gone, or left out."""
    for path in done.removed:
        console.say(f"removed {relative(path)}")
    if not done.removed:
        state = "is left out of your series" if done.left_out else "is part of your series again"
        console.say(f"{done.name} {state}")
    console.say(f"next: {done.next}")
    console.result(asdict(done))
