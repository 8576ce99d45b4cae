"""The audit's word held against what running engines showed: small models on the proven pins.

`docs/proofs/audit-truth.json` holds what the conformance suite said of each wheel, as
`benchmarks/audit_truth.py` ran it: stock, patched, and without one patch of the series, so that one fault
shows alone. Of pins that are not in it yet the truth is what README and `tests/e2e/test_series_faults.py`
state, which the suite established and CI runs. The audit of the small model's config.json against the same
source is asked for each finding that a CPU can show without an option: does this model have it there?
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Container, Iterator, Mapping
from contextlib import contextmanager
from functools import cache
from pathlib import Path

import pytest

from benchmarks.audit_truth import MODELS, less
from dspatch import index, pins, pipconfig, series, variants
from dspatch.audit import checkpoint, judge, source
from dspatch.audit import finding as findings
from dspatch.audit.finding import Finding
from dspatch.audit.select import Model, User, concerning
from dspatch.audit.source import Source
from dspatch.carry.remote import remote
from dspatch.carry.remote.ranges import Traffic
from dspatch.conformance import small
from dspatch.console import Console
from dspatch.stages import apply
from dspatch.stages.request import Request
from dspatch.treefiles import Files
from tests.e2e.test_series_faults import FAULTS, WITHOUT_FAULT

pytestmark = pytest.mark.e2e

ROOT = Path(__file__).parents[2]
PROOF = ROOT / "docs" / "proofs" / "audit-truth.json"
RESULTS = ROOT / "benchmarks" / "RESULTS.md"
TRAITS = series.layered("vllm").traits
REFUSED = "MLA is not supported on CPU"
FULL_HEADS = "stock, VLLM_MLA_DISABLE=1"
Failures = Mapping[str, Mapping[str, str]]  # by model, how each check failed that did


def stated(rev: str) -> dict[str, Failures]:
    """What README and the tests of the series say of a pin that refuses latent attention."""
    failed = {
        model: {"engine.start": refusal} if refusal else {"golden.fp32": ""}
        for model, refusal in FAULTS.get(rev, {}).items()
    }
    told: dict[str, Failures] = {
        "stock": {model: {"engine.start": REFUSED} for model in MODELS},
        "patched": {model: {} for model in MODELS},
    }
    return told | ({FULL_HEADS: {WITHOUT_FAULT: {}, **failed}} if failed else {})


def truth() -> dict[str, dict[str, Failures]]:
    """What was seen, by pin and situation."""
    seen = {
        rev: {name: each["models"] for name, each in situations.items() if "models" in each}
        for rev, situations in json.loads(PROOF.read_text()).items()
    }
    for rev in ("v0.26.0", "v0.27.1"):
        seen[rev] = stated(rev) | seen.get(rev, {})
    return seen


TRUTH = truth()
SITUATIONS = [(rev, name) for rev, each in TRUTH.items() for name in each if "=" not in name]
SITUATIONS += [(rev, FULL_HEADS) for rev in TRUTH if FULL_HEADS in TRUTH[rev]]
# How each finding shows when it is the first that a model meets: a check, and words of its failure.
SHOWS = {
    "vllm-cpu-mla-refused": ("engine.start", REFUSED),
    "vllm-cpu-mla-one-shape": ("engine.start", "is not supported by MLA"),
    "vllm-cpu-kv-b-proj-emptied": ("engine.start", "shape"),
    "vllm-cpu-slot-mapping": ("engine.start", "ambiguous"),
    "vllm-cpu-rope-strides": ("golden.fp32", ""),
    "vllm-v3-topk-method": ("engine.start", "e_score_correction_bias"),
}
# What transformers does not save in a DeepseekV3Config.
UNSAVED = ("topk_method", "scoring_func")


@contextmanager
def stock(rev: str) -> Iterator[Source]:
    """What ran as stock is the base wheel, which repairs some faults of its release's source."""
    base = pins.base_for(pins.load("vllm", rev), "cpu")
    file = index.find(base.project, base.filename)
    with pipconfig.client(pipconfig.load()) as client:
        wheel = remote.open_wheel(base.project, file, client, Traffic())
        yield Source(
            engine="vllm", version=rev[1:], kind="release", origin=base.filename,
            files=Files(source=wheel), outside=lambda path: not path.startswith("vllm/"),
        )  # fmt: skip


@contextmanager
def patched(rev: str, left_out: str, layer: Path, patch: pytest.MonkeyPatch) -> Iterator[Source]:
    """The tree of a pin with the series, less one patch."""
    if left_out:
        (layer / "vllm").mkdir(parents=True)
        (layer / "vllm" / "series").write_text(less(left_out))
        (layer / "vllm" / "traits.toml").write_text("")
        patch.setenv("DSPATCH_PATCHES", str(layer))
    tree = apply.compute(Request(engine="vllm", rev=rev), Console(as_json=True))[1]
    repo = tree.checkout.repo
    top = repo.resolve(f"{tree.commit}^{{tree}}")
    assert top is not None
    with repo.reading():
        yield source.of_tree("vllm", repo, top, version=rev[1:], kind="git", origin=rev, whole=True)


def config(name: str, folder: Path) -> Path:
    case = small.case(name)
    written = dict(case.config)
    if case.written_by == "transformers":
        written = {key: value for key, value in written.items() if key not in UNSAVED}
    (folder / "config.json").write_text(json.dumps(written))
    return folder


def shown_by_a_cpu(finding: Finding) -> bool:
    named = finding.fix is not None or finding.applies.targets == ("cpu",)
    return named and finding.severity in ("wrong", "crash", "missing")


@cache
def known() -> list[Finding]:
    every = findings.load_all("vllm", TRAITS)
    return [each for each in every if shown_by_a_cpu(each)]


def concerned(name: str, folder: Path) -> set[str]:
    """The findings that the audit says concern a small model."""
    read = checkpoint.load(str(config(name, folder)))
    model = Model(variant=read.variant, config=read.config)
    user = User(models=(model,), target="cpu", command=("vllm", "serve", "m", "--dtype", "float32"))
    return {each.finding.id for each in concerning(known(), user) if not each.when}


def cells(
    seen: Failures, found: Source, folder: Path, bypassed: Container[str]
) -> Iterator[tuple[str, bool, bool]]:
    """Finding and model, whether the audit says it, whether running showed it.

    A model that does not start shows the first fault that it meets and hides the others, which count
    neither way.
    """
    judged = judge.judge(known(), found, TRAITS)
    there = {each.finding.id for each in judged if each.answer.state == "yes"}
    for model, failed in seen.items():
        said = there & concerned(model, folder)
        for each in known():
            shown = shows(each.id, failed)
            if (shown or "engine.start" not in failed) and each.id not in bypassed:
                yield f"{each.id} {model}", each.id in said, shown


def shows(finding: str, failed: Mapping[str, str]) -> bool:
    check, words = SHOWS.get(finding, ("", ""))
    return check in failed and words in failed[check]


COUNTED: dict[tuple[str, str], Counter[tuple[bool, bool]]] = {}


@contextmanager
def ran(rev: str, name: str, layer: Path, patch: pytest.MonkeyPatch) -> Iterator[Source]:
    """The source of the wheel that ran."""
    if name.startswith("stock"):
        with stock(rev) as found:
            yield found
        return
    left_out = "" if name == "patched" else name.removeprefix("without ")
    with patched(rev, left_out, layer, patch) as found:
        yield found


@pytest.mark.parametrize(("rev", "name"), SITUATIONS, ids=str)
def test_each_finding_of_each_model_is_what_running_showed(
    rev: str, name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    # With full heads nothing of latent attention is met, nor asked about.
    bypassed = {each.id for each in known() if "mla" in each.id or "kv-b" in each.id}
    with ran(rev, name, tmp_path / "layer", monkeypatch) as found:
        asked = cells(TRUTH[rev][name], found, tmp_path, bypassed if name == FULL_HEADS else ())
        seen = list(asked)
    COUNTED[rev, name] = Counter((said, shown) for _, said, shown in seen)
    assert not [cell for cell, said, shown in seen if said and not shown], "not seen running"
    assert not [cell for cell, said, shown in seen if shown and not said], "missed"


def test_every_failure_that_was_seen_is_some_findings() -> None:
    for rev, name in SITUATIONS:
        for model, failed in TRUTH[rev][name].items():
            ours = {check: words for check, words in failed.items() if check != "cache.latent"}
            assert not ours or any(shows(finding, ours) for finding in SHOWS), (rev, name, model)


def test_the_numbers_are_those_that_are_stated() -> None:
    if COUNTED.keys() != set(SITUATIONS):
        pytest.skip("not everything was counted in this process")
    total = sum(COUNTED.values(), Counter[tuple[bool, bool]]())
    right, false, missed = (total[key] for key in ((True, True), (True, False), (False, True)))
    told = (
        f"{total.total()} cells, {right + missed} of them true: "
        f"precision {right / (right + false):.2f}, recall {right / (right + missed):.2f}"
    )
    print(f"\n{told}")
    assert told in " ".join(RESULTS.read_text().split())


def test_every_small_model_is_of_a_known_variant() -> None:
    assert {name.partition("/")[0] for name in MODELS} <= set(variants.table())
