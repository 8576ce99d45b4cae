"""An engine that a Python has installed: found by its metadata, never imported."""

from __future__ import annotations

import json
import shutil
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit
from urllib.request import url2pathname

from packaging.utils import canonicalize_name

from dspatch import pins, process
from dspatch.audit import source
from dspatch.audit.source import Source
from dspatch.errors import EngineEnvironmentError, ProcessError, ProcessTimeoutError
from dspatch.pins.engines import Engine

TIMEOUT = 60.0  # seconds; a Python on a slow network drive
# Runs on any Python that an engine supports; `-I` keeps its own folder and variables out of it.
_ASK = """\
import json, site, sys
from importlib import metadata
places = [p for p in sys.path if p]
if sys.prefix == sys.base_prefix:
    places.append(site.getusersitepackages())
found = []
for name in json.loads(sys.argv[1]):
    for dist in metadata.distributions(name=name, path=places):
        found.append([name, dist.version, str(dist.locate_file("")), dist.read_text("direct_url.json")])
print(json.dumps(found))
"""


@dataclass(frozen=True, kw_only=True)
class Installed:
    """An installed engine: `root` is the folder that holds its package."""

    engine: str
    project: str
    version: str
    root: Path
    editable: bool


def of_environment(given: str, engine: str | None) -> Source:
    """The engine that a Python, or the Python of a virtual environment's folder, has installed.

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
    return source.of_folder(
        found.engine,
        found.root,
        version=found.version,
        kind="folder" if found.editable else "environment",
        origin=f"{found.project} {found.version} in {found.root}",
        package=facts.package,
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
    found = [_installed(row, projects, engines) for row in rows.values()]
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
    for project, version, root, _ in _ask(python, projects):
        found.setdefault(str(project), (str(version), Path(root)))
    return found


def _ask(python: Path, projects: Sequence[str]) -> list[list[Any]]:
    try:
        done = process.run(
            [python, "-I", "-c", _ASK, json.dumps(projects)], timeout=TIMEOUT, env={"LC_ALL": "C"}
        )
        rows = json.loads(done.stdout.splitlines()[-1])
    except (ProcessError, ProcessTimeoutError) as error:
        raise _broken(python, error.why or error.what) from None
    except (ValueError, IndexError) as error:
        raise _broken(python, f"its answer cannot be read: {error}") from None
    return list(rows)


def _installed(
    row: Sequence[Any], projects: Mapping[str, str], engines: Mapping[str, Engine]
) -> Installed:
    project, version, root, direct = row
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
        engine=engine, project=project, version=str(version), root=place, editable=editable
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
