"""Lint rules on what a patch says of itself: why it exists, where upstream stands, when it can go."""

from __future__ import annotations

import re
from collections.abc import Iterator

from dspatch.carry.lint.lint import Fault, Rule, in_patch
from dspatch.patchfile import Patch
from dspatch.series import Series

_UNFINISHED = re.compile(r"\b(TODO|FIXME|XXX|TBD|WIP)\b|\?\?\?|lorem ipsum", re.IGNORECASE)
# A page about one change: a pull request, an issue, a commit, a mail of a list.
_ONE_THING = re.compile(r"https://[^/ ]+/.*\d")
_SUBJECT_WIDTH = 72


def subject(series: Series) -> Iterator[Fault]:
    """One line, as a commit has it."""
    for patch in series.patches:
        text = patch.subject.strip()
        if len(text) > _SUBJECT_WIDTH:
            yield _fault(
                "subject",
                patch,
                f"the subject has {len(text)} characters, more than {_SUBJECT_WIDTH}",
            )
        if "\n" in text:
            yield _fault("subject", patch, "the subject has more than one line")
        if text.endswith("."):
            yield _fault("subject", patch, "the subject ends with a full stop")


def reason(series: Series) -> Iterator[Fault]:
    """A reason that tells a stranger more than the subject does."""
    for patch in series.patches:
        words = patch.reason.split()
        if _words(patch.reason) == _words(patch.subject):
            yield _fault("reason", patch, "the reason repeats the subject")
        elif len(words) < 5:
            yield _fault(
                "reason",
                patch,
                f"the reason has {len(words)} words; say what goes wrong without it",
            )
        yield from _unfinished("reason", patch, patch.reason)


def upstream(series: Series) -> Iterator[Fault]:
    """A link to one change or discussion, or why there will be none."""
    for patch in series.patches:
        if patch.upstream.startswith("https://"):
            if not _ONE_THING.match(patch.upstream):
                yield _fault(
                    "upstream", patch, f"{patch.upstream} names no one change, issue or commit"
                )
        elif len(patch.upstream.removeprefix("never:").split()) < 3:
            yield _fault("upstream", patch, "`never:` must say why, in three words or more")
        yield from _unfinished("upstream", patch, patch.upstream)


def drop_when(series: Series) -> Iterator[Fault]:
    """A condition that somebody can look for."""
    for patch in series.patches:
        if len(patch.drop_when.split()) < 3:
            yield _fault(
                "drop-when", patch, f"`{patch.drop_when.strip()}` is no condition to look for"
            )
        yield from _unfinished("drop-when", patch, patch.drop_when)


def needs(series: Series) -> Iterator[Fault]:
    """Patches that ship say by traits which checkouts need them."""
    for patch in series.patches:
        if patch.shipped and patch.renders and not patch.needs:
            yield _fault(
                "needs", patch, "it would apply to every checkout", "name the traits that need it"
            )


def waivers(series: Series) -> Iterator[Fault]:
    """A waiver has a reason that says why the change does not matter, and stands once."""
    for patch in series.patches:
        seen = set()
        for waived in patch.waived:
            if len(waived.reason.split()) < 4:
                yield _fault("waive", patch, f"`{waived.symbol}` is waived with no real reason")
            if (waived.symbol, waived.shape) in seen:
                yield _fault("waive", patch, f"`{waived.symbol}` is waived twice")
            seen.add((waived.symbol, waived.shape))


def _unfinished(rule: str, patch: Patch, text: str) -> Iterator[Fault]:
    found = _UNFINISHED.search(text)
    if found:
        yield _fault(rule, patch, f"`{found.group()}` stands in it", "finish the sentence")


def _words(text: str) -> list[str]:
    return re.findall(r"\w+", text.lower())


def _fault(
    rule: str, patch: Patch, what: str, next: str = "say it in the patch's patch.toml"
) -> Fault:
    return in_patch(rule, patch, what, next)


RULES: tuple[Rule, ...] = (subject, reason, upstream, drop_when, needs, waivers)
