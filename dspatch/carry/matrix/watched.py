"""Traits that remember which files outside a source's reach were asked for, so that no answer is a guess."""

from __future__ import annotations

from collections.abc import Callable, Mapping

from dspatch.traits import Read, Trait, Traits, Value


class WatchedTraits(Traits):
    """Traits whose answers know which paths `beyond` the source they rest on.

    `since_then` starts empty with `start` and grows with every answer, kept ones included.
    """

    def __init__(
        self, definitions: Mapping[str, Trait], read: Read, beyond: Callable[[str], bool]
    ) -> None:
        super().__init__(definitions, self._noting(read))
        self._beyond = beyond
        self._rests_on: dict[str, set[str]] = {}
        self._asking: list[set[str]] = []
        self.since_then: set[str] = set()

    def start(self) -> None:
        """Forget what was asked so far; answers stay."""
        self.since_then = set()

    def get_or_none(self, name: str) -> Value | None:
        """The answer to a trait, `None` where nothing gives it a value."""
        if name not in self._rests_on:
            self._asking.append(set())
            value = super().get_or_none(name)
            self._rests_on[name] = self._asking.pop()
        else:
            value = super().get_or_none(name)
        for waiting in (*self._asking[-1:], self.since_then):
            waiting |= self._rests_on[name]
        return value

    def _noting(self, read: Read) -> Read:
        def noted(path: str) -> bytes | None:
            if self._beyond(path):
                for asking in self._asking:
                    asking.add(path)
            return read(path)

        return noted
