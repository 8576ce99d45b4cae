"""`dspatch audit` from the command line: releases of an index, forks, work trees, environments, checkpoints."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from dspatch import fetch
from dspatch.cli import main
from dspatch.console import Console
from tests import audit_kit
from tests.support import dedent, git, repository
from tests.unit.index_server import Index, serve

V3_SERVED = audit_kit.MODELS.replace("}", ', "DeepseekV3ForCausalLM": "deepseek_v2"}')


@pytest.fixture(autouse=True)
def index(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Iterator[Index]:
    """Three releases: 0.9.0 has every fault, 0.10.0 serves V3, 0.11.0 has MLA on CPU, too."""
    monkeypatch.setattr(fetch, "PAUSE", 0.0)
    audit_kit.know(monkeypatch, tmp_path, *audit_kit.ALL)
    old = audit_kit.FILES
    middle = {**old, "vllm/models.py": V3_SERVED}
    with serve() as server:
        server.alone(monkeypatch)
        audit_kit.offer(
            server, v0_9_0=old, v0_10_0=middle, v0_11_0={**middle, "vllm/cpu.py": audit_kit.GOOD}
        )
        yield server


def run(*words: str, capsys: pytest.CaptureFixture[str]) -> tuple[int, str, str]:
    with pytest.raises(SystemExit) as stop:
        main(["audit", *words])
    out, err = capsys.readouterr()
    return int(stop.value.code or 0), out, err


def result(*words: str, capsys: pytest.CaptureFixture[str]) -> dict[str, Any]:
    code, out, err = run("--json", *words, capsys=capsys)
    assert code == 0, err
    found: dict[str, Any] = json.loads(out)
    return found


def states(done: dict[str, Any]) -> dict[str, str]:
    return {each["id"]: each["state"] for each in done["findings"]}


TABLE = """
    vllm 0.9.0 (release), deepseek-v3 on cpu: 1 crash, 1 missing

    crash       The CPU platform refuses latent attention
                id        vllm-cpu-refused
                seen in   vllm/cpu.py:5 CpuPlatform.backend raise NotImplementedError("no latent attention")
                upstream  https://example.org/pull/1
                good from not recorded
                instead   VLLM_MLA_DISABLE=1

    missing     DeepSeek-V3 is not served
                id        vllm-v3-absent
                seen in   vllm/models.py:1 MODELS lists no `DeepseekV3ForCausalLM`
                good from not recorded

    0 findings it has not, 1 that do not concern this model and place
"""
CONDITIONAL = """
    vllm 0.11.0 (release), deepseek-v2-lite: 1 unknown

    unknown     A kernel computes offsets in int32
                id        vllm-kernel-int32
                when      on sm80; with --kv-cache-dtype fp8
                unknown   csrc/kernel.cu lies beyond what was read
                good from no release yet

    1 findings it has not, 1 that do not concern this model and place
    --native reads the sdist, too, and with it what lies beyond a wheel
"""


def test_the_table_of_a_release(capsys: pytest.CaptureFixture[str]) -> None:
    words = ("--rev", "v0.9.0", "--variant", "deepseek-v3", "--target", "cpu")
    code, out, err = run(*words, capsys=capsys)
    assert code == 0
    assert out == dedent(TABLE)
    assert "0.00 MB in" in err


def test_the_table_of_what_is_unknown(capsys: pytest.CaptureFixture[str]) -> None:
    run("--write-ranges", capsys=capsys)
    _, out, _ = run("--rev", "v0.11.0", "--variant", "deepseek-v2-lite", capsys=capsys)
    assert out == dedent(CONDITIONAL)


def test_what_needs_a_condition_is_a_line_unless_asked_for(
    capsys: pytest.CaptureFixture[str],
) -> None:
    run("--write-ranges", capsys=capsys)
    words = ("--rev", "v0.9.0", "--variant", "deepseek-v2-lite")
    _, out, _ = run(*words, capsys=capsys)
    assert out.startswith("vllm 0.9.0 (release), deepseek-v2-lite: 1 unknown, 1 under conditions\n")
    assert "crash     on cpu  vllm-cpu-refused  0.11.0            The CPU platform refuses" in out
    _, out, _ = run(*words, "--details", capsys=capsys)
    assert "crash       The CPU platform refuses latent attention" in out
    assert "when      on cpu" in out


def test_only_what_concerns_the_user_is_told(capsys: pytest.CaptureFixture[str]) -> None:
    gpu = result("--rev", "v0.9.0", "--variant", "deepseek-v3", "--gpu", "h100", capsys=capsys)
    assert states(gpu) == {"vllm-v3-absent": "yes"}
    assert gpu["others"] == 2
    lite = result(
        "--rev", "v0.9.0", "--variant", "deepseek-v2-lite", "--target", "cpu", capsys=capsys
    )
    assert states(lite) == {"vllm-cpu-refused": "yes"}
    served = result(
        "--rev", "v0.9.0", "--gpu", "a100", "--", "vllm", "serve", "m", "--kv-cache-dtype=fp8",
        capsys=capsys,
    )  # fmt: skip
    assert states(served) == {"vllm-v3-absent": "yes", "vllm-kernel-int32": "unknown"}


def test_a_release_without_the_fault_is_clean_of_it(capsys: pytest.CaptureFixture[str]) -> None:
    done = result("--rev", "0.11.0", "--variant", "deepseek-v3", capsys=capsys)
    assert states(done) == {"vllm-kernel-int32": "unknown"}
    assert done["clean"] == ["vllm-cpu-refused", "vllm-v3-absent"]


def test_few_bytes_are_read_and_none_the_second_time(capsys: pytest.CaptureFixture[str]) -> None:
    first = result("--rev", "v0.9.0", capsys=capsys)
    again = result("--rev", "v0.9.0", capsys=capsys)
    assert first["requests"] > 0
    assert (again["bytes"], again["requests"]) == (0, 0)
    assert states(first) == states(again)


@pytest.mark.parametrize(
    ("threshold", "code"), [("wrong", 0), ("crash", 61), ("slow", 61), ("misleading", 61)]
)
def test_the_exit_code_follows_the_threshold(
    threshold: str, code: int, capsys: pytest.CaptureFixture[str]
) -> None:
    words = ("--rev", "v0.10.0", "--target", "cpu", "--fail-on", threshold)
    got, out, err = run(*words, capsys=capsys)
    assert got == code
    assert ("vllm-cpu-refused (crash)" in err) == (code == 61)
    assert out.startswith("vllm 0.10.0")
    got, out, _ = run(*words, "--json", capsys=capsys)
    assert got == code
    assert json.loads(out)["version"] == "0.10.0"


def test_what_is_in_doubt_fails_only_when_asked_to(capsys: pytest.CaptureFixture[str]) -> None:
    words = ("--rev", "v0.10.0", "--fail-on", "crash")
    assert run(*words, capsys=capsys)[0] == 0
    code, _, err = run(*words, "--strict", capsys=capsys)
    assert code == 61
    assert "vllm-cpu-refused (crash, on cpu)" in err
    assert "vllm-kernel-int32 (wrong, on sm80, with --kv-cache-dtype fp8, unknown)" in err


def test_a_revision_that_is_no_release_is_offered_from_git(
    capsys: pytest.CaptureFixture[str],
) -> None:
    code, _, err = run("--rev", "v0.10.7", capsys=capsys)
    assert code == 11
    assert "nearest: v0.10.0" in err
    assert "--rev v0.10.7 --repo https://" in err


@pytest.fixture
def fork(tmp_path: Path) -> Path:
    """A clone of 0.10.0 whose CPU platform was changed on a branch."""
    folder = tmp_path / "fork"
    files = {**audit_kit.FILES, "vllm/models.py": V3_SERVED}
    files["csrc/kernel.cu"] = "int32_t offset = 0;\n"
    repository(folder, {path: text.encode() for path, text in files.items()})
    git(folder, "checkout", "-q", "-b", "ours")
    (folder / "vllm" / "cpu.py").write_text("# ours\n" + audit_kit.BAD)
    git(folder, "commit", "-q", "-a", "-m", "ours")
    return folder


def test_a_fork_says_what_is_not_the_nearest_release(
    fork: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    run("--write-ranges", capsys=capsys)
    done = result("--repo", str(fork), "--rev", "ours", capsys=capsys)
    assert done["source"]["kind"] == "git"
    assert states(done) == {"vllm-cpu-refused": "yes", "vllm-kernel-int32": "yes"}
    assert done["nearest"]["version"] == "0.10.0"
    assert done["nearest"]["differing"] == ["vllm/cpu.py"]
    _, out, _ = run("--repo", str(fork), "--rev", "ours", capsys=capsys)
    assert "nearest release: 0.10.0; of 2 files that were read, these are not: vllm/cpu.py" in out


def test_a_work_tree_is_read_as_it_stands(fork: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (fork / "vllm" / "cpu.py").write_text(audit_kit.GOOD)
    done = result("--repo", str(fork), capsys=capsys)
    assert done["source"]["kind"] == "folder"
    assert states(done) == {"vllm-kernel-int32": "yes"}
    assert done["nearest"]["version"] == "0.11.0"


def test_a_folder_without_the_engine(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    code, _, err = run("--repo", str(tmp_path), capsys=capsys)
    assert code == 11
    assert "holds no sources of vllm" in err
    assert run("--repo", "https://example.org/x", capsys=capsys)[0] == 11


def test_a_broken_environment_and_a_checkpoint_without_config(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    code, _, err = run("--env", str(tmp_path / "gone"), capsys=capsys)
    assert code == 50
    assert "next:" in err
    code, _, err = run("--rev", "v0.9.0", "--model", str(tmp_path), capsys=capsys)
    assert code == 52
    assert "has no config.json" in err
    assert run("--env", "x", "--rev", "v1", capsys=capsys)[0] == 2


def test_a_finding_is_explained(capsys: pytest.CaptureFixture[str]) -> None:
    code, out, _ = run("--explain", "vllm-cpu-refused", capsys=capsys)
    assert code == 0
    assert "has the code `raise NotImplementedError(...)`" in out
    code, _, err = run("--explain", "vllm-cpu-refuse", capsys=capsys)
    assert code == 31
    assert "nearest: vllm-cpu-refused" in err


# -- all releases --------------------------------------------------------------------------------


def test_all_releases_and_which_to_pin(capsys: pytest.CaptureFixture[str]) -> None:
    words = ("--all-releases", "--variant", "deepseek-v3", "--target", "cpu")
    done = result(*words, capsys=capsys)
    rows = {each["id"]: each["states"] for each in done["findings"]}
    assert rows["vllm-cpu-refused"] == {"0.9.0": "yes", "0.10.0": "yes", "0.11.0": "no"}
    assert rows["vllm-v3-absent"] == {"0.9.0": "yes", "0.10.0": "no", "0.11.0": "no"}
    assert done["best"] == "0.11.0"
    code, out, _ = run(*words, capsys=capsys)
    assert code == 0
    assert "0.9.0–0.10.0" in out
    assert "serves it best" in out
    assert "does not serve it" in out
    again = result(*words, capsys=capsys)
    assert (again["bytes"], again["requests"]) == (0, 0)


def test_ranges_are_written_checked_and_used(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run("--check-ranges", capsys=capsys)[0] == 61
    assert run("--write-ranges", capsys=capsys)[0] == 0
    text = (tmp_path / "ranges-vllm.toml").read_text()
    assert 'vllm-cpu-refused = "0.9.0–0.10.0"' in text
    assert 'vllm-kernel-int32 = "0.9.0–0.11.0"' in text.split("[unknown]")[1]
    assert run("--check-ranges", capsys=capsys)[0] == 0
    assert "was up to date" in run("--write-ranges", capsys=capsys)[1]
    done = result("--rev", "v0.9.0", capsys=capsys)
    good = {each["id"]: each["first_good"] for each in done["findings"]}
    assert good == {
        "vllm-cpu-refused": "0.11.0",
        "vllm-v3-absent": "0.10.0",
        "vllm-kernel-int32": None,
    }


def test_ranges_that_drifted_are_named(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    run("--write-ranges", capsys=capsys)
    path = tmp_path / "ranges-vllm.toml"
    path.write_text(path.read_text().replace('"0.9.0–0.10.0"', '"0.9.0–0.11.0"'))
    code, _, err = run("--check-ranges", capsys=capsys)
    assert code == 61
    assert "vllm-cpu-refused: 0.11.0 was yes, is no" in err


def test_a_release_newer_than_the_record_is_no_drift(
    index: Index, capsys: pytest.CaptureFixture[str]
) -> None:
    run("--write-ranges", capsys=capsys)
    audit_kit.offer(index, v0_12_0=audit_kit.FILES)
    assert run("--check-ranges", capsys=capsys)[0] == 0


def test_a_release_that_cannot_be_read_is_unknown_not_clean(
    index: Index, capsys: pytest.CaptureFixture[str]
) -> None:
    name = "vllm-0.10.0-cp38-abi3-manylinux1_x86_64.whl"
    index.files["vllm"][name].data = b"no wheel"
    done = result("--all-releases", capsys=capsys)
    assert {each["states"]["0.10.0"] for each in done["findings"]} == {"unknown"}
    assert {each["states"]["0.9.0"] for each in done["findings"]} <= {"yes", "unknown"}
    assert any("0.10.0 could not be read" in note for note in done["notes"])


def test_the_page_is_whole_and_needs_nothing_else(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "audit.html"
    assert run("--all-releases", "--html", str(path), capsys=capsys)[0] == 0
    text = path.read_text()
    assert "src=" not in text
    assert "@import" not in text
    assert "url(" not in text
    assert text.count("<td") == text.count("</td>")
    assert "The CPU platform refuses latent attention" in text
    assert 'title="0.9.0: yes">●' in text
    assert (
        "0.11.0: "
        not in text.split("The CPU platform refuses latent attention")[1].split("</tr>")[0]
    )
    assert "prefers-color-scheme: dark" in text
    assert "was up to date" in run("--all-releases", "--html", str(path), capsys=capsys)[1]


def test_without_an_index_a_release_is_told_as_it_was_recorded(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    run("--write-ranges", capsys=capsys)
    monkeypatch.setenv("PIP_INDEX_URL", "http://127.0.0.1:9/simple")
    done = result("--rev", "0.9.0", capsys=capsys)
    assert done["source"]["kind"] == "record"
    assert states(done)["vllm-v3-absent"] == "yes"
    assert states(done)["vllm-kernel-int32"] == "unknown"
    assert any("recorded answers, without their places" in note for note in done["notes"])
    code, _, err = run("--rev", "v0.9.9", capsys=capsys)
    assert code == 22
    assert "next:" in err


def test_only_lines_of_the_finding_asked_for(capsys: pytest.CaptureFixture[str]) -> None:
    done = result("--all-releases", "--finding", "vllm-v3-absent", capsys=capsys)
    assert [each["id"] for each in done["findings"]] == ["vllm-v3-absent"]


@pytest.mark.parametrize(
    ("words", "told"),
    [
        (("--rev", "v0.9.0", "--finding", "vllm-v3-absent"), "--finding goes with --all-releases"),
        (("--rev", "v0.9.0", "--strict"), "--strict goes with --fail-on"),
        (("--all-releases", "--fail-on", "wrong"), "--fail-on is for one release"),
        (("--all-releases", "--sarif", "x.sarif"), "--sarif is for one release"),
        (("--all-releases", "--details"), "--details is for one release"),
        (("--all-releases", "--rev", "v0.9.0"), "leave --rev, --repo and --env out"),
    ],
)
def test_options_that_would_do_nothing_are_refused(
    words: tuple[str, ...], told: str, capsys: pytest.CaptureFixture[str]
) -> None:
    code, out, err = run(*words, capsys=capsys)
    assert (code, out) == (2, "")
    assert told in err


def test_a_finding_that_is_none_has_no_releases(capsys: pytest.CaptureFixture[str]) -> None:
    code, out, err = run("--all-releases", "--finding", "vllm-v3-absnt", capsys=capsys)
    assert (code, out) == (31, "")
    assert "nearest: vllm-v3-absent" in err


def test_a_narrow_terminal_gets_two_lines_a_finding(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(Console, "columns", 60)
    _, out, _ = run("--rev", "v0.9.0", "--variant", "deepseek-v3", capsys=capsys)
    assert "SEVERITY" not in out
    assert "crash       The CPU platform refuses latent attention\n" in out
    assert "            vllm-cpu-refused · on cpu · good from: " in out
