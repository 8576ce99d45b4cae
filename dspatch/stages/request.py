"""What a user asked for, resolved into a pin, variants and a job."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from dspatch import pins, variants
from dspatch.checkout import SourceKind
from dspatch.errors import UnknownRevisionError, UnpinnedRevisionError
from dspatch.job import Job, JobId, open_job
from dspatch.pins import Pin
from dspatch.variants import Variant


@dataclass(frozen=True, kw_only=True)
class Request:
    """The words of the command line that decide which tree is built.

    `base` names the pinned release whose compiled members serve a revision that is no release.
    """

    engine: str
    rev: str
    target: str = "cpu"
    variants: tuple[str, ...] = ()
    source: SourceKind = "auto"
    repo: str | None = None
    base: str | None = None


@dataclass(frozen=True, kw_only=True)
class Resolved:
    """A request with its names looked up."""

    request: Request
    pin: Pin
    revision: str | None
    variants: tuple[Variant, ...]
    job: Job


def resolve(request: Request) -> Resolved:
    """Look up pin and variants. Raises the error of the first name that is unknown."""
    models = served(request.variants)
    pin, revision = _pin(request)
    job_id = JobId(
        engine=request.engine,
        rev=revision or pin.version,
        target=request.target,
        variants=tuple(variant.name for variant in models) if request.variants else (),
    )
    return Resolved(
        request=request, pin=pin, revision=revision, variants=models, job=open_job(job_id)
    )


def served(names: Sequence[str]) -> tuple[Variant, ...]:
    """The variants of the given names, in order and once each; none means the whole family."""
    wanted = dict.fromkeys(names or variants.names())
    return tuple(variants.variant(name) for name in wanted)


def _pin(request: Request) -> tuple[Pin, str | None]:
    """The pin, and the git revision when the request names one that is no release of its own."""
    if request.base is not None:
        return pins.load(request.engine, request.base), request.rev
    try:
        return pins.load(request.engine, request.rev), None
    except UnpinnedRevisionError:
        raise
    except UnknownRevisionError as error:
        if request.repo is None and request.source != "git":
            raise
        raise UnpinnedRevisionError(
            f"{request.rev} of {request.engine} is a git revision without a pin.",
            why="its compiled members must come from the wheel of a pinned release",
            next=f"name the release it is nearest to: --base {_latest(request.engine)}",
        ) from error


def _latest(engine: str) -> str:
    return pins.pinned(engine)[-1].rev
