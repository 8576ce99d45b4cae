"""The audit's word held against what running engines showed: small models on the proven pins, stock and patched.

Each truth was established by the conformance suite: README's table, tests/e2e/test_series_faults.py.
A release "has it" for a small model when the audit of that model's config.json names a wrong result,
a crash or a lack that a CPU can show; the truth is whether the engine failed on that model.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

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

pytestmark = pytest.mark.e2e

MODELS = (
    "deepseek-v2-lite", "deepseek-v2", "deepseek-v2.5", "deepseek-v3", "deepseek-v2-lite/plain-rope",
    "deepseek-v3/plain-rope", "deepseek-v2-lite/odd-heads", "deepseek-v3/saved",
)  # fmt: skip
ODD = frozenset(name for name in MODELS if "/" in name)
# On which small models the engine failed, stock; with the series it failed on none.
FAILED = {
    "v0.26.0": frozenset(MODELS),  # it refuses latent attention
    "v0.27.1": frozenset(MODELS),
    "v0.32.0": ODD,
}
# What transformers does not save in a DeepseekV3Config.
UNSAVED = ("topk_method", "scoring_func")


@contextmanager
def opened(rev: str, patched: bool) -> Iterator[Source]:
    if not patched:
        # What ran is the base wheel, which repairs some faults of its release's source.
        base = pins.base_for(pins.load("vllm", rev), "cpu")
        file = index.find(base.project, base.filename)
        with pipconfig.client(pipconfig.load()) as client:
            wheel = remote.open_wheel(base.project, file, client, Traffic())
            yield Source(
                engine="vllm", version=rev[1:], kind="release", origin=base.filename,
                files=Files(source=wheel), outside=lambda path: not path.startswith("vllm/"),
            )  # fmt: skip
        return
    request = Request(engine="vllm", rev=rev, target="cpu")
    tree = apply.compute(request, Console(as_json=True))[1]
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


def claimed(found: Source, name: str, folder: Path) -> list[str]:
    """What the audit says is wrong with a small model there."""
    known = series.layered("vllm")
    read = checkpoint.load(str(config(name, folder)))
    model = Model(variant=read.variant, config=read.config)
    user = User(models=(model,), target="cpu", command=("vllm", "serve", "m", "--dtype", "float32"))
    every = filter(shown_by_a_cpu, findings.load_all("vllm", known.traits))
    asked = [each.finding for each in concerning(every, user) if not each.when]
    judged = judge.judge(asked, found, known.traits)
    return [each.finding.id for each in judged if each.answer.state == "yes"]


@pytest.mark.parametrize("rev", FAILED)
@pytest.mark.parametrize("patched", [False, True], ids=["stock", "patched"])
def test_the_audit_says_what_running_showed(rev: str, patched: bool, tmp_path: Path) -> None:
    with opened(rev, patched) as found:
        said = {name: claimed(found, name, tmp_path) for name in MODELS}
    failed = frozenset() if patched else FAILED[rev]
    false = {name: ids for name, ids in said.items() if ids and name not in failed}
    missed = [name for name in failed if not said[name]]
    right = sum(bool(ids) == (name in failed) for name, ids in said.items())
    print(
        f"\n{rev} {'patched' if patched else 'stock'}: {right} of {len(MODELS)} as running showed"
    )
    assert not false
    assert not missed
    assert set(variants.table()) >= {name.partition("/")[0] for name in MODELS}
