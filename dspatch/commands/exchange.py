"""`dspatch patch export` and `import`: patches out as mails, and in from anyone."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import click

from dspatch import options
from dspatch.commands import words
from dspatch.commands.groups import patch
from dspatch.console import Console


@patch.command("export")
@click.argument("names", nargs=-1, metavar="[NAME]...")
@options.job
@options.sources
@click.option(
    "-o", "--output", required=True, type=click.Path(path_type=Path), help="The folder to write."
)
@click.option(
    "--check",
    "--dry-run",
    "check",
    is_flag=True,
    help="Write nothing; fail when the folder differs.",
)
@click.option(
    "--upstream", is_flag=True, help="Write the pull request of one patch, on the newest pin."
)
def patch_export(
    names: tuple[str, ...], output: Path, check: bool, upstream: bool, as_json: bool, **given: Any
) -> None:
    """Write the patches as mails that `git am --keep-cr` takes, one file a patch.

    Without --rev, for the job applied last. The same patches give the same bytes. With --upstream, one
    patch as upstream takes it: on the pristine tree of the newest pin, or of --rev, with its
    failing test and its numbers.

    \b
    dspatch patch export --engine vllm --rev v0.27.1 -o exported
    dspatch patch export --engine vllm --rev v0.27.1 -o exported --check
    dspatch patch export v3-topk-method --upstream -o pull-request
    """
    from dspatch.stages import exchange, show_exchange

    console = Console(as_json=as_json)
    if upstream:
        offer(names, output, check, console, given)
        return
    done = exchange.export(words.request_or_last(given), names, output, console, check=check)
    show_exchange.exported(done, console, check=check)


def offer(
    names: tuple[str, ...], output: Path, check: bool, console: Console, given: dict[str, Any]
) -> None:
    """Write the pull request of the one patch that is named."""
    from dspatch.stages import request, show_exchange, upstreaming

    if len(names) != 1 or check:
        raise click.UsageError("--upstream takes the name of one patch, and no --check")
    given["rev"] = given["rev"] or request.newest(given["engine"] or "vllm")
    show_exchange.offered(
        upstreaming.offer(words.request(given), names[0], output, console), console
    )


@patch.command("import")
@click.argument("source", metavar="DIFF|FOLDER|COMMIT|BRANCH|FORK")
@options.job
@click.option(
    "--repo", metavar="URL|PATH", help="Where the commit or branch is; upstream otherwise."
)
@click.option("--name", metavar="NAME", help="The patch's name; words of its subject otherwise.")
@click.option("--reason", metavar="TEXT", help="Why it is needed, where it does not say so itself.")
@click.option(
    "--upstream", metavar="LINK", help="Where it stands with upstream: a link, or `never: why`."
)
@click.option("--drop-when", metavar="TEXT", help="When it can go.")
@click.option("--squash", is_flag=True, help="A branch as one patch, not one a commit.")
def patch_import(
    source: str,
    repo: str | None,
    name: str | None,
    reason: str | None,
    upstream: str | None,
    drop_when: str | None,
    squash: bool,
    as_json: bool,
    **given: Any,
) -> None:
    """Turn anyone's change into patches of your own, three-way onto a pin.

    DIFF is a file in any form, or `-` for standard input; FOLDER an export, or quilt's; COMMIT and
    BRANCH are upstream's or those of --repo; FORK is a repository. What a branch adds becomes one
    patch a commit. Without --rev, onto the job applied last.

    \b
    dspatch patch import fix.patch --engine vllm --rev v0.27.1
    dspatch patch import 83b47f6 --repo ~/vllm --rev v0.27.1 --reason "Crash on start"
    """
    from dspatch.stages import importing, show_exchange

    console = Console(as_json=as_json)
    said = importing.Said(
        name=name, reason=reason, upstream=upstream, drop_when=drop_when, squash=squash
    )
    request = words.request_or_last(given)
    show_exchange.imported(
        importing.run(request, source, said, console, ask_reason, repo=repo), console
    )


def ask_reason(subject: str) -> str:
    """Ask for a patch's reason on a terminal; elsewhere, a usage error that names --reason."""
    if not (sys.stdin.isatty() and sys.stderr.isatty()):
        raise click.UsageError(f"--reason is needed: `{subject}` does not say why it exists.")
    answer: str = click.prompt(f"Why is `{subject}` needed", err=True)
    return answer
