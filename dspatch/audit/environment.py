"""An engine that a Python has installed: found by its metadata, never imported."""

from __future__ import annotations

import json
import os
import shutil
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit
from urllib.request import url2pathname

from packaging.utils import canonicalize_name
from packaging.version import InvalidVersion, Version

from dspatch import pins, process
from dspatch.audit import source
from dspatch.audit.source import Source
from dspatch.errors import EngineEnvironmentError, ProcessError, ProcessTimeoutError
from dspatch.pins.engines import Engine

TIMEOUT = 60.0  # seconds; a Python on a slow network drive
# Runs on any Python that an engine supports; `-I` keeps its own folder and variables out of it.
_ASK = """\
import csv, json, os, site, sys
from importlib import metadata
places = [p for p in sys.path if p]
if sys.prefix == sys.base_prefix:
    places.append(site.getusersitepackages())
found = []
for name in json.loads(sys.argv[1]):
    for dist in metadata.distributions(name=name, path=places):
        root = str(dist.locate_file(""))
        record = dist.read_text("RECORD")
        rows = [row[0] for row in csv.reader((record or "").splitlines()) if row]
        lost = [row for row in rows if row.endswith(".py") and not os.path.exists(os.path.join(root, row))]
        version = (dist.metadata or {}).get("Version")
        direct = dist.read_text("direct_url.json")
        found.append([name, version, root, direct, record is not None, lost])
print(json.dumps(found))
"""


@dataclass(frozen=True, kw_only=True)
class Installed:
    """An installed engine: `root` is the folder that holds its package.

    `lost` are the sources that its RECORD lists and that are not there; `recorded`: it has a RECORD.
    """

    engine: str
    project: str
    version: str
    root: Path
    editable: bool
    recorded: bool = True
    lost: tuple[str, ...] = ()


def of_environment(given: str, engine: str | None, notes: list[str] | None = None) -> Source:
    """The engine that a Python, or the Python of a virtual environment's folder, has installed.

    A file that is not there, and that it has lost or may have lost, is beyond what the source can say;
    `notes` gets a line about that.

    Raises `EngineEnvironmentError` when there is no such Python, it does not run, or the engine is
    not (or only half) installed.
    """
    python = interpreter(given)
    found = find(python, engine)
    facts = pins.engine(found.engine)
    if not (found.root / facts.package / "__init__.py").is_file():
        raise EngineEnvironmentError(
            f"{python} lists {found.project} {found.version}, but its package is not there.",
            why=f"{found.root / facts.package / '__init__.py'} does not exist",
            next=f"install it anew: {python} -m pip install --force-reinstall {found.project}",
        )
    read = source.of_folder(
        found.engine,
        found.root,
        version=found.version,
        kind="folder" if found.editable else "environment",
        origin=f"{found.project} {found.version} in {found.root}",
        package=facts.package,
    )
    told = _loss(found)
    if not told:
        return read
    if notes is not None:
        notes.append(told)
    lost = frozenset(found.lost)
    return replace(
        read, outside=lambda path: read.outside(path) or not found.recorded or path in lost
    )


def _loss(found: Installed) -> str:
    """What an installation has lost, in words; empty where it is whole."""
    if found.editable:
        return ""
    anew = "what rests on their absence is unknown; install it anew"
    if not found.recorded:
        return f"{found.project} has no RECORD, so files may be missing: {anew}"
    if not found.lost:
        return ""
    named = ", ".join(found.lost[:2]) + (" …" if found.lost[2:] else "")
    return (
        f"{found.project} has lost {len(found.lost)} of the files in its RECORD ({named}): {anew}"
    )


def find(python: Path, engine: str | None) -> Installed:
    """The one engine that a Python has installed; raises `EngineEnvironmentError`."""
    engines = {engine: pins.engine(engine)} if engine else dict(pins.engines())
    projects: dict[str, str] = {
        canonicalize_name(project): name
        for name, facts in engines.items()
        for project in facts.projects
    }
    rows = {(str(row[0]), str(row[1]), str(row[2])): row for row in _ask(python, list(projects))}
    found = [_installed(python, row, projects, engines) for row in rows.values()]
    if len(found) == 1:
        return found[0]
    told = ", ".join(f"{each.project} {each.version} in {each.root}" for each in found)
    raise EngineEnvironmentError(
        f"{python} has {len(found) or 'none'} of the engines installed that could be meant.",
        why=told or f"no {' or '.join(projects)} is among its packages",
        next="name one with --engine, or uninstall the other" if found else "name another Python",
    )


def distributions(python: Path, projects: Sequence[str]) -> dict[str, tuple[str, Path]]:
    """The version and the place of those projects that a Python has; the first on its path counts."""
    found: dict[str, tuple[str, Path]] = {}
    for row in _ask(python, projects):
        project, version, root = row[:3]
        found.setdefault(str(project), (str(version), Path(root)))
    return found


def _ask(python: Path, projects: Sequence[str]) -> list[list[Any]]:
    try:
        done = process.run(
            [python, "-I", "-c", _ASK, json.dumps(projects)], timeout=TIMEOUT, env={"LC_ALL": "C"}
        )
        rows = json.loads(done.stdout.splitlines()[-1])
    except ProcessTimeoutError as error:
        raise _broken(python, error.what) from None
    except ProcessError as error:
        why = error.why if os.access(python, os.X_OK) else "it is no program that may be run"
        raise _broken(python, why) from None
    except OSError as error:
        raise _broken(python, f"it is no program that can be run here: {error.strerror}") from None
    except (ValueError, IndexError) as error:
        raise _broken(python, f"its answer cannot be read: {error}") from None
    return list(rows)


def _installed(
    python: Path, row: Sequence[Any], projects: Mapping[str, str], engines: Mapping[str, Engine]
) -> Installed:
    project, version, root, direct, recorded, lost = row
    _check_version(python, project, version, root)
    where = json.loads(direct) if direct else {}
    editable = bool(where.get("dir_info", {}).get("editable"))
    if editable:
        root = url2pathname(urlsplit(where["url"]).path)
    engine = projects[project]
    place = Path(root).resolve()
    # A project may keep its package in a folder of its own.
    if editable and not (place / engines[engine].package).is_dir():
        place = place / "src" if (place / "src" / engines[engine].package).is_dir() else place
    return Installed(
        engine=engine, project=project, version=str(version), root=place, editable=editable,
        recorded=bool(recorded), lost=tuple(lost),
    )  # fmt: skip


def _check_version(python: Path, project: str, version: Any, root: str) -> None:
    """Raise for a distribution whose metadata is gone or states no version."""
    with suppress(InvalidVersion, TypeError):
        Version(version)
        return
    raise EngineEnvironmentError(
        f"{python} lists {project}, but cannot say in which version.",
        why=f"its metadata in {root} states {version!r}" if version else f"{root} has no METADATA",
        next=f"install it anew: {python} -m pip install --force-reinstall {project}",
    )


def interpreter(given: str) -> Path:
    """The Python of that path or name, or of that virtual environment; raises `EngineEnvironmentError`."""
    place = Path(given).expanduser()
    if place.is_dir():
        inside = [place / "bin" / "python", place / "bin" / "python3"]
        place = next((each for each in inside if each.exists()), place)
    if place.is_dir():
        raise EngineEnvironmentError(
            f"{given} is a folder without a Python in it.",
            why=f"there is neither {inside[0]} nor {inside[1].name}",
            next="name a Python, for example --env .venv/bin/python",
        )
    if not place.exists():
        known = shutil.which(given)
        if known is None:
            raise EngineEnvironmentError(
                f"There is no Python at {given}.",
                next="name one, for example --env .venv/bin/python",
            )
        place = Path(known)
    # Not resolved: a virtual environment is told by the link's own place.
    return place.absolute()


def _broken(python: Path, why: str) -> EngineEnvironmentError:
    return EngineEnvironmentError(
        f"{python} does not answer what it has installed.",
        why=why,
        next="check that it runs: "
        f"{python} -I -c 'import importlib.metadata'; a broken environment must be made anew",
    )
