"""From the words of a command line to the request or the job that they mean."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import click

if TYPE_CHECKING:
    from dspatch.job import Job
    from dspatch.outputformat import OutputFormat
    from dspatch.stages.request import Request


def named(engine: str | None, rev: str | None) -> tuple[str, str]:
    """The engine and the revision; a usage error without the second."""
    if rev is None:
        raise click.UsageError("--rev is needed, for example --rev v0.27.1")
    return engine or "vllm", rev


def request(words: dict[str, Any]) -> Request:
    """The request of a command that names its job in full."""
    from dspatch.stages.request import Request

    words["engine"], words["rev"] = named(words["engine"], words["rev"])
    return Request(**{**words, "output_format": output_format(words)})


def output_format(words: dict[str, Any]) -> OutputFormat | None:
    """The output format that the options name, read."""
    from dspatch import outputformat

    path = words.get("output_format")
    return None if path is None else outputformat.load(path)


def request_or_last(words: dict[str, Any]) -> Request:
    """The request of the options, or that of the job applied last."""
    return last_request() if words["rev"] is None else request(words)


def last_request() -> Request:
    """The request of the job applied last."""
    from dspatch import job, receipt
    from dspatch.stages.request import request_of

    return request_of(receipt.require(job.last(), "apply"))


def job(words: dict[str, Any]) -> Job:
    """The job that the options name, or the one applied last."""
    from dspatch import job
    from dspatch.stages.request import Request, job_named, resolve

    if words["rev"] is None:
        return job.last()
    given = {key: words[key] for key in ("rev", "target", "variants")}
    asked = Request(
        engine=words["engine"] or "vllm",
        output_format=output_format(words),
        extra=words.get("extra", ()),
        **given,
    )
    # A git revision that is no pin is found among the jobs, by the name it was applied under.
    return job.find(job_named(asked)) or resolve(asked).job


def models(names: tuple[str, ...]) -> tuple[str, ...]:
    """Names of small models; for the config.json of a checkpoint that of the model which it shows.

    Raises `UnknownVariantError` for a config.json of no model.
    """
    from pathlib import Path

    from dspatch import variants
    from dspatch.stages.request import known

    found = []
    for name in names:
        shown = name.partition("/")[0] not in variants.names() and Path(name).exists()
        found.append(known((name,))[0].name if shown else name)
    return tuple(found)


def job_to_prove(words: dict[str, Any]) -> Job:
    """The job of the named variants, or the family's, whose models the names then narrow.

    A form of a model (`deepseek-v3/fp8`) is one more model of the same job.
    """
    plain = dict.fromkeys(name.partition("/")[0] for name in words["variants"])
    named = job({**words, "variants": tuple(plain)})
    return named if named.receipt("apply").exists() else job({**words, "variants": ()})
