"""`dspatch conformance --url` and `--api`: the options of servers, and what they mean."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any, TypeVar

import click

from dspatch.commands import together

if TYPE_CHECKING:
    from dspatch.console import Console
    from dspatch.stages.prove_any import Subject
    from dspatch.stages.proving import Proven

Command = TypeVar("Command", bound=Callable[..., Any])

OPTIONS = (
    click.option(
        "--url", metavar="URL", help="A server that runs somewhere: is it OpenAI-compatible?"
    ),
    click.option(
        "--api", is_flag=True, help="Start the engine's own server on loopback, and check that one."
    ),
    click.option(
        "--model", metavar="NAME", help="With --url: the model to ask; the first it lists."
    ),
    click.option(
        "--api-key-env", metavar="VAR", help="With --url: the variable that holds its key."
    ),
    click.option(
        "--no-client", is_flag=True,
        help="With --url and --api: without the official client and schemathesis, for which an"
        " environment is made.",
    ),
    click.option(
        "--max-requests", type=click.IntRange(min=1), default=1000, show_default=True, metavar="N",
        help="With --url and --api: ask no more often.",
    ),
    click.option(
        "--timeout", type=click.FloatRange(min=0.1), default=60.0, show_default=True,
        metavar="SECONDS", help="With --url and --api: wait no longer for one answer.",
    ),
)  # fmt: skip
LIMITS = ("no_client", "max_requests", "timeout")
OF_URL = ("model", "api_key_env")
# What says nothing about a server, and nothing about what is only prepared.
OF_NUMBERS = (
    "fresh", "selftest", "adversarial", "reference_ops", "dtype", "checkpoints", "quantised",
    "against", "prompts", "tp",
)  # fmt: skip


def options(command: Command) -> Command:
    """The options of servers."""
    for option in reversed(OPTIONS):
        command = option(command)
    return command


def taken(given: dict[str, Any]) -> dict[str, Any] | None:
    """The words about a server, taken out of all that were given; none when no server is meant.

    Raises a usage error for words that do not go together.
    """
    found = {name: given.pop(name) for name in ("url", "api", *OF_URL, *LIMITS)}
    if found["url"] is None and not found["api"]:
        together.refuse(
            (*OF_URL, *LIMITS),
            "goes with --url" if together.typed(OF_URL) else "goes with --url or --api",
        )
        return None
    together.refuse(OF_NUMBERS, "is about numbers, and a server is checked by its words")
    if found["url"] is None:
        together.refuse(OF_URL, "goes with --url")
    else:
        others = ("api", "env", "wheel", "rev", "engine", "variants")
        together.refuse(others, "does not go with --url, which names a server that runs")
    return found


def check(
    words: Mapping[str, Any], given: dict[str, Any], subject: Subject | None, console: Console
) -> Proven:
    """Check the server that the words mean: at an address, of a subject, or of a job."""
    from dspatch.commands.words import job_to_prove, output_format
    from dspatch.stages import prove_api

    limits = prove_api.Limits(
        requests=words["max_requests"], timeout=words["timeout"], client=not words["no_client"]
    )
    if words["url"] is not None:
        model, key = words["model"], words["api_key_env"]
        return prove_api.at_url(
            words["url"], console, limits, model=model, key_env=key, format=output_format(given)
        )
    if subject is not None:
        return prove_api.of_subject(
            subject, given["variants"], console, limits, format=output_format(given)
        )
    return prove_api.of_job(job_to_prove(given), given["variants"], console, limits)
