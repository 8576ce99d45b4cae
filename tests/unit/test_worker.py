"""Workers: a request in, a result out, and nothing imported from where one stands."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from dspatch.engines import worker
from dspatch.errors import ProcessError

ECHOES = """
import json, os, pathlib, sys
asked = json.loads(pathlib.Path(sys.argv[1]).read_text())
said = {"said": asked["word"], "key": os.environ.get("KEY")}
pathlib.Path(asked["target"]).write_text(json.dumps(said))
"""


def package(folder: Path, code: str) -> Path:
    made = folder / "workers" / "echo_worker"
    made.mkdir(parents=True)
    (made / "__init__.py").touch()
    (made / "__main__.py").write_text(code)
    return made


def test_a_worker_answers_what_it_is_asked(tmp_path: Path) -> None:
    made = package(tmp_path, ECHOES)
    said = worker.ask(Path(sys.executable), made, {"word": "東京"}, env={"KEY": "k"}, timeout=60)
    assert said == {"said": "東京", "key": "k"}


def test_a_worker_imports_nothing_from_the_folder_one_stands_in(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    made = package(tmp_path, ECHOES)
    # As a checkout of vLLM holds a folder `vllm`, without what a wheel has compiled.
    (tmp_path / "json.py").write_text("raise SystemExit('the wrong one')")
    monkeypatch.chdir(tmp_path)
    assert worker.ask(Path(sys.executable), made, {"word": "a"})["said"] == "a"


def test_a_worker_that_fails_says_why(tmp_path: Path) -> None:
    made = package(tmp_path, "raise SystemExit('no such model')")
    with pytest.raises(ProcessError) as caught:
        worker.ask(Path(sys.executable), made, {})
    assert "no such model" in caught.value.why
