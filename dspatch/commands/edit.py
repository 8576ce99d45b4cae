"""`dspatch patch new`, `edit`, `refresh` and `drop`: patches changed with ordinary git."""

from __future__ import annotations

from typing import Any

import click

from dspatch import options
from dspatch.commands import words
from dspatch.commands.exchange import ask_reason
from dspatch.commands.groups import patch
from dspatch.console import Console


@patch.command("new")
@click.argument("name")
@options.job
@click.option("--subject", metavar="TEXT", help="What it does, in one line; its name otherwise.")
@click.option("--reason", metavar="TEXT", help="Why it exists, for a stranger.")
@click.option(
    "--upstream", metavar="LINK", help="Where it stands with upstream: a link, or `never: why`."
)
def patch_new(
    name: str,
    subject: str | None,
    reason: str | None,
    upstream: str | None,
    as_json: bool,
    **given: Any,
) -> None:
    """Begin a patch of your own in the tree of the job applied last.

    The edits that the tree has become the patch. Without any, edit files there and run
    `dspatch patch refresh`.

    \b
    dspatch patch new fix-start --reason "The engine stops when a GPU is missing"
    """
    from dspatch.stages import editing, own, show_exchange

    console = Console(as_json=as_json)
    title = subject or name.replace("-", " ").capitalize()
    begun = own.begin(words.job(given), name, title, reason or ask_reason(title), upstream)
    if begun.edited:
        show_exchange.refreshed(editing.refresh(begun.job, console, ask_reason), console)
    else:
        show_exchange.begun(begun, console)


@patch.command("edit")
@click.argument("name")
@options.job
@click.option("--words", "text", is_flag=True, help="Open patch.toml in your editor instead.")
def patch_edit(name: str, text: bool, as_json: bool, **given: Any) -> None:
    """Put the job's tree at one patch, to be changed there with an editor and ordinary git.

    The patches that follow it are put back by `dspatch patch refresh`, which also takes the
    change in; `dspatch apply --discard-edits` gives it up.

    \b
    dspatch patch edit cpu-mla
    dspatch patch edit cpu-mla --words
    """
    from dspatch.stages import own, show_exchange

    console = Console(as_json=as_json)
    if text:
        engine = given["engine"] or "vllm"
        changed = own.edit_words(engine, name, lambda old: click.edit(old, extension=".toml"))
        show_exchange.words_edited(name, changed, console)
    else:
        show_exchange.standing(name, own.stand_at(words.job(given), name), console)


@patch.command("refresh")
@click.argument("name", required=False)
@options.job
def patch_refresh(name: str | None, as_json: bool, **given: Any) -> None:
    """Take what was edited in a job's tree into the patch folders.

    Amended and fixup commits go into their patches, a new commit becomes a patch of your own, and
    edits that are not committed go into NAME, or into the patch whose code they change. Templates
    and edit texts follow where rendering them gives exactly what was edited; otherwise the
    change is kept as a diff for this revision, and it says so.

    \b
    dspatch patch refresh
    dspatch patch refresh cpu-mla
    """
    from dspatch.stages import editing, show_exchange

    console = Console(as_json=as_json)
    done = editing.refresh(words.job(given), console, ask_reason, into=name)
    show_exchange.refreshed(done, console)


@patch.command("drop")
@click.argument("name")
@options.engine
@click.option("--undo", is_flag=True, help="Take a patch that ships into the series again.")
@options.as_json
def patch_drop(name: str, engine: str | None, undo: bool, as_json: bool) -> None:
    """Remove a patch of your own, or leave out one that ships.

    \b
    dspatch patch drop fix-start
    dspatch patch drop cpu-mla --undo
    """
    from dspatch.stages import own, show_exchange

    console = Console(as_json=as_json)
    show_exchange.dropped(own.drop(engine or "vllm", name, console, undo=undo), console)
