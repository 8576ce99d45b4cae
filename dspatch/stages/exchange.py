"""`dspatch patch export`: the series on one revision as a folder of mails, which `git am` takes."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from dspatch.apply import PatchedTree
from dspatch.carry.exchange import exportfolder, projection
from dspatch.carry.exchange.mail import PatchMail
from dspatch.checkout import Checkout
from dspatch.console import Console
from dspatch.errors import ExportDriftError, PatchConflictError
from dspatch.series import Series, layered
from dspatch.stages.apply import compute
from dspatch.stages.request import Request, Resolved


@dataclass(frozen=True, kw_only=True)
class Exported:
    """An export: its folder and files, what was left of the series, and whether the folder changed."""

    folder: Path
    resolved: Resolved
    tree: PatchedTree
    files: dict[str, bytes]
    changed: bool


def mails_of(resolved: Resolved, tree: PatchedTree, series: Series) -> list[PatchMail]:
    """The patches that apply, as mails."""
    engine, made_on = tree.checkout.engine, revision_of(resolved, tree.checkout)
    texts = tree.checkout.repo.diffs([patch.commit for patch in tree.patches])
    return [
        projection.as_mail(series.patch(patch.name), text, engine=engine, made_on=made_on)
        for patch, text in zip(tree.patches, texts, strict=True)
        if text
    ]


def revision_of(resolved: Resolved, found: Checkout) -> str:
    """The name of a form made here: the release, or the commit of a revision that is none."""
    return found.rev if resolved.revision is None else found.commit


def export(
    request: Request, names: Sequence[str], folder: Path, console: Console, *, check: bool = False
) -> Exported:
    """Write the patches that apply, or those of the given names, as a folder of mails.

    With `check`, nothing is written and `ExportDriftError` says where the folder differs.
    """
    series = layered(request.engine)
    for name in names:
        series.patch(name)
    resolved, tree = compute(request, console, patches=series)
    files = _export_files(resolved, tree, series, names)
    if check:
        _check(folder, files, request)
    changed = not check and exportfolder.write(folder, files)
    return Exported(folder=folder, resolved=resolved, tree=tree, files=files, changed=changed)


def _export_files(
    resolved: Resolved, tree: PatchedTree, series: Series, names: Sequence[str]
) -> dict[str, bytes]:
    mails = mails_of(resolved, tree, series)
    chosen = [mail for mail in mails if not names or mail.get("Patch") in names]
    for name in names:
        if name not in [mail.get("Patch") for mail in chosen]:
            item = next(item for item in tree.plan if item.patch.name == name)
            raise PatchConflictError(
                f"{name} is not part of the series here: {item.status}.", why=item.why
            )
    where = f"{tree.checkout.engine} {revision_of(resolved, tree.checkout)}"
    about = [f": {where}, {resolved.request.target}."]
    if len(chosen) == len(mails):
        about.append(f"git am --keep-cr turns tree {tree.checkout.tree} into {tree.tree}.")
    return exportfolder.files_of(chosen, about)


def _check(folder: Path, files: dict[str, bytes], request: Request) -> None:
    found = exportfolder.differences(folder, files)
    if found:
        raise ExportDriftError(
            f"{folder} is not what the patches give: {len(found)} files differ.",
            why="\n        ".join(found[:12]) + ("\n        and more" if len(found) > 12 else ""),
            next=f"dspatch patch export --engine {request.engine} --rev {request.rev} -o {folder}",
        )
