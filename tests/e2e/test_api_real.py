"""vLLM's own server, started by `conformance --api` with the model whose words are known."""

from __future__ import annotations

import json
import urllib.error
import urllib.request

import pytest

from dspatch import pins
from dspatch.cli import main
from dspatch.engines.environment import for_wheel
from dspatch.index import download

pytestmark = pytest.mark.e2e

BOUNDS = ["--no-client", "--max-requests", "60"]


def test_the_server_of_an_installed_vllm_is_checked_and_stopped(
    capsys: pytest.CaptureFixture[str],
) -> None:
    base = pins.base_for(pins.load("vllm", "v0.32.0"), "cpu")
    python = for_wheel("vllm", download(base.project, base.filename, base.sha256)).python
    with pytest.raises(SystemExit) as ended:
        main(["conformance", "--api", "--env", str(python), "--json", *BOUNDS])
    report = json.loads(capsys.readouterr().out)["report"]
    found = {row["check"]: row for row in report["results"]}
    # Upstream's parsers of V3 and V3.1 lose calls in streams; those of V3.2 do not.
    assert ended.value.code == 60
    assert {row["check"] for row in report["results"] if row["status"] == "fail"} == {
        "parser.reasoning.deepseek_r1",
        "parser.reasoning.deepseek_v3",
        "parser.tools.deepseek_v3",
        "parser.tools.deepseek_v31",
    }
    assert found["parser.tools.deepseek_v32"]["status"] == "pass"
    assert found["stream.greedy"]["status"] == "pass"
    assert found["stream.characters"]["evidence"].startswith("1 streams")
    assert report["facts"]["requests"] == 60
    # It was here only, and it is gone.
    url = report["facts"]["url"]
    assert url.startswith("http://127.0.0.1:")
    with pytest.raises(urllib.error.URLError):
        urllib.request.urlopen(f"{url}/v1/models", timeout=5)
