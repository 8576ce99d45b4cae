"""What findings say was seen when releases ran, seen again: stock and patched, and of the releases only read.

The functions that a finding blames are run with right values, by `proofs/vllm_installed.py` in the
environments of the proven pins and by `proofs/release_read.py` for all other releases.
"""

from __future__ import annotations

import json
import os
import shutil
from collections import defaultdict
from collections.abc import Collection, Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from dspatch import onto, pipconfig, process, render, series, traits, treefiles, variants
from dspatch.audit import finding as findings
from dspatch.audit.confirmed import Confirmed
from dspatch.audit.finding import Finding
from dspatch.carry.remote import releases, remote
from dspatch.carry.remote.ranges import Traffic
from dspatch.conformance import oracle
from dspatch.console import Console
from dspatch.engines import Options, environment, vllm
from dspatch.engines.environment import for_wheel
from dspatch.stages import apply
from dspatch.stages.request import Request
from tests import audit_kit
from tests.e2e.test_series_faults import wheels

pytestmark = pytest.mark.e2e

HERE = "tests/e2e/test_confirmed.py"
PROOFS = Path(__file__).with_name("proofs")
SLOTS = "vllm/utils/cpu_triton_utils.py"
Row = tuple[Finding, Confirmed]


def rows() -> dict[tuple[str, str], list[Row]]:
    """Each engine and release, with what is to be seen there."""
    found: dict[tuple[str, str], list[Row]] = defaultdict(list)
    for engine in findings.engines():
        for finding in findings.load_all(engine, series.layered(engine).traits):
            for one in finding.confirmed:
                for rev in one.revs if one.by == HERE else ():
                    found[engine, rev].append((finding, one))
    return found


ROWS = rows()
# Pins whose environments other tests make anyway.
COMMON = ("v0.27.1", "v0.32.0")
INSTALLED = [
    (engine, rev) for engine, rev in ROWS if rev in audit_kit.PROVEN["vllm"] and engine == "vllm"
]
READ = [place for place in ROWS if place not in INSTALLED]


@pytest.mark.parametrize(("engine", "rev"), INSTALLED, ids=[rev for _, rev in INSTALLED])
def test_a_proven_pin_shows_what_its_findings_say(engine: str, rev: str, tmp_path: Path) -> None:
    at_hand_or_skip(rev)
    ids = [finding.id for finding, _ in ROWS[engine, rev]]
    with ThreadPoolExecutor() as pool:
        sources = slot_mappings(rev, tmp_path)
        stock, patched = pool.map(seen_installed, wheels(rev), sources, [ids, ids])
    for finding, one in ROWS[engine, rev]:
        assert one.stock in stock[finding.id], finding.id
        assert (one.patched or one.stock) in patched[finding.id], finding.id


def at_hand_or_skip(rev: str) -> None:
    """Skip a pin whose environment nobody has made: its torch is gigabytes that no other test needs."""
    stock = wheels(rev)[0]
    made = environment.locate("vllm-needs", environment.needs(stock)).complete
    if not (made or rev in COMMON or os.environ.get("DSPATCH_EVERY_PIN")):
        pytest.skip(f"the environment of {rev} is not in the cache; DSPATCH_EVERY_PIN=1 makes it")


def seen_installed(wheel: Path, slots: Path, ids: Iterable[str]) -> dict[str, str]:
    python = for_wheel("vllm", wheel).python
    command = [python, PROOFS / "vllm_installed.py", slots, *ids]
    return json.loads(process.run(command, env=vllm.environment(Options())).stdout)


def slot_mappings(rev: str, folder: Path) -> Iterator[Path]:
    """The CPU's replacement functions in the pinned source, which the base wheel has repaired, and patched."""
    tree = apply.compute(Request(engine="vllm", rev=rev), Console(as_json=True))[1]
    repo = tree.checkout.repo
    for name, commit in (("stock", tree.checkout.commit), ("patched", tree.commit)):
        blob = repo.resolve(f"{commit}:{SLOTS}")
        assert blob is not None
        path = folder / f"slots_{name}.py"
        path.write_bytes(repo.blob(blob))
        yield path


def test_releases_that_are_only_read_show_what_their_findings_say(tmp_path: Path) -> None:
    asked = []
    for engine, rev in READ:
        folder = tmp_path / engine / rev
        fetch(engine, rev, folder)
        asked.append(f"{folder}:{','.join(finding.id for finding, _ in ROWS[engine, rev])}")
        mended = [finding for finding, one in ROWS[engine, rev] if mended_here(one)]
        if mended:
            wanted = {finding.fix for finding in mended}
            assert set(patch_folder(engine, folder, wanted)[0]) == wanted, folder
            names = ",".join(finding.id for finding in mended)
            asked.append(f"{patched_folder(folder)}:{names}")
    python = oracle.ensure().python
    done = process.run([python, PROOFS / "release_read.py", *asked], env={"OMP_NUM_THREADS": "1"})
    seen = json.loads(done.stdout)
    for engine, rev in READ:
        folder = tmp_path / engine / rev
        for finding, one in ROWS[engine, rev]:
            told = seen[str(folder)][finding.id]
            assert one.stock in told, (finding.id, rev, told)
            if mended_here(one):
                told = seen[str(patched_folder(folder))][finding.id]
                assert (one.patched or "") in told, (finding.id, rev, told)


def mended_here(one: Confirmed) -> bool:
    """Whether the patched outcome is for this test to see: one of the functions, and in no other proof."""
    return one.patched is not None and "docs/proofs/" not in one.patched


def patched_folder(folder: Path) -> Path:
    """Where the patched twin of a release's files lies."""
    return folder.with_name(f"{folder.name}-patched")


class Folder:
    """Files of a release in a folder, as the series reads them."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder

    def read(self, path: str) -> bytes | None:
        place = self._folder / path
        return place.read_bytes() if place.is_file() else None

    def mode(self, path: str) -> str:
        return treefiles.PLAIN

    def paths(self) -> list[str]:
        return [
            str(each.relative_to(self._folder))
            for each in self._folder.rglob("*")
            if each.is_file()
        ]

    def known_blob(self, path: str) -> None:
        return None


def patch_folder(engine: str, folder: Path, names: Collection[str]) -> tuple[list[str], list[Path]]:
    """Lay a patched twin beside a release's files; which of the patches apply, and the files that they change."""
    beside = shutil.copytree(folder, patched_folder(folder))
    shipped = series.layered(engine)
    files = treefiles.Files(source=Folder(folder))
    facts = traits.Traits(shipped.traits, files.read)
    context = render.Context(traits=facts, variants=list(variants.table().values()))
    applied = []
    for patch in [patch for patch in shipped.patches if patch.name in names]:
        if all(facts[need] for need in patch.needs):
            files = files.with_changes(onto.rendered(patch, files, context))
            applied.append(patch.name)
    for path, change in files.changes.items():
        assert change.data is not None
        (beside / path).parent.mkdir(parents=True, exist_ok=True)
        (beside / path).write_bytes(change.data)
    return applied, [beside / path for path in files.changes]


# Where the functions stand, and what they rest on of their own release.
FILES = (
    "lmdeploy/model.py", "lmdeploy/pytorch/backends/default/moe.py",
    "lmdeploy/pytorch/backends/default/moe_router.py", "lmdeploy/pytorch/backends/cuda/moe_router.py",
    "lmdeploy/pytorch/configurations/deepseek_v32.py", "lmdeploy/pytorch/engine/inputs_maker.py",
    "lmdeploy/pytorch/kernels/cuda/fused_noaux_tc.py", "lmdeploy/pytorch/kernels/cuda/moe/route_noaux_tc.py",
    "lmdeploy/pytorch/models/deepseek_v2.py", "lmdeploy/turbomind/deploy/config.py",
    "lmdeploy/turbomind/deploy/module.py", "lmdeploy/turbomind/deploy/parameter.py",
    "lmdeploy/turbomind/deploy/source_model/base.py",
    "lmdeploy/turbomind/deploy/source_model/deepseek2.py",
    "lmdeploy/turbomind/deploy/source_model/llama.py", "lmdeploy/turbomind/models/utils.py",
    "vllm/model_executor/layers/fused_moe/fused_moe.py",
)  # fmt: skip


def fetch(engine: str, rev: str, folder: Path, files: Iterable[str] = FILES) -> None:
    """The files of a release that hold the functions, by range reads."""
    release = releases.published(engine).release(rev)
    assert release is not None
    assert release.wheel is not None
    with pipconfig.client(pipconfig.load()) as client:
        wheel = remote.open_wheel(engine, release.wheel, client, Traffic())
        for path in [path for path in files if path.startswith(f"{engine}/")]:
            if path in wheel.members:
                place = folder / path
                place.parent.mkdir(parents=True, exist_ok=True)
                place.write_bytes(wheel.read(path) or b"")


def test_every_proof_is_asked_for() -> None:
    for worker in ("vllm_installed.py", "release_read.py"):
        text = (PROOFS / worker).read_text()
        table = text.partition("PROOFS = {")[2]
        known = {line.split('"')[1] for line in table.splitlines() if line.startswith('    "')}
        asked = {finding.id for each in ROWS.values() for finding, _ in each}
        assert known <= asked
