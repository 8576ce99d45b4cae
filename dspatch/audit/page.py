"""The history as one HTML page of its own: no script of others, no font, no picture, light and dark."""

from __future__ import annotations

from collections.abc import Iterator
from html import escape

from dspatch import pins, variants
from dspatch.audit import choice
from dspatch.audit.answer import State
from dspatch.audit.choice import Standing
from dspatch.audit.finding import SEVERITIES, Finding
from dspatch.audit.history import History, Row
from dspatch.audit.select import Model, User
from dspatch.carry.matrix import spans

TARGETS = ("cuda", "cpu")
_MARKS: dict[State, str] = {"yes": "●", "unknown": "?"}
_STYLE = """\
:root { color-scheme: light dark; --ink: #1c1f24; --soft: #5c6470; --line: #d9dde3; --page: #fff;
  --band: #f5f6f8; --wrong: #c4262e; --crash: #a3248f; --slow: #b26a00; --missing: #0f6cbd;
  --misleading: #5b5fc7; --unknown: #77808c; --good: #1a7f47; }
@media (prefers-color-scheme: dark) { :root { --ink: #e6e8eb; --soft: #9aa3af; --line: #333941;
  --page: #14171b; --band: #1c2026; --wrong: #ff6b70; --crash: #e583d5; --slow: #f0a63a;
  --missing: #62b0f4; --misleading: #a3a6ff; --unknown: #8d96a3; --good: #5bd08e; } }
* { box-sizing: border-box }
body { margin: 0 auto; padding: 2rem 1.5rem 4rem; max-width: 110rem; background: var(--page);
  color: var(--ink); font: 15px/1.5 system-ui, sans-serif; }
h1 { font-size: 1.5rem; margin: 0 0 .25rem } h2 { font-size: 1.15rem; margin: 2.5rem 0 .5rem }
p { max-width: 48rem } a { color: var(--missing) } code { font-size: .92em }
.soft { color: var(--soft) }
.wide { overflow: auto; max-height: 90vh; border: 1px solid var(--line); border-radius: 6px }
table { border-collapse: separate; border-spacing: 0; font-variant-numeric: tabular-nums }
th, td { padding: .15rem .4rem; text-align: left; font-weight: normal; border-bottom: 1px solid var(--line) }
thead th { position: sticky; top: 0; background: var(--page); z-index: 1; color: var(--soft) }
.grid td { text-align: center; padding: 0; min-width: 1.3rem; height: 1.7rem }
.grid thead th.v { height: 5.5rem; vertical-align: bottom; padding: .2rem .1rem }
.grid thead th.v span { writing-mode: vertical-rl; transform: rotate(180deg); font-size: .8rem }
.grid th.f { position: sticky; left: 0; background: var(--page); min-width: 24rem; max-width: 34rem;
  border-right: 1px solid var(--line) }
.grid thead th.f { z-index: 2 }
.grid tr:hover td, .grid tr:hover th.f { background: var(--band) }
.grid tr.group th { background: var(--band); color: var(--soft); padding-top: .5rem }
.grid th.f a { color: inherit; text-decoration: none } .grid th.f a:hover { text-decoration: underline }
.choice td, .choice th { padding: .15rem .6rem } .wide:has(.choice) { width: fit-content; max-width: 100% }
.best { color: var(--good); font-weight: 600 }
.wrong { color: var(--wrong) } .crash { color: var(--crash) } .slow { color: var(--slow) }
.missing { color: var(--missing) } .misleading { color: var(--misleading) } .unknown { color: var(--unknown) }
details { border-bottom: 1px solid var(--line); padding: .35rem 0; max-width: 60rem }
summary { cursor: pointer } details p { margin: .4rem 0 .4rem 1.1rem } dl { margin: .4rem 0 .6rem 1.1rem;
  display: grid; grid-template-columns: 7rem 1fr; gap: .15rem .8rem } dt { color: var(--soft) } dd { margin: 0 }
select { font: inherit; color: inherit; background: var(--page); border: 1px solid var(--line);
  border-radius: 4px; padding: .1rem .3rem }
"""
_SCRIPT = """\
const pick = document.querySelector("#model");
pick.addEventListener("change", () => {
  for (const each of document.querySelectorAll("[data-models]"))
    each.hidden = pick.value !== "" && !each.dataset.models.split(" ").includes(pick.value);
});
"""


def html(done: History) -> str:
    """The page: which release to pin for each model, releases by findings, each finding in full."""
    models = [name for name in variants.table() if any(name in r.concern.models for r in done.rows)]
    parts = [
        *_head(done),
        *_choice(done, models),
        *_grid(done, models),
        *_details(done),
        f"<script>{_SCRIPT}</script>",
        "</body></html>",
    ]
    return "\n".join(parts) + "\n"


def _head(done: History) -> Iterator[str]:
    title = f"What is known to be wrong with DeepSeek on each release of {escape(done.engine)}"
    yield '<!doctype html>\n<html lang="en"><head><meta charset="utf-8">'
    yield '<meta name="viewport" content="width=device-width, initial-scale=1">'
    yield f"<title>{title}</title>\n<style>\n{_STYLE}</style></head><body>"
    yield f"<h1>{title}</h1>"
    yield (
        f'<p class="soft">{len(done.rows)} findings on {len(done.releases)} releases, '
        f"{done.releases[0]} to {done.releases[-1]}. Each cell is a question that the release's own source "
        "answered; nothing was run for it. A finding that a release does not have says nothing about faults "
        "that nobody has described yet. Written by <code>dspatch audit --all-releases --html</code>.</p>"
    )


def _choice(done: History, models: list[str]) -> Iterator[str]:
    yield "<h2>Which release to pin</h2>"
    yield (
        "<p>Of the releases that serve the model, the one with the fewest findings, wrong results and crashes "
        "counted first; the newest of equals. Counted is what holds for everybody there: findings that need an "
        "option or a certain card are not, nor are patches, which many findings have.</p>"
    )
    yield '<div class="wide"><table class="choice"><thead><tr><th>model</th><th>on</th><th>release</th>'
    yield "".join(f'<th class="{each}">{each}</th>' for each in SEVERITIES)
    yield "<th>newest</th>"
    yield "".join(f'<th class="{each}">{each}</th>' for each in SEVERITIES)
    yield "</tr></thead><tbody>"
    targets = [each for each in TARGETS if each in pins.engine(done.engine).bases]
    for model in models:
        yield from (_chosen(done, model, target, targets[0]) for target in targets)
    yield "</tbody></table></div>"


def _chosen(done: History, model: str, target: str, first: str) -> str:
    user = User(models=(Model(variant=variants.variant(model)),), target=target)
    found = choice.standings(done, user)
    best = choice.best(found)
    name = f'<th scope="row">{escape(model)}</th>' if target == first else "<th></th>"
    return (
        f"<tr>{name}<td>{target}</td>{_standing(best, 'best')}{_standing(found[-1], 'soft')}</tr>"
    )


def _standing(found: Standing | None, kind: str) -> str:
    if found is None or not found.serves:
        told = "none serves it" if found is None else f"{found.version} does not serve it"
        return f'<td class="missing" colspan="{len(SEVERITIES) + 1}">{told}</td>'
    cells = "".join(f"<td>{number or ''}</td>" for number in found.counts)
    return f'<td class="{kind}">{found.version}</td>{cells}'


def _grid(done: History, models: list[str]) -> Iterator[str]:
    yield "<h2>Releases and findings</h2>"
    options = "".join(f"<option>{escape(model)}</option>" for model in models)
    yield (
        f'<p>● has it, ? cannot be told. Show <select id="model"><option value="">all models</option>'
        f"{options}</select></p>"
    )
    yield '<div class="wide"><table class="grid"><thead><tr><th class="f">finding</th>'
    yield "".join(
        f'<th class="v"><span>{version}</span></th>' for version in reversed(done.releases)
    )
    yield "</tr></thead><tbody>"
    for severity in SEVERITIES:
        rows = [row for row in done.rows if row.concern.finding.severity == severity]
        if rows:
            yield f'<tr class="group"><th class="f">{severity}</th>{"<td></td>" * len(done.releases)}</tr>'
            yield from (_row(row) for row in rows)
    yield "</tbody></table></div>"


def _row(row: Row) -> str:
    finding = row.concern.finding
    cells = "".join(
        _cell(finding, version, state) for version, state in reversed(list(row.states.items()))
    )
    models = escape(" ".join(row.concern.models))
    link = f'<a href="#{finding.id}">{escape(finding.title)}</a>'
    return f'<tr data-models="{models}"><th class="f" scope="row">{link}</th>{cells}</tr>'


def _cell(finding: Finding, version: str, state: State) -> str:
    if state == "no":
        return "<td></td>"
    kind = finding.severity if state == "yes" else state
    return f'<td class="{kind}" title="{version}: {state}">{_MARKS[state]}</td>'


def _details(done: History) -> Iterator[str]:
    yield "<h2>Findings</h2>"
    for row in done.rows:
        finding = row.concern.finding
        yield f'<details id="{finding.id}" data-models="{escape(" ".join(row.concern.models))}">'
        yield (
            f'<summary><span class="{finding.severity}">{finding.severity}</span> '
            f"{escape(finding.title)}</summary><p>{escape(finding.what)}</p><dl>"
        )
        for label, value in _facts(row, done):
            yield f"<dt>{label}</dt><dd>{value}</dd>"
        yield "</dl></details>"


def _facts(row: Row, done: History) -> Iterator[tuple[str, str]]:
    finding = row.concern.finding
    having = [version for version, state in row.states.items() if state == "yes"]
    yield "id", f"<code>{finding.id}</code>"
    yield "releases", spans.runs(having, done.releases) or "none of these"
    if row.concern.models:
        yield "models", escape(", ".join(row.concern.models))
    yield from _whom(finding)
    if finding.fix:
        yield "patch", f"<code>{escape(finding.fix)}</code>"
    if finding.workaround:
        yield "instead", escape(finding.workaround)
    for link in finding.references:
        yield "upstream", f'<a href="{escape(link)}">{escape(link.removeprefix("https://"))}</a>'
    yield "known since", f"{finding.date.isoformat()}, {finding.established}"


def _whom(finding: Finding) -> Iterator[tuple[str, str]]:
    applies = finding.applies
    where = [*applies.targets, *applies.cards]
    if where:
        yield "where", escape(", ".join(where))
    told = [*applies.facts, *applies.options]
    if told:
        yield "when", escape("; ".join(told))
