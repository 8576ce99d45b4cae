"""The engine's process: every trial is reported, whatever happens to the process."""

from __future__ import annotations

import json
import sys
from pathlib import Path

import pytest

from dspatch import engines
from dspatch.engines import Options, Trial, running, vllm
from dspatch.errors import EngineError, ProcessTimeoutError, UnknownEngineError

WORKER = """\
#!{python}
import json, os, pathlib, signal, sys
trials = json.loads(pathlib.Path(sys.argv[3]).read_text())["trials"]
with pathlib.Path({calls!r}).open("a") as calls:
    print(",".join(trial["name"] for trial in trials), file=calls)
for trial in trials:
    if trial["name"] == "dies-late":
        out = pathlib.Path(trial["out"])
        out.mkdir()
        (out / "partial.json").write_text(json.dumps({{"reached": ["weights", "alone"]}}))
    if trial["name"].startswith("dies"):
        os.kill(os.getpid(), signal.SIGKILL)
    if trial["name"] == "hangs":
        signal.pause()
    error = {{"error": "ValueError: no", "vllm": "0.1.0"}} if trial["name"] == "fails" else {{}}
    out = pathlib.Path(trial["out"])
    out.mkdir()
    (out / "result.json").write_text(json.dumps(error))
    if error:
        break
"""


NO = f"ValueError: no ({engines.unserved('vllm', vllm.SERVED, '0.1.0')})"


@pytest.fixture
def python(tmp_path: Path) -> Path:
    """An interpreter that runs a worker of our own, which fails and dies on demand."""
    path = tmp_path / "python"
    path.write_text(WORKER.format(python=sys.executable, calls=str(tmp_path / "calls")))
    path.chmod(0o755)
    return path


def trial(name: str) -> Trial:
    return Trial(
        name=name,
        checkpoint=Path("checkpoint"),
        config={},
        prompts={},
        steps=1,
        sparse_layers=[],
    )


def observe(python: Path, out: Path, names: list[str], **options: float) -> list[str]:
    found = vllm.observe(
        python,
        [trial(name) for name in names],
        out=out,
        options=Options(**options),  # type: ignore[arg-type]
        progress=engines.silent,
    )
    assert [one.trial.name for one in found] == names
    return [one.error for one in found]


def test_all_trials_share_one_process(python: Path, tmp_path: Path) -> None:
    assert observe(python, tmp_path / "out", ["one", "two"]) == ["", ""]
    assert (tmp_path / "calls").read_text() == "one,two\n"


def test_after_a_failure_the_rest_runs_in_a_fresh_process(python: Path, tmp_path: Path) -> None:
    assert observe(python, tmp_path / "out", ["fails", "two"]) == [NO, ""]
    assert (tmp_path / "calls").read_text() == "fails,two\ntwo\n"


def test_a_trial_that_kills_its_process_is_reported_and_the_rest_runs(
    python: Path, tmp_path: Path
) -> None:
    errors = observe(python, tmp_path / "out", ["one", "dies", "three"])
    assert [bool(error) for error in errors] == [False, True, False]
    assert errors[1].startswith("the process died")


def test_what_a_dying_process_had_shown_is_kept(python: Path, tmp_path: Path) -> None:
    errors = observe(python, tmp_path / "out", ["dies-late", "two"])
    assert errors[0].startswith("the process died after `alone`")
    assert errors[1] == ""
    found = running.died(trial("dies-late"), tmp_path / "out" / "0-dies-late", "Killed")
    assert found.shown
    assert not running.died(trial("other"), tmp_path / "nowhere", "Killed").shown


def test_results_of_an_earlier_run_are_not_taken_for_this_one(python: Path, tmp_path: Path) -> None:
    observe(python, tmp_path / "out", ["one"])
    (tmp_path / "out" / "0-one").rename(tmp_path / "out" / "0-dies")
    assert observe(python, tmp_path / "out", ["dies"])[0]


def test_a_hanging_engine_is_stopped(python: Path, tmp_path: Path) -> None:
    with pytest.raises(ProcessTimeoutError):
        observe(python, tmp_path / "out", ["hangs"], timeout=0.5)


def test_an_interpreter_without_vllm_is_an_error_of_its_own(tmp_path: Path) -> None:
    with pytest.raises(EngineError, match="does not have it"):
        observe(Path(sys.executable), tmp_path / "out", ["one"])


def test_the_reference_operators_are_switched_by_the_environment() -> None:
    assert vllm.environment(Options(reference_ops=True))["DSPATCH_REFERENCE_OPS"] == "1"
    assert vllm.environment(Options())["DSPATCH_REFERENCE_OPS"] == "0"


def test_the_request_is_json_with_everything_the_worker_needs(python: Path, tmp_path: Path) -> None:
    observe(python, tmp_path / "out", ["one"])
    asked = json.loads((tmp_path / "out" / "request.json").read_text())["trials"][0]
    assert {"name", "checkpoint", "out", "config", "prompts", "steps", "options"} <= asked.keys()


def test_an_unknown_engine_is_refused() -> None:
    with pytest.raises(UnknownEngineError, match="vllm"):
        engines.get("no-such-engine")
