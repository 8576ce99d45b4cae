"""The C++ of the patch for noaux_tc in groups, compiled for the CPU, against PyTorch and transformers."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path

import pytest

from dspatch import diffs, paths, process
from dspatch.conformance import oracle

pytestmark = pytest.mark.e2e

HERE = Path(__file__).parent / "gate"
FORMS = sorted((paths.data("patches") / "lmdeploy" / "turbomind-noaux-groups").glob("*.diff"))
BEGIN, END = "if (topk_group < n_group) {", "\n    }\n"
# What each planted fault is, and the case that must show it.
FAULTS: Mapping[str, tuple[str, str, str]] = {
    "only-the-best": ("return best + second;", "return best;", "v3"),
    "masked-with-zero": ("scores_for_choice[e] = -INFINITY;", "scores_for_choice[e] = 0.f;", "negative"),
    "worst-groups": ("return better < topk_group;", "return better >= n_group - topk_group;", "v3"),
    "one-group-too-many": ("return better < topk_group;", "return better <= topk_group;", "v3"),
    "last-of-equal-groups": ("&& g < group", "&& g > group", "ties"),
    "too-many-of-equal-groups": (" || (group_scores[g] == group_scores[group] && g < group)", "", "ties"),
    "second-of-equal-experts-lost": ("else if (v > second) {", "else if (v > second && v < best) {", "ties"),
    "no-number-counts": ("isfinite(choice[i]) ? choice[i] : -INFINITY", "choice[i]", "no-number"),
    "groups-interleaved": ("e / group_size", "e % n_group", "v3"),
}  # fmt: skip


def parts(form: Path) -> tuple[str, str]:
    """The header of a form, and its lines in the kernel that mask groups."""
    after = {
        file.path: "".join(line for hunk in file.hunks for line in hunk.after)
        for file in diffs.read(form.read_text())
    }
    folder = "src/turbomind/kernels/gemm"
    kernel = after[f"{folder}/moe_utils_v2.cu"]
    begin = kernel.index(BEGIN)
    end = kernel.index(END, begin) + len(END)
    return after[f"{folder}/moe_gate_groups.h"], kernel[begin:end]


def compiled(source: str, folder: Path, header: str = "", masking: str = "") -> Path:
    folder.mkdir()
    (folder / "patch_header.h").write_text(header)
    (folder / "patch_masking.inl").write_text(masking)
    made = folder / f"{source}.so"
    words = ["g++", "-std=c++17", "-Wall", "-Werror", "-pthread", "-fPIC", "-shared"]
    process.run([*words, f"-I{folder}", HERE / f"{source}.cpp", "-o", made])
    return made


def test_every_form_of_the_patch_has_the_same_code() -> None:
    assert [form.stem for form in FORMS] == ["v0.12.2", "v0.13.0", "v0.14.0", "v0.16.0"]
    assert len({parts(form) for form in FORMS}) == 1


def test_the_gate_chooses_as_the_model_means_and_no_planted_fault_passes(tmp_path: Path) -> None:
    header, masking = parts(FORMS[0])
    libraries = {"right": compiled("gate", tmp_path / "right", header, masking)}
    for name, (old, new, _) in FAULTS.items():
        assert (header + masking).count(old) == 1, name
        spoiled = header.replace(old, new), masking.replace(old, new)
        libraries[name] = compiled("gate", tmp_path / name, *spoiled)
    harness = compiled("harness", tmp_path / "harness")
    python = oracle.ensure().environment.python
    done = process.run([python, HERE / "judge.py", harness, *libraries.values()])
    said = json.loads(done.stdout.splitlines()[-1])
    found = {name: said["found"][str(path)] for name, path in libraries.items()}
    assert set(found.pop("right").values()) == {0}
    assert said["transformers"] == 0
    missed = [name for name, (_, _, case) in FAULTS.items() if not found[name][case]]
    assert missed == []
