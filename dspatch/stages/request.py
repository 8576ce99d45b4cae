"""What a user asked for, resolved into a pin, variants and a job."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from dspatch import outputformat, pins, variants
from dspatch.checkout import SourceKind
from dspatch.errors import UnknownRevisionError, UnknownVariantError, UnpinnedRevisionError
from dspatch.identify import identify, read_object
from dspatch.job import Job, JobId, open_job
from dspatch.outputformat import OutputFormat
from dspatch.pins import Pin
from dspatch.variants import Variant


@dataclass(frozen=True, kw_only=True)
class Request:
    """The words of the command line that decide which tree is built; `extra` are patches asked for by name.

    `base` names the pinned release whose compiled members serve a revision that is no release.
    """

    engine: str
    rev: str
    target: str = "cpu"
    variants: tuple[str, ...] = ()
    source: SourceKind = "auto"
    repo: str | None = None
    base: str | None = None
    output_format: OutputFormat | None = None
    extra: tuple[str, ...] = ()


@dataclass(frozen=True, kw_only=True)
class Resolved:
    """A request with its names looked up."""

    request: Request
    pin: Pin
    revision: str | None
    variants: tuple[Variant, ...]
    job: Job


def request_of(content: Mapping[str, Any]) -> Request:
    """The request that a job was applied with, by its receipt."""
    asked = content["request"]
    format = outputformat.given(asked.get("output_format"))
    lists = {name: tuple(asked.get(name, ())) for name in ("variants", "extra")}
    return Request(**{**asked, **lists, "output_format": format})


def pin_of(content: Mapping[str, Any]) -> Pin:
    """The pin that a job was applied with, by its receipt: of a git revision, its base's."""
    asked = content["request"]
    return pins.load(asked["engine"], asked["base"] or asked["rev"])


def newest(engine: str) -> str:
    """The newest pinned revision: upstream's newest form that can be had without asking for one."""
    return pins.pinned(engine)[-1].rev


def job_named(request: Request) -> JobId:
    """The id of the job that a request asks for, in the request's own words."""
    return JobId(
        engine=request.engine,
        rev=request.rev,
        target=request.target,
        variants=request.variants,
        format=request.output_format.name if request.output_format else "",
        extra=tuple(sorted(set(request.extra))),
    )


def resolve(request: Request) -> Resolved:
    """Look up pin and variants. Raises the error of the first name that is unknown."""
    models = served(request.variants)
    pin, revision = _pin(request)
    named = tuple(variant.name for variant in models) if request.variants else ()
    job_id = replace(job_named(request), rev=revision or pin.version, variants=named)
    return Resolved(
        request=request, pin=pin, revision=revision, variants=models, job=open_job(job_id)
    )


def served(names: Sequence[str]) -> tuple[Variant, ...]:
    """The variants of the given names, in order and once each; none means the whole family.

    A name may be the path of a config.json, or of the checkpoint's folder that holds it.
    """
    found = [_variant(name) for name in names or variants.names()]
    return tuple({variant.name: variant for variant in found}.values())


def known(names: Sequence[str]) -> tuple[Variant, ...]:
    """As `served`, but none means every variant that is known, also those that a job has to name."""
    return served(names or tuple(variants.table()))


def _variant(name: str) -> Variant:
    path = Path(name)
    path = path / "config.json" if path.is_dir() else path
    if path.suffix != ".json":
        return variants.variant(name)
    try:
        config = read_object(path)
    except (OSError, ValueError) as error:
        raise UnknownVariantError(
            f"{path} is not a readable config.json.",
            why=str(error),
            next="give the path of the model's config.json, or a name such as deepseek-v3",
        ) from None
    return identify(config)


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
            next=f"name the release it is nearest to: --base {newest(request.engine)}",
        ) from error
