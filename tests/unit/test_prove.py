"""The conformance stage: what it needs before it starts, and what its verdict is."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from dspatch import receipt
from dspatch.conformance import CheckResult, Report, names, render
from dspatch.conformance.published import Published
from dspatch.conformance.report import Curves
from dspatch.console import Console
from dspatch.errors import (
    ConformanceError,
    EngineEnvironmentError,
    NoGpuError,
    NoJobError,
    UncomputableError,
)
from dspatch.job import Job, JobId, open_job
from dspatch.stages import prove, prove_any, prove_names, proving

CURVES = Curves(variant="v", depths=(("embed", 0.0), ("logits", 2e-9)), logprob_errors=(3, 1))

WHEEL = "vllm-0.27.1+dspatch.1-cp38-abi3-linux_x86_64.whl"


def job(target: str = "cpu") -> Job:
    return open_job(JobId(engine="vllm", rev="1.0", target=target))


def result(status: str) -> CheckResult:
    return CheckResult(check="golden.fp32", variant="v", dtype="float32", status=status)  # type: ignore[arg-type]


def proven(*states: str) -> proving.Proven:
    report = Report(results=tuple(result(state) for state in states), facts={})
    return proving.Proven(name="vllm", report=report, files=(Path("a"), Path("b"), Path("c")))


def test_a_failed_check_and_an_empty_report_are_errors() -> None:
    proving.check(proven("pass", "not-shown"))
    for states in (["pass", "fail"], ["not-shown"], []):
        with pytest.raises(ConformanceError):
            proving.check(proven(*states))


def judged(model: str, check: str, status: str, note: str = "") -> CheckResult:
    return CheckResult(check=check, variant=model, dtype="float32", status=status, note=note)  # type: ignore[arg-type]


def test_a_release_that_computes_none_of_the_models_says_why_and_what_to_try() -> None:
    refusal = (
        "refused: NotImplementedError: TurboMind cannot compute v3: no router. Ask for another"
    )
    refused = [
        judged("v3", "conversion.asked", "pass"),
        judged("v3", "conversion.done", "not-shown", refusal),
    ]
    done = proving.Proven(
        name="lmdeploy", report=Report(results=tuple(refused), facts={}), files=()
    )
    with pytest.raises(UncomputableError) as error:
        proving.check(done)
    assert (error.value.exit_code, error.value.follows_result) == (14, True)
    assert error.value.why == "v3: TurboMind cannot compute v3: no router"
    assert "--variant deepseek-v2-lite" in error.value.next
    others = (*refused, judged("v2", "conversion.done", "pass"))
    proving.check(replace(done, report=Report(results=others, facts={})))


def test_a_missing_system_library_says_how_to_get_it() -> None:
    proving.need_libraries({"libc.so.6": "never"})
    with pytest.raises(EngineEnvironmentError) as error:
        proving.need_libraries({"libnothing-of-the-kind.so.9": "apt-get install nothing"})
    assert error.value.next == "apt-get install nothing"


def test_nothing_is_proven_before_it_is_built() -> None:
    with pytest.raises(NoJobError, match="build-wheel"):
        prove.run(job(), Console(as_json=True), proving.Wanted())


def test_what_a_job_built_has_the_job_s_name_and_folder_and_its_wheel_s_version() -> None:
    mine = replace(job(), id=replace(job().id, rev="0f" * 20))
    receipt.write(mine, "build-wheel", {"wheel": {"path": WHEEL, "sha256": "0"}})
    subject = prove_any.of_job(mine)
    assert (subject.name, subject.folder) == (str(mine.id), mine.folder)
    assert (subject.version, subject.wheel) == ("0.27.1+dspatch.1", mine.dist / WHEEL)


def test_names_of_a_commit_s_wheel_are_held_to_what_its_release_loads(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """A commit's digits say nothing of the release that it is built on; 0.27.1 loads no FP8 blocks on CPU."""
    mine = replace(job(), id=replace(job().id, rev="0f" * 20))
    receipt.write(mine, "apply", {"variants": ["deepseek-v3"]})
    receipt.write(mine, "build-wheel", {"wheel": {"path": WHEEL, "sha256": "0"}})
    asked: list[str] = []

    def run(models: Sequence[Published], **given: Any) -> Report:
        asked.extend(case.name for case in models)
        return Report(results=(result("pass"),), facts={"engine": given["engine"]})

    monkeypatch.setattr(names, "run", run)
    monkeypatch.setattr(proving, "environment", lambda *given: Path("python"))
    monkeypatch.setattr(proving, "need_libraries", lambda libraries: None)
    done = prove_names.of_job(mine, Console(as_json=True), ())
    assert asked == ["deepseek-v3/bf16"]
    assert done.name == f"{mine.id}, names of published checkpoints"
    assert {file.parent for file in done.files} == {mine.folder / "report-names"}


def test_a_cuda_wheel_needs_a_gpu(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    receipt.write(job("cuda"), "build-wheel", {"wheel": {"path": WHEEL, "sha256": "0"}})
    with pytest.raises(NoGpuError):
        prove.run(job("cuda"), Console(as_json=True), proving.Wanted())


LMDEPLOY = "lmdeploy-0.18.0+dspatch.1-cp312-cp312-manylinux_2_28_x86_64.whl"


def test_a_backend_of_a_wheel_is_run_and_not_its_conversion(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    mine = open_job(JobId(engine="lmdeploy", rev="0.18.0", target="cuda"))
    receipt.write(mine, "apply", {"variants": ["deepseek-v2-lite"]})
    receipt.write(mine, "build-wheel", {"wheel": {"path": LMDEPLOY, "sha256": "0"}})
    asked = proving.Wanted(backend="pytorch", dtype="bfloat16")
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(NoGpuError, match="needs an NVIDIA GPU") as error:
        prove.run(mine, Console(as_json=True), asked)
    assert error.value.next.endswith("--target cuda --backend pytorch")
    given: dict[str, Any] = {}

    def measure(name: str, **more: Any) -> proving.Proven:
        given.update(more)
        return proven("pass")

    monkeypatch.setattr(proving, "measure", measure)
    monkeypatch.setattr(proving, "environment", lambda *given: Path("python"))
    monkeypatch.setattr(prove, "need_machine", lambda job, backend: None)
    prove.run(mine, Console(as_json=True), asked)
    assert (given["models"], given["version"]) == (
        ["deepseek-v2-lite/sixteen-heads/bfloat16", "deepseek-v2-lite/sixteen-heads"],
        "0.18.0+dspatch.1",
    )
    assert given["wanted"].backend == "pytorch"


def test_a_passing_report_is_kept_until_something_changes(monkeypatch: pytest.MonkeyPatch) -> None:
    mine = job()
    receipt.write(mine, "apply", {"variants": ["deepseek-v3"]})
    receipt.write(mine, "build-wheel", {"wheel": {"path": WHEEL, "sha256": "1"}})
    measured: list[str] = []

    def measure(
        one: Job, _: Console, wanted: proving.Wanted, wheel: Path, models: list[str], inputs: str
    ) -> proving.Proven:
        measured.append(inputs)
        report = Report(results=(result("pass"),), facts={}, curves=(CURVES,))
        one.report.mkdir(parents=True, exist_ok=True)
        for name in render.FILES:
            (one.report / name).write_text("")
        prove._write_receipt(one, report, wanted, inputs)
        return proving.Proven(name=str(one.id), report=report, files=())

    monkeypatch.setattr(prove, "_measure", measure)
    console = Console(as_json=True)
    for _ in range(2):
        report = prove.run(mine, console, proving.Wanted()).report
        assert report.ok
        assert report.curves == (CURVES,)
    assert len(measured) == 1
    prove.run(mine, console, proving.Wanted(reference_ops=True))
    prove.run(mine, console, proving.Wanted(reference_ops=True, fresh=True))
    assert len(measured) == 3
    receipt.write(mine, "build-wheel", {"wheel": {"path": WHEEL, "sha256": "2"}})
    prove.run(mine, console, proving.Wanted(reference_ops=True))
    assert len(measured) == 4
    assert len(set(measured)) == 3
    own = proving.Wanted(models=("deepseek-v3",), checkpoints=(Path("own"),))
    prove.run(mine, console, own)
    prove.run(mine, console, proving.Wanted(models=("deepseek-v3",)))
    assert len(measured) == 6, "a report that has a checkpoint of one's own stands for no other"
