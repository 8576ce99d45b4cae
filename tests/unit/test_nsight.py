"""Nsight Compute stands before a server's command, and what it counts is read, summed and shown."""

from __future__ import annotations

import json
import os
import stat
import sys
import textwrap
import time
from pathlib import Path

import pytest

from dspatch import process
from dspatch.bench import nsight
from dspatch.engines.serving import Service
from dspatch.errors import ProfileError
from dspatch.stages import profile, show_profile
from dspatch.stages.prove_any import Subject

HEADER = '"ID","Process ID","Kernel Name","Device","dram__bytes.sum","gpu__time_duration.sum"'
UNITS = '"","","","","byte","ns"'
COUNTED = f"""\
==PROF== Connected to process 41 (/usr/bin/python3.12)
==PROF== Profiling "attend" - 0: 0%....50%....100% - 1 pass
{HEADER}
{UNITS}
"0","41","void attend<(int)4>(float *, int)","0","2,000,000","1,000"
"1","41","gemm","0","500","4,000"
==PROF== Disconnected from process 41
{HEADER}
{UNITS}
"2","42","void attend<(int)4>(float *, int)","0","1000000","2000"
"""

# Like Nsight Compute: it runs what stands behind its options, and writes once all of that has ended.
STAND_IN = """\
#!/bin/sh
while [ "$1" != --log-file ]; do shift; done
log=$2
shift 2
"$@"
status=$?
cat {counted} > "$log"
exit $status
"""
# As its launcher, which stands between the two under a name of its own, here with a session of its own.
LAUNCHER = "import subprocess, sys; subprocess.run(sys.argv[1:], start_new_session=True)"
SERVER = """
import signal, sys, time
signal.signal(signal.SIGTERM, lambda *_: sys.exit(0))
open(sys.argv[1], "w").close()
try:
    time.sleep(60)
finally:
    open(sys.argv[1] + ".ended", "w").close()
"""


def stand_in(folder: Path) -> Path:
    path = folder / "ncu"
    (folder / "counted").write_text(COUNTED)
    path.write_text(STAND_IN.format(counted=folder / "counted"))
    path.chmod(path.stat().st_mode | stat.S_IXUSR)
    return path


def written(folder: Path, text: str) -> Path:
    log = folder / "kernels.csv"
    log.write_text(text)
    return log


def test_launches_of_all_processes_are_summed_by_kernel(tmp_path: Path) -> None:
    found = nsight.read(written(tmp_path, COUNTED))
    assert found.operators == ()
    told = {one.name: (one.microseconds, one.calls, one.moved) for one in found.kernels}
    assert told == {
        "gemm": (4.0, 1, 500.0),
        "void attend<(int)4>(float *, int)": (3.0, 2, 3e6),
    }
    assert found.counted == 7
    assert [one.rate for one in found.kernels] == [1.25e8, 1e12]


@pytest.mark.parametrize(
    ("text", "why"),
    [
        ("", "it counted nothing"),
        (
            "==PROF== Connected\n==ERROR== ERR_NVGPUCTRPERM - no permission\n",
            "ERR_NVGPUCTRPERM - no permission",
        ),
        ("==WARNING== No kernels were profiled.\n", "No kernels were profiled"),
        (f'{HEADER}\n{UNITS}\n"0","41","gemm","0","n/a","4"\n', "could not convert"),
        (f'{HEADER}\n{UNITS}\n"0","41"\n', "zip"),
        ('"ID","Kernel Name"\n"","x"\n"0","gemm"\n', "gpu__time_duration.sum"),
    ],
)
def test_a_log_without_kernels_is_told_with_its_reason(tmp_path: Path, text: str, why: str) -> None:
    with pytest.raises(ProfileError, match="counted no kernel") as caught:
        nsight.read(written(tmp_path, text))
    assert why in caught.value.why


def test_no_log_at_all(tmp_path: Path) -> None:
    with pytest.raises(ProfileError, match="counted no kernel"):
        nsight.read(tmp_path / "none.csv")


def test_it_is_looked_for_on_path(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(ProfileError, match="not on PATH"):
        nsight.program()
    made = stand_in(tmp_path)
    assert nsight.program() == str(made)


def test_only_what_the_server_marks_is_counted(tmp_path: Path) -> None:
    config = tmp_path / "vllm" / "config" / "profiler.py"
    config.parent.mkdir(parents=True)
    config.write_text('ProfilerKind = Literal["torch"]\n')
    with pytest.raises(ProfileError, match="cannot tell Nsight"):
        profile.counting(tmp_path, "ncu", tmp_path / "log")
    config.write_text('ProfilerKind = Literal["torch", "cuda"]\n')
    way = profile.counting(tmp_path, "ncu", tmp_path / "log")
    made = way.of(Service(argv=("python", "-m", "server"), env={"A": "b"}))
    assert made.argv[0] == "ncu"
    assert made.argv[-5:] == ("python", "-m", "server", "--profiler-config", '{"profiler": "cuda"}')
    assert made.argv[made.argv.index("--profile-from-start") + 1] == "off"
    assert made.env == {"A": "b"}


def server_of(folder: Path, log: Path, *, ends: bool = True) -> tuple[str, ...]:
    """A server below a launcher below a profiler; one that does not end heeds no signal to."""
    launcher = folder / "TreeLauncherSubreaper"
    launcher.symlink_to(sys.executable)
    code = SERVER if ends else SERVER.replace("lambda *_: sys.exit(0)", "signal.SIG_IGN")
    server = (sys.executable, "-c", textwrap.dedent(code), str(folder / "up"))
    return (
        *nsight.command(str(stand_in(folder)), log), str(launcher), "-c", LAUNCHER, *server,
    )  # fmt: skip


def test_the_server_ends_before_its_profiler_which_writes_then(tmp_path: Path) -> None:
    log, up = tmp_path / "kernels.csv", tmp_path / "up"
    with process.background(server_of(tmp_path, log), log=tmp_path / "log") as running:
        profile._until(up.exists, 30)
        assert not log.exists()
        profile._end(running.pid)
        assert up.with_name("up.ended").exists()
        assert nsight.read(log).counted == 7
        profile._kill(running.pid)


def test_a_profiler_that_does_not_end_is_told_and_leaves_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(profile, "WRITING", 0.5)
    up, argv = tmp_path / "up", server_of(tmp_path, tmp_path / "kernels.csv", ends=False)
    with process.background(argv, log=tmp_path / "log") as running:
        profile._until(up.exists, 30)
        below = [*profile.processes.tree(running.pid)]
        with pytest.raises(ProfileError, match="did not end with the server"):
            profile._end(running.pid)
        profile._kill(running.pid)
    assert len(below) == 3
    profile._until(lambda: not any(map(profile.processes.alive, below)), 30)
    assert not any(map(profile.processes.alive, below))


def test_an_engine_that_runs_no_kernel_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PATH", f"{tmp_path}{os.pathsep}{os.environ['PATH']}")
    stand_in(tmp_path)
    subject = Subject(
        engine="vllm", version="1", target="cpu", where="here", key="k", python=lambda _: tmp_path
    )
    with pytest.raises(ProfileError, match="runs no kernel of a GPU"):
        profile._need_counters(subject)


def test_bytes_and_their_rate_stand_beside_the_time(tmp_path: Path) -> None:
    found = nsight.read(written(tmp_path, COUNTED))
    done = profile._written("vllm 1", profile.NSIGHT, 2, found, tmp_path / "out")
    assert done.verdict == "0.0 ms in 3 kernels, 2 requests"
    page = show_profile.page_of(done)
    assert page.about.startswith("Time of the kernels that were counted")
    assert page.tables[0].headers[-2:] == ("MB", "GB/S")
    assert page.tables[0].rows[1] == ("attend<(int)4>", "0.00", "42.9%", "2", "3.0", "1000")
    assert json.loads(done.files[0].read_text())["kernels"][0]["moved"] == 500


def test_requests_end_with_their_time_and_the_rest_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    now, asked = iter([0.0, 2.0, 4.0]), list[str]()
    monkeypatch.setattr(profile.time, "monotonic", lambda: next(now))
    assert profile._in_time(asked.append, ["a", "b", "c", "d"], 3.0) == 2
    assert asked == ["a", "b"]
    monkeypatch.setattr(profile.time, "monotonic", lambda: 9.0)
    assert profile._in_time(asked.append, ["e", "f"], 0.0) == 1
    assert profile._in_time(asked.append, ["g", "h"], 1.0) == 2


def test_a_profile_says_what_is_not_in_it(tmp_path: Path) -> None:
    few = nsight.read(written(tmp_path, COUNTED))
    assert profile._left_out(few, 0, True) == ()
    rows = "".join(f'"{n}","41","gemm","0","5","4"\n' for n in range(nsight.LAUNCHES))
    full = nsight.read(written(tmp_path, f"{HEADER}\n{UNITS}\n{rows}"))
    [late, last] = profile._left_out(full, 98, True)
    assert "98 requests" in late
    assert "first 300" in last
    assert profile._left_out(full, 0, False) == ()
    done = profile._written("vllm 1", profile.NSIGHT, 2, full, tmp_path / "out", (late, last))
    assert done.verdict.endswith(f"2 requests; {late}; {last}")
    assert json.loads(done.files[0].read_text())["left_out"] == [late, last]


@pytest.mark.parametrize(
    ("called", "name"),
    [
        ("aten::mm", "aten::mm"),
        ("void f<(int)4>(float *, int)", "f<(int)4>"),
        ("at::(anonymous namespace)::g(at::Tensor (*)(int))", "at::(anonymous namespace)::g"),
        ("(odd)", "(odd)"),
        (")", ")"),
        ("k" * 100, "k" * 71 + "…"),
    ],
)
def test_a_signature_is_cut_to_a_name(called: str, name: str) -> None:
    assert show_profile.short(called) == name


def test_a_process_that_waits_for_its_parent_does_not_run(tmp_path: Path) -> None:
    with process.background((sys.executable, "-c", "pass"), log=tmp_path / "log") as running:
        for _ in range(200):
            if not profile.processes.alive(running.pid):
                break
            time.sleep(0.05)
        assert not profile.processes.alive(running.pid)
        assert running.poll() == 0
    assert not profile.processes.alive(2**30)
    assert profile.processes.program(2**30) == ""
