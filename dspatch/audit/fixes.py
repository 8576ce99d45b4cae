"""The patch that a finding names: whether it applies to a source, and the command that brings it."""

from __future__ import annotations

import shlex
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from dspatch import paths, pins, render
from dspatch.audit.source import Source
from dspatch.carry.matrix import matrix
from dspatch.carry.matrix.matrix import APPLIES, Cell
from dspatch.carry.matrix.matrixkeys import Keys
from dspatch.carry.matrix.watched import WatchedTraits
from dspatch.errors import DspatchError
from dspatch.git import Repo
from dspatch.onto import Place
from dspatch.pins import lookup
from dspatch.series import EVERY

if TYPE_CHECKING:
    from dspatch.facts import Variant
    from dspatch.series import Series


@dataclass(frozen=True, kw_only=True)
class Fix:
    """The command that brings a patch, or why there is none."""

    command: str = ""
    unfit: str = ""


class Fixes:
    """Patches of a series tried on one source: all `names` at once for a target that is asked about."""

    def __init__(
        self,
        series: Series,
        source: Source,
        variants: Sequence[Variant],
        rev: Sequence[str],
        names: Collection[str],
    ) -> None:
        """`rev` holds the options that name the source on the command line, none where none can."""
        self._series = series.asking(None, [EVERY])
        self._source = source
        self._variants = variants
        self._rev = rev
        self._names = names
        self._tried: dict[str, Mapping[str, Cell] | str] = {}

    def fix(self, name: str, target: str | None, wanted: Sequence[str]) -> Fix:
        """The fix by a patch, for a target (`None`: any), with the words that name the models."""
        if self._source.kind == "record":
            return Fix(unfit="whether it applies cannot be tried without the source")
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
        asked = [f"--with={name}"] if patch.option == "with" else []
        return Fix(unfit=unfit) if unfit else Fix(command=self._command(targets[0], wanted, asked))

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
        if target not in self._tried:
            self._tried[target] = self._measured(target)
        cells = self._tried[target]
        return cells if isinstance(cells, str) else cells.get(name, "it is for other models")

    def _measured(self, target: str) -> Mapping[str, Cell] | str:
        series = Keys(self._series, self._variants).only(self._names)
        facts = WatchedTraits(series.traits, self._source.read, self._source.beyond)
        place = Place(
            engine=self._source.engine,
            rev=f"v{self._source.version}" if self._source.version else "",
            commit="",
            repo=Repo(paths.cache() / "git" / f"{self._source.engine}.git"),
            context=render.Context(traits=facts, variants=self._variants),
        )
        files = self._source.files
        try:
            cells = matrix.measure(series, files, place, target=target, variants=self._variants)
            return {cell.patch: cell for cell in cells}
        except DspatchError as error:
            return f"it could not be tried: {error.what}"

    def _command(self, target: str, wanted: Sequence[str], asked: Sequence[str]) -> str:
        engine = self._source.engine
        words = ["--engine", engine, *self._rev]
        models = [word for name in wanted for word in ("--variant", name)]
        run = shlex.join(["dspatch", "run", *words, "--target", target, *models, *asked])
        pinned = [pin.rev for pin in pins.pinned(engine)]
        if any(lookup.same(self._rev[1], rev) for rev in pinned) or "--repo" in self._rev:
            return run
        return f"{shlex.join(['dspatch', 'pin', 'add', *words])} && {run}"
