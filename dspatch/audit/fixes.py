"""The patch that a finding names: whether it applies to a source, and the command that brings it."""

from __future__ import annotations

import shlex
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from dspatch import paths, pins, render
from dspatch.audit.source import Source
from dspatch.carry import matrix
from dspatch.carry.matrix import APPLIES, Cell
from dspatch.carry.matrixkeys import Keys
from dspatch.carry.watched import WatchedTraits
from dspatch.errors import DspatchError
from dspatch.git import Repo
from dspatch.onto import Place
from dspatch.pins import lookup

if TYPE_CHECKING:
    from dspatch.facts import Variant
    from dspatch.series import Series

TARGETS = ("cpu", "cuda")


@dataclass(frozen=True, kw_only=True)
class Fix:
    """The command that brings a patch, or why there is none."""

    command: str = ""
    unfit: str = ""


class Fixes:
    """The patches of a series tried on one source, each when it is first asked for."""

    def __init__(
        self, series: Series, source: Source, variants: Sequence[Variant], rev: Sequence[str]
    ) -> None:
        """`rev` holds the options that name the source on the command line, none where none can."""
        self._series = series
        self._source = source
        self._variants = variants
        self._rev = rev
        self._tried: dict[tuple[str, str], Cell | str] = {}

    def fix(self, name: str, target: str | None, wanted: Sequence[str]) -> Fix:
        """The fix by a patch, for a target (`None`: any), with the words that name the models."""
        try:
            patch = self._series.patch(name)
        except DspatchError as error:
            return Fix(unfit=error.what.rstrip("."))
        if name in self._series.left_out:
            return Fix(unfit="your own series leaves it out")
        targets = [each for each in patch.targets if target in (None, each)]
        if not targets:
            return Fix(unfit=f"it is for {', '.join(patch.targets)}")
        unfit = self._unfit(name, targets[0])
        if not unfit and not self._rev:
            unfit = "it needs a revision: commit this work tree and name it with --repo and --rev"
        return Fix(unfit=unfit) if unfit else Fix(command=self._command(targets[0], wanted))

    def _unfit(self, name: str, target: str) -> str:
        """Why a patch does not help this source; empty when it applies."""
        cell = self._cell(name, target)
        if isinstance(cell, str):
            return cell
        if cell.verdict in APPLIES:
            return ""
        told = {"not needed": "it is not for this source", "upstreamed": "the source has it"}
        return f"{told.get(cell.verdict, 'it does not apply: ' + cell.verdict)} ({cell.why})"

    def _cell(self, name: str, target: str) -> Cell | str:
        if (name, target) not in self._tried:
            self._tried[name, target] = self._measured(name, target)
        return self._tried[name, target]

    def _measured(self, name: str, target: str) -> Cell | str:
        series = Keys(self._series, self._variants).only([name])
        facts = WatchedTraits(series.traits, self._source.read, self._source.beyond)
        place = Place(
            engine=self._source.engine,
            rev=f"v{self._source.version}" if self._source.version else "",
            commit="",
            repo=Repo(paths.cache() / "git" / f"{self._source.engine}.git"),
            context=render.Context(traits=facts, variants=self._variants),
        )
        try:
            cells = matrix.measure(
                series, self._source.files, place, target=target, variants=self._variants
            )
            found = next((cell for cell in cells if cell.patch == name), None)
        except DspatchError as error:
            return f"it could not be tried: {error.what}"
        return found or "it is for other models"

    def _command(self, target: str, wanted: Sequence[str]) -> str:
        engine = self._source.engine
        words = ["--engine", engine, *self._rev]
        models = [word for name in wanted for word in ("--variant", name)]
        run = shlex.join(["dspatch", "run", *words, "--target", target, *models])
        pinned = [pin.rev for pin in pins.pinned(engine)]
        if any(lookup.same(self._rev[1], rev) for rev in pinned) or "--repo" in self._rev:
            return run
        return f"{shlex.join(['dspatch', 'pin', 'add', *words])} && {run}"
