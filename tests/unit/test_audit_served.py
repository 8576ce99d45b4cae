"""The table of models, the proofs under it and the patched trees that they ran say the same."""

from __future__ import annotations

import fnmatch
import json
import re
import shutil
from pathlib import Path

import pytest
from packaging.version import Version

from dspatch.audit import backends, finding, proofs
from dspatch.errors import ClaimError
from dspatch.series import layered
from dspatch.stages import matrix, support

ROOT = Path(__file__).parents[2]
DOCS = ROOT / "docs"
HELD = proofs.load(DOCS / "proofs")
TREES = json.loads((ROOT / "tests" / "golden" / "trees.json").read_text())
TABLE = (DOCS / "support.md").read_text()
UNPINNED = {"v0.16.0 cpu"}  # run on a pin of one's own: no tree of these is kept


@pytest.fixture
def docs(tmp_path: Path) -> Path:
    shutil.copytree(DOCS / "proofs", tmp_path / "proofs")
    return tmp_path


def lines(document: str, model: str, state: str) -> list[str]:
    return [each for each in document.splitlines() if f"`{model}`" in each and state in each]


def covers(line: str, version: str) -> bool:
    """Whether a line of the table is of a release: alone, or between two."""
    first, _, last = line.split(" | ")[2].partition("–")
    return Version(first) <= Version(version) <= Version(last or first)


def test_the_table_is_what_the_proofs_make_of_it() -> None:
    assert support.with_served(TABLE, "vllm", DOCS) == TABLE


@pytest.mark.parametrize("proof", HELD, ids=lambda each: each.path.stem)
def test_a_proof_ran_the_patches_that_ship(proof: proofs.Proof) -> None:
    key = f"v{proof.version} {proof.target}"
    of_the_family = proof.path.stem == f"{proof.engine}-{proof.version}-{proof.target}"
    kept = None if key in UNPINNED else proof.tree
    assert not of_the_family or TREES.get(key) == kept


def test_each_proven_release_is_in_the_table() -> None:
    assert {each.version for each in HELD} >= {"0.13.0", "0.20.2"}
    for each in HELD:
        dated = lines(TABLE, "deepseek-v3", f"proven {each.date}") + lines(
            TABLE, "deepseek-v3", "run "
        )
        assert "deepseek-v3" not in each.open or any(covers(line, each.version) for line in dated)


@pytest.mark.parametrize("engine", ["vllm", "lmdeploy"])
def test_what_a_state_names_is_told_below_the_table(engine: str) -> None:
    opening, closing = (f"<!-- {slash}dspatch served {engine} -->" for slash in ("", "/"))
    block = TABLE.partition(opening)[2].partition(closing)[0]
    them = finding.load_all(engine, layered(engine).traits)
    known = {each.id.removeprefix(f"{engine}-") for each in them}
    named = set(re.findall(r"[\w-]+", " ".join(re.findall(r"(?:not yet|mended): (.*) \|", block))))
    told = re.findall(r"^\| `([\w-]+)` \| (?:wrong|crash|refused) \| [A-Z]", block, re.M)
    assert set(told) == named & known
    assert len(told) > 5


def test_a_range_that_cannot_be_read_is_told(docs: Path) -> None:
    page = docs / "support.md"
    page.write_text(re.sub(r"(\| `cpu-mla` \| cpu \| )\S+", r"\1once", TABLE, count=1))
    none = matrix.Measured(
        engine="vllm", releases=("0.15.0",), rows=(), outside={}, bytes=0, requests=0, seconds=0,
        fresh=0, kept=0,
    )  # fmt: skip
    with pytest.raises(ClaimError) as caught:
        support.check(none, page)
    assert "cannot be read: 'once' is no range of releases" in caught.value.why


def test_a_proof_that_is_taken_away_makes_the_table_false(docs: Path) -> None:
    (docs / "proofs" / "vllm-0.13.0-cpu.json").unlink()
    without = support.with_served(TABLE, "vllm", docs)
    assert without != TABLE
    proven = lines(without, "deepseek-v2", "proven")
    assert not [each for each in proven if "| cpu | 0.13.0 |" in each]


def test_a_model_with_a_failed_check_is_not_proven(docs: Path) -> None:
    path = docs / "proofs" / "vllm-0.13.0-cpu.json"
    held = json.loads(path.read_text())
    row = next(each for each in held["results"] if each["variant"] == "deepseek-v3")
    row["status"] = "fail"
    held["summary"] = f"{len(held['results']) - 1} passed, 1 failed, 0 not shown"
    path.write_text(json.dumps(held))
    told = support.with_served(TABLE, "vllm", docs)
    assert not [each for each in lines(told, "deepseek-v3", "proven") if "0.13.0" in each]
    assert [each for each in lines(told, "deepseek-v2", "proven") if "0.13.0" in each]


@pytest.mark.parametrize("fault", ["summary", "date", "text"])
def test_a_proof_that_cannot_be_right_is_refused(docs: Path, fault: str) -> None:
    path = docs / "proofs" / "vllm-0.13.0-cpu.json"
    held = json.loads(path.read_text())
    if fault == "summary":
        held["results"][0]["status"] = "fail"
    else:
        held.pop("date")
    path.write_text("{" if fault == "text" else json.dumps(held))
    with pytest.raises(ClaimError, match=r"vllm-0\.13\.0-cpu\.json"):
        support.with_served(TABLE, "vllm", docs)


def test_the_table_of_an_engine_with_two_engines_is_what_their_runs_make_of_it() -> None:
    assert support.with_served(TABLE, "lmdeploy", DOCS) == TABLE
    lite = lines(TABLE, "deepseek-v2-lite", "TurboMind")
    assert [each for each in lite if "| 0.18.0 | patched, run 2" in each]
    assert lines(TABLE, "deepseek-v3", "PyTorch engine")
    assert not [each for each in lite if "not run" in each], "all thirty were converted"


def test_what_a_release_refuses_is_told_with_its_reason(docs: Path) -> None:
    path = docs / "proofs" / "turbomind-conversion.json"
    held = json.loads(path.read_text())
    held["releases"]["0.13.0"]["deepseek-v2-lite"] = {"refused": "TurboMind cannot: it is too far"}
    path.write_text(json.dumps(held))
    told = support.with_served(TABLE, "lmdeploy", docs)
    (line,) = lines(told, "deepseek-v2-lite", "not yet: it is too far")
    assert "| cuda, TurboMind | 0.13.0 |" in line


def test_what_a_reason_says_is_no_name_of_a_finding_and_ends_no_cell(docs: Path) -> None:
    them = finding.load_all("lmdeploy", layered("lmdeploy").traits)
    names = [each.id.removeprefix("lmdeploy-") for each in them]
    unnamed = next(name for name in names if f"`{name}`" not in TABLE)
    path = docs / "proofs" / "turbomind-conversion.json"
    held = json.loads(path.read_text())
    held["releases"]["0.13.0"]["deepseek-v2-lite"] = {
        "refused": f"TurboMind cannot: {unnamed} | no"
    }
    path.write_text(json.dumps(held))
    told = support.with_served(TABLE, "lmdeploy", docs)
    assert len(lines(told, "deepseek-v2-lite", f"| not yet: {unnamed} \\| no |")) == 1
    assert f"`{unnamed}`" not in told


def test_a_conversion_that_was_not_run_is_not_proven(docs: Path) -> None:
    path = docs / "proofs" / "turbomind-conversion.json"
    held = json.loads(path.read_text())
    del held["releases"]["0.16.0"]
    path.write_text(json.dumps(held))
    told = support.with_served(TABLE, "lmdeploy", docs)
    assert [each for each in lines(told, "deepseek-v2", "not run") if "| 0.16.0 |" in each]


def test_a_run_whose_proof_is_gone_is_no_run(docs: Path) -> None:
    (docs / "proofs" / "lmdeploy-pytorch-0.18.0-h200.json").unlink()
    with pytest.raises(ClaimError, match=r"lmdeploy-pytorch-0\.18\.0-h200\.json"):
        support.with_served(TABLE, "lmdeploy", docs)


def test_every_pattern_of_the_engines_within_an_engine_has_a_finding() -> None:
    known = [each.id for each in finding.load_all("lmdeploy", layered("lmdeploy").traits)]
    for backend in backends.load("lmdeploy", DOCS / "proofs"):
        for pattern in backend.others:
            assert fnmatch.filter(known, pattern), pattern
    assert backends.load("vllm", DOCS / "proofs") == (backends.Backend(),)
