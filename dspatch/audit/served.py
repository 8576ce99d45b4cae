"""Which release serves which model: as upstream, patched and proven, patched, or not yet."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import groupby, product
from operator import itemgetter

from dspatch import markdown, variants
from dspatch.audit import proofs
from dspatch.audit.backends import Backend
from dspatch.audit.finding import Finding
from dspatch.audit.proofs import Proof
from dspatch.audit.recorded import Recorded
from dspatch.audit.select import Model, User, concerning
from dspatch.carry.matrix import spans
from dspatch.carry.matrix.matrix import APPLIES
from dspatch.facts import Variant
from dspatch.pins import engine

GRAVE = ("wrong", "crash")
Verdicts = Mapping[tuple[str, str, str], str]  # of patch, target and release


@dataclass(frozen=True, kw_only=True)
class Known:
    """What the table is made of: findings, where each was seen, what patches do, and what was run."""

    engine: str
    findings: tuple[Finding, ...]
    recorded: Recorded
    verdicts: Verdicts
    proofs: tuple[Proof, ...]
    stock: Mapping[
        tuple[str, str, str], str
    ]  # of model, target and release: the date of a clean run
    backends: tuple[Backend, ...] = (Backend(),)


@dataclass(frozen=True, kw_only=True)
class State:
    """What a release is to a model, in the words of the table; owing: the findings that these words name."""

    said: str
    owing: tuple[str, ...] = ()


def table(known: Known) -> Iterator[tuple[str, str, str, State]]:
    """Rows of models, target, releases and state; models with the same states share theirs."""
    releases = known.recorded.releases
    for target, backend in product(engine(known.engine).targets, known.backends):
        groups: dict[tuple[State, ...], list[str]] = {}
        for model in filter(backend.has, variants.table().values()):
            groups.setdefault(_states(known, model, target, backend), []).append(model.name)
        place = f"{target}, {backend.name}" if backend.name else target
        for states, models in groups.items():
            named = ", ".join(f"`{name}`" for name in models)
            for told, group in groupby(zip(releases, states, strict=True), key=itemgetter(1)):
                yield named, place, spans.between([version for version, _ in group]), told


def reasons(known: Known, states: Iterable[State]) -> Iterator[tuple[str, ...]]:
    """Rows of what states name: a finding as they do, what it makes of a model, its title."""
    named = {name for state in states for name in state.owing}
    for each in sorted(known.findings, key=lambda each: each.id):
        if each.id in named:
            makes = "refused" if each.severity == "missing" else each.severity
            yield f"`{_name(known, each)}`", makes, each.title


def _states(known: Known, model: Variant, target: str, backend: Backend) -> tuple[State, ...]:
    """What each release is to a model on a target."""
    grave, same = _grave(known, model, target, backend), (model.name, *variants.twins(model))
    return tuple(
        _state(known, same, target, each, grave, backend) for each in known.recorded.releases
    )


def _state(
    known: Known,
    same: Sequence[str],
    target: str,
    version: str,
    grave: Iterable[Finding],
    backend: Backend,
) -> State:
    model = same[0]
    if reason := backend.reason(model, version):
        return State(said=f"not yet: {reason}")
    bad = [each for each in grave if known.recorded.state(each.id, version) == "yes"]
    owing = [
        each
        for each in bad
        if not _mended(known, each, target, version) and not backend.mended(each, model, version)
    ]
    ran = _ran(known, same, target, version) or backend.told(model, version)
    if not owing:
        return State(said=ran or ("patched" if bad else "not needed"))
    told = ", ".join(_name(known, each) for each in owing)
    said = f"{ran}; not mended: {told}" if ran else f"not yet: {told}"
    return State(said=said, owing=tuple(each.id for each in owing))


def _ran(known: Known, same: Sequence[str], target: str, version: str) -> str:
    """What was run of a release, upstream's own wheel before the patched one; empty where nothing was.

    same: a model, and those that no config.json tells from it.
    """
    dates = [known.stock[key] for name in same if (key := (name, target, version)) in known.stock]
    if dates:
        return f"upstream, run {max(dates)}"
    ran = proofs.on(known.proofs, same, target, version)
    if ran is None:
        return ""
    unseen = max(ran.open.get(name, 0) for name in same)
    return f"patched, proven {ran.date}" + (f", {unseen} checks not shown" if unseen else "")


def _grave(known: Known, model: Variant, target: str, backend: Backend) -> list[Finding]:
    """The findings that make a model wrong, crash or refused on a target, whoever serves it."""
    user = User(models=(Model(variant=model),), target=target, command=backend.command)
    findings = backend.concerned(known.findings)
    found = [each.finding for each in concerning(findings, user) if not each.when]
    return [each for each in found if _is_grave(each)]


def asked(document: str, engine: str) -> bool:
    """Whether a document has the marks of a table of an engine."""
    return all(mark in document for mark in _marks(engine))


def written(document: str, known: Known) -> str:
    """The document with its table of an engine written anew, between its marks."""
    opening, closing = _marks(known.engine)
    rows = tuple(table(known))
    lines = [(*places, state.said) for *places, state in rows]
    body = markdown.table(("model", "target", "releases", "state"), lines)
    if named := tuple(reasons(known, [state for *_, state in rows])):
        head = ("named above", "makes a model", "what is wrong upstream")
        body += ["", *markdown.table(head, named)]
    told = "\n".join((opening, *body, closing))
    pattern = re.compile(f"{re.escape(opening)}.*?{re.escape(closing)}", re.S)
    return pattern.sub(lambda _: told, document)


def _name(known: Known, finding: Finding) -> str:
    return finding.id.removeprefix(f"{known.engine}-")


def _marks(engine: str) -> tuple[str, str]:
    return f"<!-- dspatch served {engine} -->", f"<!-- /dspatch served {engine} -->"


def _is_grave(finding: Finding) -> bool:
    refused = finding.severity == "missing" and bool(finding.applies.targets)
    return refused or finding.blocks or finding.severity in GRAVE


def _mended(known: Known, finding: Finding, target: str, version: str) -> bool:
    return known.verdicts.get((finding.fix or "", target, version)) in APPLIES
