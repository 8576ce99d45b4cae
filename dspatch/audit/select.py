"""Which findings concern a user: their model, target, card and command line."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from dspatch.audit import commandline
from dspatch.audit.cards import Card
from dspatch.audit.conditions import facts_of, holds
from dspatch.audit.finding import Finding
from dspatch.facts import Variant


@dataclass(frozen=True, kw_only=True)
class Model:
    """A model to serve, and its config.json where there is one."""

    variant: Variant
    config: Mapping[str, Any] | None = None


@dataclass(frozen=True, kw_only=True)
class User:
    """Who asks: what they serve, on what, and with which command; `None` is not said."""

    models: tuple[Model, ...]
    target: str | None = None
    card: Card | None = None
    command: tuple[str, ...] | None = None

    @property
    def place(self) -> str | None:
        """The target: the card's, or the one that was named."""
        return self.card.target if self.card is not None else self.target


@dataclass(frozen=True, kw_only=True)
class Concern:
    """A finding that concerns a user; `when` words what they did not say, all of which must hold."""

    finding: Finding
    models: tuple[str, ...]
    when: tuple[str, ...]


def concerning(findings: Iterable[Finding], user: User) -> Iterator[Concern]:
    """The findings that concern a user, in their order."""
    for finding in findings:
        models, facts = _models(finding, user)
        others = [_place(finding, user), _options(finding.applies.options, user)]
        if models and None not in others:
            asked = (*facts, *(text for text in others if text))
            yield Concern(finding=finding, models=models, when=asked)


def _models(finding: Finding, user: User) -> tuple[tuple[str, ...], tuple[str, ...]]:
    """The models that it concerns, and the facts that nobody stated for at least one of them."""
    found: list[str] = []
    opened: dict[str, None] = {}
    for model in user.models:
        told = _model(finding, model)
        if told is not None:
            found.append(model.variant.name)
            opened |= dict.fromkeys(told)
    return tuple(found), tuple(opened)


def _model(finding: Finding, model: Model) -> list[str] | None:
    """The conditions left open for a model, `None` when it is not concerned."""
    applies, variant = finding.applies, model.variant
    if applies.families and not set(applies.families) <= variant.families:
        return None
    if applies.variants and variant.name not in applies.variants:
        return None
    facts = facts_of(variant, model.config)
    answers = {condition: holds(condition, facts) for condition in applies.facts}
    if False in answers.values():
        return None
    return [condition for condition, held in answers.items() if held is None]


def _place(finding: Finding, user: User) -> str | None:
    """Where it shows, as far as the user did not say; `None` when they are elsewhere."""
    targets, cards = finding.applies.targets, finding.applies.cards
    target = user.place
    if target is not None and targets and target not in targets:
        return None
    if cards and target == "cpu":
        return None
    if cards and user.card is not None:
        return "" if any(user.card.meets(each) for each in cards) else None
    told = cards or (targets if target is None else ())
    return f"on {', '.join(told)}" if told else ""


def _options(options: Sequence[str], user: User) -> str | None:
    """The options of which it needs one, as far as no command says; `None` when a command has none."""
    answers = {each: commandline.given(each, user.command) for each in options}
    if not options or True in answers.values():
        return ""
    open_ones = [each for each, answer in answers.items() if answer is None]
    return f"with {commandline.words(open_ones)}" if open_ones else None
