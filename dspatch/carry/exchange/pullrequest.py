"""The texts of a pull request: the change as mail, why it is needed, its test, its numbers."""

from __future__ import annotations

import re
from collections.abc import Sequence

from dspatch import paths
from dspatch.carry.exchange import exportfolder, mail
from dspatch.carry.exchange.mail import PatchMail
from dspatch.patchfile import Patch


def files(patch: Patch, diff: str, made_on: str, changed: Sequence[str]) -> dict[str, bytes]:
    """The files to hand in, by name."""
    offered = PatchMail(subject=patch.subject, body=patch.reason, diff=diff)
    text = _text(patch, made_on, changed)
    name = file_of(patch)
    return exportfolder.with_series(
        {name: mail.write(offered)}, [f": {patch.name} for upstream, on {made_on}."]
    ) | {exportfolder.PULL_REQUEST: text.encode()}


def file_of(patch: Patch) -> str:
    """The name of the mail."""
    return f"0001-{patch.name}.patch"


def test_commands(patch: Patch) -> tuple[str, ...]:
    """What shows in a clone of upstream that the test fails without the change and passes with it."""
    if patch.upstream_test is None:
        return ()
    test, name = patch.upstream_test.path, file_of(patch)
    return (
        f"git apply --include={test} {name} && python -m pytest -q {test}  # fails",
        f"git apply --exclude={test} {name} && python -m pytest -q {test}  # passes",
    )


def lacks(patch: Patch) -> tuple[str, ...]:
    """What a reviewer will ask for and the patch does not have yet."""
    found = []
    if patch.upstream_test is None:
        found.append("test that fails without it: [upstream-test] in patch.toml")
    if patch.numbers is None:
        found.append("numbers: `numbers` in patch.toml, a section of benchmarks/RESULTS.md or text")
    return tuple(found)


def _text(patch: Patch, made_on: str, changed: Sequence[str]) -> str:
    parts = [
        f"# {patch.subject}",
        patch.reason.strip(),
        "## Change",
        f"Made on {made_on}.",
        "\n".join(f"* `{path}`" for path in changed),
    ]
    if patch.upstream_test is not None:
        parts += ["## Test", f"`{patch.upstream_test.path}` fails without the change:"]
        parts.append("\n".join(f"    {command}" for command in test_commands(patch)))
    if patch.numbers is not None:
        parts += ["## Numbers", _numbers(patch.numbers)]
    return "\n\n".join(parts) + "\n"


def _numbers(named: str) -> str:
    """The section of that heading in the benchmarks' results, with what is said of all; else the text."""
    results = paths.data("patches").parent / "benchmarks" / "RESULTS.md"
    if not results.is_file():
        return named.strip()
    intro, *sections = re.split(r"^## ", results.read_text(encoding="utf-8"), flags=re.MULTILINE)
    section = next((text for text in sections if text.startswith(named.strip())), None)
    if section is None:
        return named.strip()
    machine = intro.partition("\n")[2].strip()
    heading, _, body = section.partition("\n")
    body = body.strip("\n")
    return f"{heading}\n\n{machine}\n\n{body}"
