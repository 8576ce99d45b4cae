"""A trace gives each operator the time that is its own; what is no trace is refused."""

from __future__ import annotations

import gzip
import json
from pathlib import Path
from typing import Any

import pytest

from dspatch.bench import trace
from dspatch.console import Console
from dspatch.errors import ProfileError
from dspatch.stages import profile, show_profile


def event(name: str, ts: float, dur: float, **changes: Any) -> dict[str, Any]:
    return {
        "ph": "X",
        "cat": "cpu_op",
        "name": name,
        "pid": 1,
        "tid": 1,
        "ts": ts,
        "dur": dur,
        **changes,
    }


EVENTS = [
    event("linear", 0, 100),
    event("mm", 10, 60),
    event("copy", 20, 10),
    event("mm", 80, 10),
    event("linear", 200, 50),
    event("mm", 5, 30, tid=2),
    event("gemm", 12, 40, cat="kernel", tid=7),
    event("step", 0, 900, cat="user_annotation"),
    {"ph": "M", "name": "process_name"},
]


def written(folder: Path, events: list[dict[str, Any]], name: str = "one.json") -> Path:
    path = folder / name
    raw = json.dumps({"traceEvents": events}).encode()
    path.write_bytes(gzip.compress(raw) if name.endswith(".gz") else raw)
    return path


@pytest.mark.parametrize("name", ["one.json", "one.pt.trace.json.gz"])
def test_time_within_counts_once(tmp_path: Path, name: str) -> None:
    found = trace.read(written(tmp_path, EVENTS, name))
    told = {one.name: (one.microseconds, one.calls) for one in found.operators}
    assert told == {"linear": (80.0, 2), "mm": (90.0, 3), "copy": (10.0, 1)}
    assert [one.name for one in found.operators] == ["mm", "linear", "copy"]
    assert found.total == 180
    assert [(one.name, one.microseconds) for one in found.kernels] == [("gemm", 40.0)]


def test_of_several_traces_the_one_that_computed(tmp_path: Path) -> None:
    written(tmp_path, [event("poll", 0, 5)], "frontend.json")
    written(tmp_path, EVENTS, "worker.json.gz")
    assert trace.of_folder(tmp_path).total == 180


@pytest.mark.parametrize("raw", [b"", b"[]", b"{}", b'{"traceEvents": 3}', b"\x1f\x8b", b"\xff"])
def test_what_is_no_trace(tmp_path: Path, raw: bytes) -> None:
    for name in ("one.json", "one.json.gz"):
        (tmp_path / name).write_bytes(raw)
        with pytest.raises(ProfileError, match="no trace of torch"):
            trace.read(tmp_path / name)


def test_no_trace_at_all(tmp_path: Path) -> None:
    with pytest.raises(ProfileError, match="left no trace"):
        trace.of_folder(tmp_path)
    written(tmp_path, [])
    with pytest.raises(ProfileError, match="left no trace"):
        trace.of_folder(tmp_path)


def test_a_release_profiles_by_its_option_or_by_variables(tmp_path: Path) -> None:
    way = profile.profiling(tmp_path, tmp_path / "traces")
    assert way.after == ()
    assert way.variables["VLLM_TORCH_PROFILER_DIR"] == str(tmp_path / "traces")
    parser = tmp_path / "vllm" / "engine" / "arg_utils.py"
    parser.parent.mkdir(parents=True)
    parser.write_text('group.add_argument("--profiler-config")\n')
    way = profile.profiling(tmp_path, tmp_path / "traces")
    assert json.loads(way.after[1])["torch_profiler_dir"] == str(tmp_path / "traces")
    assert way.variables == {}


def test_a_profile_is_told_and_written(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    found = trace.read(written(tmp_path, EVENTS))
    done = profile._written("vllm <1>", profile.TORCH, 3, found, tmp_path / "out")
    show_profile.told(done, Console())
    assert "50.0%" in capsys.readouterr().out
    show_profile.told(done, Console(as_json=True))
    assert json.loads(capsys.readouterr().out) == json.loads(done.files[0].read_text())
    html = done.files[1].read_text()
    assert html.count("<svg") == 2
    assert "vllm &lt;1&gt;" in html
