"""`--prepare` of `conformance` and `bench alarms`: golden results in a folder, for a machine that can make none."""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from dspatch import files, paths, variants
from dspatch.console import Console
from dspatch.stages import proving

if TYPE_CHECKING:
    from dspatch.conformance.oracle import Golden
    from dspatch.conformance.small import Case


@dataclass(frozen=True, kw_only=True)
class Prepared:
    """A folder that can be another machine's `DSPATCH_CACHE`, and what was put into it."""

    folder: Path
    models: tuple[str, ...]
    files: tuple[Path, ...]

    @property
    def bytes(self) -> int:
        """The size of what was put there."""
        return sum(path.stat().st_size for path in self.files)


def of_models(models: Sequence[str]) -> list[Case]:
    """The small models that prove these, or the whole family; raises `UnknownVariantError`."""
    from dspatch.conformance import small

    return [small.case(name) for name in proving.models_for(models or variants.names())]


def run(cases: Sequence[Case], folder: Path, console: Console, *, drawn: bool = False) -> Prepared:
    """Make the golden results of the cases; their checkpoints go as recipes.

    Those that were `drawn` for a count of false alarms, with all that it draws in their place (see `bench.ties`).

    Raises `EngineEnvironmentError` where the oracle cannot be made.
    """
    from dspatch.bench import ties
    from dspatch.conformance import oracle

    with console.working("conformance") as step:
        standing = oracle.ensure(step)
        asked = ties.every(cases, standing, step) if drawn else cases
        golden = standing.golden(asked, step)
    kept = [path for one in golden for path in _kept(one, folder)]
    return Prepared(folder=folder, models=tuple(case.name for case in cases), files=tuple(kept))


def _kept(golden: Golden, folder: Path) -> Iterator[Path]:
    """The golden results as they are; the checkpoint, which is far larger, as its recipe."""
    recipe = (json.dumps(golden.checkpoint.as_recipe(), indent=1) + "\n").encode()
    for path, data in (
        (golden.path, golden.path.read_bytes()),
        (golden.checkpoint.recipe, recipe),
    ):
        target = folder / path.relative_to(paths.cache())
        target.parent.mkdir(parents=True, exist_ok=True)
        files.write_if_changed(target, data)
        yield target


def told(done: Prepared, console: Console, command: str = "conformance --env PYTHON") -> None:
    """What was made, and how the other machine takes it."""
    console.say(
        f"{len(done.models)} models, {done.bytes / 1e6:.1f} MB in {done.folder}; on the machine that"
        f" measures: DSPATCH_CACHE={done.folder.name} DSPATCH_ORACLE=python3 dspatch {command}"
    )
    console.result(
        {"folder": done.folder, "models": done.models, "bytes": done.bytes, "files": done.files}
    )
