"""The engines within an engine, as the table of models has them: what concerns each alone, and what was run of it."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from fnmatch import fnmatch
from pathlib import Path
from typing import Any

from dspatch import tomlfile
from dspatch.audit.finding import Finding
from dspatch.errors import ClaimError
from dspatch.facts import Variant
from dspatch.paths import PACKAGE
from dspatch.tomlfile import TomlFile

TABLE = PACKAGE / "audit" / "data" / "backends.toml"
_KEYS = ("name", "command", "families", "alone", "converted", "runs")


@dataclass(frozen=True, kw_only=True)
class Backend:
    """One engine within an engine; the only one of an engine without a choice has no name.

    others: patterns of the findings of other backends alone. runs: states by model and release, of
    runs that are kept. refused: why a release does not compute a model, likewise. must: models of
    which one of both is to be known of every release. mends: findings that a run had not.
    """

    name: str = ""
    command: tuple[str, ...] | None = None
    families: frozenset[str] = frozenset()
    others: tuple[str, ...] = ()
    runs: Mapping[tuple[str, str], str] = field(default_factory=dict)
    refused: Mapping[tuple[str, str], str] = field(default_factory=dict)
    must: frozenset[str] = frozenset()
    mends: Mapping[tuple[str, str], tuple[str, ...]] = field(default_factory=dict)

    def has(self, model: Variant) -> bool:
        """Whether a model has rows of this backend."""
        return self.families <= model.families

    def concerned(self, findings: Iterable[Finding]) -> list[Finding]:
        """The findings that are not of another backend alone."""
        return [
            each for each in findings if not any(fnmatch(each.id, other) for other in self.others)
        ]

    def mended(self, finding: Finding, model: str, version: str) -> bool:
        """Whether what was run of a release had not this finding."""
        return finding.id in self.mends.get((model, version), ())

    def told(self, model: str, version: str) -> str:
        """What was run of a release, or that nothing was where it must be known; else empty."""
        return self.runs.get((model, version), "not run" if model in self.must else "")

    def reason(self, model: str, version: str) -> str:
        """Why the patched release refuses a model; empty where it does not, as far as it is known."""
        return self.refused.get((model, version), "")


def load(engine: str, proofs: Path) -> tuple[Backend, ...]:
    """The backends of an engine, what was run of them read from a folder of proofs.

    Raises `ClaimError` for a proof that is not there or does not say what it is taken for.
    """
    source = tomlfile.load(TABLE, ClaimError)
    if engine not in source.data:
        return (Backend(),)
    tables = {name: source.get(source.data[engine], name, dict) for name in source.data[engine]}
    return tuple(_backend(source, f"{engine}.{name}", tables, name, proofs) for name in tables)


def _backend(
    source: TomlFile, within: str, tables: Mapping[str, dict[str, Any]], name: str, proofs: Path
) -> Backend:
    table = tables[name]
    source.check_keys(table, _KEYS, within=within)
    runs, refused = dict[tuple[str, str], str](), dict[tuple[str, str], str]()
    mends = dict[tuple[str, str], tuple[str, ...]]()
    must = frozenset[str]()
    if "converted" in table:
        stands: dict[str, list[str]] = table["converted"]["models"]
        held = _read(proofs / table["converted"]["file"])
        _converted(held, stands, runs, refused)
        must = frozenset(each for models in stands.values() for each in models)
    for run in source.get(table, "runs", list, within=within, default=[]):
        state = run["state"].format(date=_read(proofs / run["proof"])["date"])
        keys = [(model, run["release"]) for model in run["models"]]
        runs |= dict.fromkeys(keys, state)
        mends |= dict.fromkeys(keys, tuple(run.get("mends", ())))
    others = [each for other, rows in tables.items() if other != name for each in rows["alone"]]
    return Backend(
        name=source.get(table, "name", str, within=within),
        command=source.strings(table, "command", within=within),
        families=frozenset(source.strings(table, "families", within=within)),
        others=tuple(others),
        runs=runs,
        refused=refused,
        must=must,
        mends=mends,
    )


def _converted(
    held: Mapping[str, Any],
    stands: Mapping[str, list[str]],
    runs: dict[tuple[str, str], str],
    refused: dict[tuple[str, str], str],
) -> None:
    """Put what a file says of converted models under the models that they stand for."""
    for version, models in held["releases"].items():
        for converted, named in stands.items():
            row = models[converted]
            keys = [(name, version) for name in named]
            if "refused" in row:
                refused |= dict.fromkeys(keys, row["refused"].partition(": ")[2])
            else:
                runs |= dict.fromkeys(keys, f"patched, conversion proven {held['date']}")


def _read(path: Path) -> dict[str, Any]:
    try:
        held: dict[str, Any] = json.loads(path.read_text(encoding="utf-8"))
        held["date"]
    except (OSError, ValueError, KeyError) as error:
        raise ClaimError(
            f"{path} is no proof that can be read.",
            why=str(error),
            next=f"take it out of {TABLE.name}, or write it anew",
        ) from error
    return held
