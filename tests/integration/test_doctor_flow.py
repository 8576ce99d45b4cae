"""`dspatch serve doctor` as it is typed: exit codes, JSON, stdin, an environment, a checkpoint, secrets."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner, Result

from dspatch import cli
from dspatch.serve.doctor.redact import HIDDEN
from tests import doctorkit


def doctor(*words: str | Path, stdin: bytes = b"") -> tuple[int, str, str]:
    """The command in a process of its own: its exit code, stdout and stderr."""
    done = subprocess.run(
        [sys.executable, "-m", "dspatch", "serve", "doctor", *map(str, words)],
        input=stdin, capture_output=True, check=False,
    )  # fmt: skip
    return done.returncode, done.stdout.decode(), done.stderr.decode()


def as_json(*words: str | Path, stdin: bytes = b"") -> tuple[int, dict[str, Any]]:
    code, out, _ = doctor(*words, "--json", stdin=stdin)
    return code, json.loads(out)


def test_a_sick_log_names_line_cause_patch_and_what_follows() -> None:
    code, out, err = doctor(doctorkit.LOGS / "sick-v3-no-topk.log")
    assert code == 68
    assert "Traceback" not in err
    for word in (
        "vllm 0.32.0",
        "vllm-v3-topk-method",
        "e_score_correction_bias",
        "good from",
        "confirm",
    ):
        assert word in out
    assert out.index("vllm-v3-topk-method") < out.index("follows from it")


def test_a_healthy_log_from_stdin_is_well() -> None:
    code, done = as_json("-", stdin=(doctorkit.LOGS / "healthy-v3-32.log").read_bytes())
    assert (code, done["causes"], done["error"]) == (0, [], None)
    assert (done["engine"], done["version"], done["target"]) == ("vllm", "0.32.0", "cpu")


def test_what_is_not_known_is_said_so_with_the_last_error(tmp_path: Path) -> None:
    log = tmp_path / "server.log"
    log.write_text(
        "INFO 11-30 api_server.py:912] vLLM API server version 0.10.1\nTraceback (most recent call last):\n"
        "FluxCapacitorError: 1.21 gigawatts are missing, token=hf_abcdefghijklmnop\n"
    )
    code, out, _ = doctor(log)
    assert code == 69
    assert "no known cause" in out
    assert "line 3" in out
    assert HIDDEN in out
    assert "dspatch audit --engine vllm --rev v0.10.1" in out
    code, done = as_json(log)
    assert (code, done["causes"], done["error"]["line"]) == (69, [], 3)
    assert "hf_" not in json.dumps(done)


@pytest.mark.parametrize(
    ("words", "code"),
    [(["nowhere.log"], 63), (["."], 63), (["--env", "nowhere"], 50), (["--model", "nowhere"], 52)],
)
def test_bad_input_has_its_own_exit_code_and_no_traceback(words: list[str], code: int) -> None:
    got, _, err = doctor(*words)
    assert got == code
    assert err.startswith("error: ")
    assert "Traceback" not in err


def test_an_empty_log_is_told(tmp_path: Path) -> None:
    (tmp_path / "server.log").write_bytes(b"")
    assert doctor(tmp_path / "server.log")[0] == 64
    assert doctor("-")[0] == 64


def environment(folder: Path, torch: str) -> Path:
    """A virtual environment's Python with the metadata of an engine and of a torch."""
    subprocess.run([sys.executable, "-m", "venv", "--without-pip", folder], check=True)
    site = next((folder / "lib").glob("python*/site-packages"))
    (site / "vllm").mkdir()
    (site / "vllm" / "__init__.py").write_text("raise SystemExit('imported')\n")
    for name, version, more in (
        ("vllm", "0.10.1", "Requires-Dist: torch==2.7.1\n"),
        ("torch", torch, ""),
    ):
        info = site / f"{name}-{version}.dist-info"
        info.mkdir()
        (info / "METADATA").write_text(
            f"Metadata-Version: 2.1\nName: {name}\nVersion: {version}\n{more}"
        )
    (site / "torch").mkdir()
    (site / "torch" / "version.py").write_text("__version__ = '2'\ncuda: str | None = '12.6'\n")
    return folder / "bin" / "python"


def test_the_machine_alone_shows_a_torch_that_the_engine_did_not_ask_for(tmp_path: Path) -> None:
    code, done = as_json("--env", environment(tmp_path / "bad", "2.9.0"))
    assert (code, [each["id"] for each in done["causes"]]) == (68, ["torch-abi"])
    assert "asks for torch ==2.7.1, 2.9.0 is installed" in done["causes"][0]["machine"]
    assert done["machine"]["environment"]["torch_cuda"] == "12.6"
    code, done = as_json("--env", environment(tmp_path / "good", "2.7.1+cu126"))
    assert (code, done["causes"]) == (0, [])


def test_the_log_counts_where_another_release_is_installed(tmp_path: Path) -> None:
    env = environment(tmp_path / "env", "2.7.1")
    code, done = as_json(doctorkit.LOGS / "sick-mla-refused.log", "--env", env)
    assert (code, done["version"]) == (68, "0.27.1")
    assert any("0.10.1 is installed" in note for note in done["notes"])


def test_a_checkpoint_of_another_kind_rules_a_finding_out(tmp_path: Path) -> None:
    source = Path(__file__).parents[1] / "data" / "configs"
    config = next(
        path
        for path in sorted(source.rglob("*.json"))
        if "DeepseekV3ForCausalLM" in path.read_text()
    )
    (tmp_path / "config.json").write_text(config.read_text())
    code, done = as_json(doctorkit.LOGS / "sick-v3-no-topk.log", "--model", tmp_path)
    assert code == 69
    assert [each["id"] for each in done["ruled_out"]] == ["vllm-v3-topk-method"]


@pytest.mark.parametrize(
    "config",
    [
        {"architectures": ["Qwen2ForCausalLM"], "vocab_size": 151936},
        {"architectures": ["LlamaForCausalLM"], "vocab_size": 128256},
    ],
)
def test_a_distilled_model_is_noted_and_the_log_read(
    config: dict[str, Any], tmp_path: Path
) -> None:
    (tmp_path / "config.json").write_text(json.dumps(config))
    code, done = as_json(doctorkit.LOGS / "sick-tp-heads.log", "--model", tmp_path)
    assert (code, done["causes"][0]["id"]) == (68, "heads-over-ranks")
    assert any("no DeepSeek model" in note for note in done["notes"])


def test_help_has_examples() -> None:
    done: Result = CliRunner().invoke(cli.cli, ["serve", "doctor", "--help"])
    assert "dspatch serve doctor server.log" in done.output
