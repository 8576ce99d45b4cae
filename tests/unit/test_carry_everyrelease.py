"""Something is done for every release at once, and told in the releases' order."""

from __future__ import annotations

import threading
import time

import pytest

from dspatch.carry.remote import everyrelease
from dspatch.carry.remote.releases import Release
from dspatch.errors import OfflineError

RELEASES = [Release(version=f"0.{n}.0", wheel=None, sdist=None, yanked=False) for n in range(12)]


def test_what_is_done_last_is_not_told_last() -> None:
    later = threading.Event()

    def one(release: Release) -> str:
        if release is RELEASES[0]:
            assert later.wait(10)
        elif release is RELEASES[-1]:
            later.set()
        return release.rev

    counts: list[int] = []
    found = everyrelease.each(RELEASES, one, counts.append)
    assert list(found.items()) == [(each.version, each.rev) for each in RELEASES]
    assert counts == list(range(1, 13))
    assert everyrelease.each([], one, counts.append) == {}


def test_the_first_fault_ends_it() -> None:
    asked: list[str] = []

    def one(release: Release) -> None:
        asked.append(release.version)
        if release is RELEASES[0]:
            raise OfflineError("No network.")
        time.sleep(0.3)

    with pytest.raises(OfflineError):
        everyrelease.each(RELEASES, one, lambda count: None)
    assert len(asked) < len(RELEASES)
