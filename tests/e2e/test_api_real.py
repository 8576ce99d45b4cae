"""vLLM's own server, started by `conformance --api` with the model whose words are known."""

from __future__ import annotations

import json
import urllib.error
import urllib.request
from pathlib import Path

import pytest

from dspatch.cli import main

pytestmark = pytest.mark.e2e

BOUNDS = ["--no-client", "--max-requests", "78"]


FORMAT = """
[chat.completion]
rename = { "choices.message.reasoning" = "reasoning_content" }
copy = { "usage.answer_tokens" = "usage.completion_tokens" }
drop = ["kv_transfer_params", "choices.token_ids"]

[chat.completion.chunk]
rename = { "choices.delta.reasoning" = "reasoning_content" }
add = { "system_fingerprint" = "acme-1" }
role = "every"
usage = "last"
empty-choices = false
finish-reason = "own"

[text_completion.chunk]
usage = "every"
"""


def dspatch(*words: str) -> object:
    with pytest.raises(SystemExit) as ended:
        main([*words])
    return ended.value.code


def test_the_server_of_a_job_answers_in_its_format_is_checked_and_stopped(
    capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    (tmp_path / "acme.toml").write_text(FORMAT)
    asked = ["--rev", "v0.32.0", "--output-format", str(tmp_path / "acme.toml")]
    assert dspatch("apply", *asked) == dspatch("build-wheel", *asked, "--without-extensions") == 0
    # The file is not needed any more: the job has all of it.
    (tmp_path / "acme.toml").unlink()
    capsys.readouterr()
    code = dspatch("conformance", "--api", "--json", *BOUNDS)
    report = json.loads(capsys.readouterr().out)["report"]
    found = {row["check"]: row for row in report["results"]}
    # Upstream's parsers of V3 and V3.1 lose calls in streams; those of V3.2 do not.
    assert code == 60
    assert {row["check"] for row in report["results"] if row["status"] == "fail"} == {
        "parser.reasoning.deepseek_r1",
        "parser.reasoning.deepseek_v3",
        "parser.tools.deepseek_v3",
        "parser.tools.deepseek_v31",
    }
    assert found["parser.tools.deepseek_v32"]["status"] == "pass"
    for name in ("format.whole", "format.streamed"):
        assert (found[name]["status"], "not shown" in found[name]["note"]) == ("pass", False), name
    assert found["stream.greedy"]["status"] == "pass"
    assert found["stream.characters"]["evidence"].startswith("1 streams")
    assert report["facts"]["requests"] == 78
    # It was here only, and it is gone.
    url = report["facts"]["url"]
    assert url.startswith("http://127.0.0.1:")
    with pytest.raises(urllib.error.URLError):
        urllib.request.urlopen(f"{url}/v1/models", timeout=5)
