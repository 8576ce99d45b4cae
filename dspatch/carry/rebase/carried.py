"""A rebase in data: the revision that a series is taken to, and what becomes of each patch."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Literal

from dspatch.carry.rebase.depends import Dependent
from dspatch.carry.rebase.explain import Reason
from dspatch.checkout import Checkout
from dspatch.errors import DspatchError
from dspatch.git import Change
from dspatch.onto import Place
from dspatch.patchfile import Patch
from dspatch.series import Planned
from dspatch.threeway import How, MergeConflictError, Outcome
from dspatch.treefiles import Files

Status = Literal[
    "applies", "upstream", "conflict", "waits", "skipped",
    "not needed", "other target", "other variant", "left out", "not asked for",
]  # fmt: skip


@dataclass(frozen=True, kw_only=True)
class Side:
    """A revision with a series planned for it: its pristine files, and where patches are put."""

    rev: str
    checkout: Checkout
    files: Files
    place: Place
    plan: tuple[Planned, ...]


@dataclass(frozen=True, kw_only=True)
class Tried:
    """One way to put a patch onto a tree: what it gave, or why it failed; neither when it has no such way."""

    outcome: Outcome | None = None
    error: DspatchError | None = None

    @property
    def word(self) -> str:
        """The way's result in a word, empty when it was not tried."""
        if self.error is not None:
            return "conflict" if isinstance(self.error, MergeConflictError) else "fails"
        return self.outcome.how if self.outcome is not None else ""

    @property
    def marked(self) -> Mapping[str, Change]:
        """The files as a merge in conflict left them, those that merged included."""
        return self.error.marked if isinstance(self.error, MergeConflictError) else {}

    @property
    def unresolved(self) -> tuple[str, ...]:
        """Of these the files in conflict."""
        if not isinstance(self.error, MergeConflictError):
            return ()
        return tuple(sorted({each.path for each in self.error.conflicts} & self.marked.keys()))


@dataclass(frozen=True, kw_only=True)
class Carried:
    """What becomes of one patch.

    `textual` is its diff made on the old revision, merged; `semantic` its edits run again;
    `difference` what the second gives beside the first, where both work; `only_here` are the files and
    edits that the patch has by its traits only on the new revision. `record` says that apply comes to
    this outcome only from a form.
    """

    patch: Patch
    status: Status
    why: str = ""
    textual: Tried = field(default_factory=Tried)
    semantic: Tried = field(default_factory=Tried)
    difference: str = ""
    only_here: tuple[str, ...] = ()
    outcome: Outcome | None = None
    record: bool = False
    error: DspatchError | None = None
    before: Files | None = None
    reasons: tuple[Reason, ...] = ()
    dependents: tuple[Dependent, ...] = ()

    @property
    def agree(self) -> bool | None:
        """Whether text and edits gave the same files, where both were tried and worked."""
        both = self.textual.outcome is not None and self.semantic.outcome is not None
        return not self.difference if both else None

    @property
    def how(self) -> How | None:
        """How it came onto the tree."""
        return self.outcome.how if self.outcome is not None else None
