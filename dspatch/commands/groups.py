"""The groups that commands register on."""

from __future__ import annotations

import click


@click.group()
def pin() -> None:
    """Engine revisions and their files by hash."""


@click.group()
def patch() -> None:
    """The patches that dspatch carries, and your own."""


@click.group()
def wheel() -> None:
    """Wheels that dspatch built."""


@click.group()
def bench() -> None:
    """Measure engines: noise and false alarms of the checks, load, leaks, where time goes."""


@click.group()
def serve() -> None:
    """What serves: its options, variables and metrics, its logs and its machine."""
