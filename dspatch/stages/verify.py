"""`dspatch wheel verify`: a wheel, packed or installed, held against its record, its pedigree and its base wheel."""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path

from packaging.utils import canonicalize_name

from dspatch import job, pins, process, receipt
from dspatch.console import Console
from dspatch.errors import WheelError
from dspatch.stages import build
from dspatch.wheel.installed import Installed, Name, named, open_installed
from dspatch.wheel.plan import SBOM_NAME
from dspatch.wheel.verify import Verification, verify, verify_installed

# The caller's folder, which is first on the path of `python -c`, is left out before anything is imported.
_ASK = """\
import sys
sys.path = [folder for folder in sys.path if folder]
import json
print(json.dumps(sys.path))
"""


@dataclass(frozen=True, kw_only=True)
class Subject:
    """What to verify: a wheel or a site-packages, or what a Python has (of `project`, when named)."""

    path: Path | None = None
    python: str | None = None
    project: str | None = None
    base_wheel: Path | None = None


def run(subject: Subject, console: Console) -> Verification:
    """Verify a wheel; without any subject, the wheel of the job applied last, and against its base.

    Raises `WheelVerifyError` that names every faulty member, `NoJobError` when there is no wheel,
    `WheelError` when no wheel of dspatch's is installed there.
    """
    if subject.python is not None:
        return _installed(_site_packages(subject.python), subject, console)
    if subject.path is not None and subject.path.is_dir():
        return _installed([subject.path.resolve()], subject, console)
    if subject.path is not None:
        return verify(subject.path, subject.base_wheel)
    last = job.last()
    content = receipt.require(last, "build-wheel")
    wheel = build.built_of(last, content)
    return verify(wheel.path, build.base_of(wheel, console))


def _installed(sites: list[Path], subject: Subject, console: Console) -> Verification:
    found = _chosen(sites, subject.project)
    with console.working(f"verifying {found.name.project} {found.name.version}"):
        return verify_installed(found, subject.base_wheel)


def _chosen(sites: list[Path], project: str | None) -> Installed:
    """The wheel of that project; otherwise the patched one, otherwise an engine's."""
    every = [(folder, name) for site in sites for folder, name in named(site)]
    if project is not None:
        fitting = [each for each in every if each[1].project == canonicalize_name(project)]
    else:
        patched = [each for each in every if (each[0] / SBOM_NAME).is_file()]
        fitting = patched or _of_engines(every)
    if len(fitting) == 1:
        return open_installed(*fitting[0])
    names = ", ".join(f"{name.project} {name.version}" for _, name in fitting)
    raise WheelError(
        f"{len(fitting) or 'No'} installed wheels are meant in {', '.join(map(str, sites))}.",
        why=names or f"{project or 'a wheel of dspatch or of an engine'} is not installed there",
        next="name another folder, a Python (--python) or a project (--project)",
    )


def _of_engines(every: list[tuple[Path, Name]]) -> list[tuple[Path, Name]]:
    projects = {canonicalize_name(p) for e in pins.engines().values() for p in e.projects}
    return [each for each in every if each[1].project in projects]


def _site_packages(python: str) -> list[Path]:
    """The folders that a Python imports from; raises `ProcessError` when it does not run."""
    done = process.run([python, "-c", _ASK], env={"PYTHONPATH": ""}, timeout=60)
    folders = [Path(each).resolve() for each in json.loads(done.stdout)]
    return [folder for folder in dict.fromkeys(folders) if folder.is_dir()]
