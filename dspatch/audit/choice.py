"""Which release to pin: the one that serves a model with the least that is grave, without any condition."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass

from dspatch.audit.finding import SEVERITIES
from dspatch.audit.history import History
from dspatch.audit.select import User, concerning


@dataclass(frozen=True, kw_only=True)
class Standing:
    """A release as one user meets it: how many findings of each severity, and whether it serves the model.

    `conditional` counts those that need an option, a card or a place that the user did not name.
    """

    version: str
    counts: tuple[int, ...]
    unknown: int
    conditional: int
    serves: bool

    @property
    def rank(self) -> tuple[int, ...]:
        """What releases are compared by: wrong results and crashes first, then all that is less grave."""
        grave = sum(self.counts[:2])
        return (grave, sum(self.counts[2:]), self.unknown)


def standings(done: History, user: User) -> tuple[Standing, ...]:
    """Every release as a user meets it, oldest first."""
    rows = {row.concern.finding.id: row for row in done.rows}
    concerns = list(concerning((row.concern.finding for row in done.rows), user))
    plain = [each.finding for each in concerns if not each.when]
    found = []
    for version in done.releases:
        having = [each for each in plain if rows[each.id].states[version] == "yes"]
        number = Counter(each.severity for each in having)
        found.append(
            Standing(
                version=version,
                counts=tuple(number[severity] for severity in SEVERITIES),
                unknown=sum(rows[each.id].states[version] == "unknown" for each in plain),
                conditional=sum(
                    bool(each.when) and rows[each.finding.id].states[version] == "yes"
                    for each in concerns
                ),
                serves=not any(each.blocks for each in having),
            )
        )
    return tuple(found)


def best(found: tuple[Standing, ...]) -> Standing | None:
    """The release to pin: of those that serve the model the one with the least, the newest of equals."""
    serving = [each for each in reversed(found) if each.serves]
    return min(serving, key=lambda each: each.rank, default=None)
