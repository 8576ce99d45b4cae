"""`dspatch build-wheel --delta`: beside the wheel, the one small file that makes it of an installed base."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import NoReturn

from dspatch import pins, receipt
from dspatch.console import Console
from dspatch.errors import DeltaError
from dspatch.files import write_atomically
from dspatch.stages.build import Built, epoch, fetched
from dspatch.stages.request import pin_of
from dspatch.wheel.delta import SUFFIX, Delta, build_delta

IMAGE_FOLDER = "/opt/dspatch"


@dataclass(frozen=True, kw_only=True)
class Thin:
    """A job's wheel, its delta, and the recipe of a container layer where upstream has an image."""

    built: Built
    delta: Delta
    dockerfile: Path | None


def refuse_compiled() -> NoReturn:
    """Raise `DeltaError`: a delta leads from a base wheel that others have installed."""
    raise DeltaError(
        "A wheel that was compiled here has no delta.",
        why="nobody has the base wheel installed that it would be applied to",
        next="install the wheel itself",
    )


def run(built: Built, console: Console) -> Thin:
    """Write the delta of a job's wheel beside it. Raises `DeltaError` or what `download` raises."""
    original = fetched(built.base, console)
    with built.job.locked():
        delta = build_delta(original, built.path, built.job.dist, epoch=epoch())
        dockerfile = _dockerfile(built, delta)
        told = {"wheel": built.sha256, "base": built.base.filename, "delta": delta.as_dict()}
        receipt.write(built.job, "delta", told)
    return Thin(built=built, delta=delta, dockerfile=dockerfile)


def _dockerfile(built: Built, delta: Delta) -> Path | None:
    engine = pins.engine(built.job.id.engine)
    image = engine.images.get(built.job.id.target)
    if image is None:
        return None
    tag = pin_of(receipt.require(built.job, "apply")).tag
    lines = [
        f"FROM {image}:{tag}",
        f"COPY {delta.path.name} {IMAGE_FOLDER}/",
        # An image has a build of its own, whose patched files are the same.
        f"RUN python3 {IMAGE_FOLDER}/{delta.path.name} --other-build",
    ]
    path = delta.path.with_name(f"{delta.path.name.removesuffix(SUFFIX)}.Dockerfile")
    write_atomically(path, ("\n".join(lines) + "\n").encode())
    return path
