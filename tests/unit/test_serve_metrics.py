"""Metrics and variables read from small sources, and dashboards and rules held against them."""

from __future__ import annotations

import json
import warnings
from pathlib import Path

import pytest

from dspatch.audit import source
from dspatch.audit.source import Source
from dspatch.errors import ServeFlagsError, ServeWordsError
from dspatch.serve import engines, environment, metrics, queries
from dspatch.serve.answers import Answer
from dspatch.serve.known import Known
from dspatch.serve.metrics import Exported
from dspatch.serve.verdict import Judge, Verdict
from tests.support import dedent

FACTS = engines.facts("vllm")
LOGGERS = '''
    """A docstring may say vllm:num_requests_running."""
    import prometheus_client

    RENAMED = "vllm:constant_seconds"

    class Names:
        LOADED = "vllm:loaded_bytes"

    KINDS = {Names.LOADED: CounterMetadata("bytes")}
    OTHER = {"vllm:num_requests_running": "the short name"}

    class Logger:
        _gauge_cls = prometheus_client.Gauge

        def __init__(self, config):
            self.running = self._gauge_cls(name="vllm:num_requests_running", documentation="x")
            self.queries = self._counter_cls(name="vllm:cache_queries", documentation="x")
            self.total = prometheus_client.Counter("vllm:tokens_total", "x")
            self.time = Histogram(name="vllm:ttft_seconds", documentation="DEPRECATED: use another")
            self.info = prometheus_client.Info(name="vllm:cache_config", documentation="x")
            histogram = self._histogram_cls(name=RENAMED)
            if self.show_hidden_metrics:
                self.old = self._gauge_cls(name="vllm:old_usage", documentation="x")
            if name == "vllm:compared":
                pass

        def more(self):
            specs = [("vllm:drafts", "x"), ("vllm:accepted", "x")]
            return [self._counter_cls(name=name, documentation=doc) for name, doc in specs]

        def information(self):
            name = None
            if self.kind:
                name = "vllm:cache_usage_info"
            return self._gauge_cls(name=name, documentation="x")

        def other(self, name):
            return self._counter_cls(name=name, documentation="another name of the same spelling")

        def unknown(self, registry):
            registry.make("vllm:of_some_kind")
'''
ENVS = """
    import os
    from vllm.helpers import env_with_choices

    environment_variables = {
        "VLLM_PLAIN": lambda: os.getenv("VLLM_PLAIN"),
        "VLLM_SWITCH": lambda: bool(int(os.getenv("VLLM_SWITCH", "0"))),
        "VLLM_LEVEL": env_with_choices("VLLM_LEVEL", "a", ["a", "b"], case_sensitive=False),
        "MAX_JOBS": lambda: os.getenv("MAX_JOBS"),
    }
    IGNORED = {"VLLM_NEVER_READ"}
"""
ELSEWHERE = """
    import os
    if "VLLM_ASKED" in os.environ or os.environ["VLLM_TAKEN"] or os.environ.get("OTHERS"):
        os.environ.setdefault("VLLM_SET", "1")
"""


def opened(folder: Path, **files: str) -> Source:
    names = {
        "loggers": "vllm/v1/metrics/loggers.py", "envs": "vllm/envs.py", "elsewhere": "vllm/env_override.py",
    }  # fmt: skip
    for name, text in files.items():
        path = folder / names[name]
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(dedent(text))
    return source.of_folder("vllm", folder, version="1.0", kind="folder", origin="", package="vllm")


@pytest.fixture
def exported(tmp_path: Path) -> Exported:
    return metrics.read(opened(tmp_path / "engine", loggers=LOGGERS), FACTS)


def test_every_metric_is_found_with_its_kind(exported: Exported) -> None:
    assert exported.whole
    assert {name: each.kind for name, each in exported.metrics.items()} == {
        "vllm:num_requests_running": "gauge", "vllm:cache_queries": "counter", "vllm:tokens": "counter",
        "vllm:ttft_seconds": "histogram", "vllm:cache_config": "info", "vllm:old_usage": "gauge",
        "vllm:cache_usage_info": "gauge",
        "vllm:constant_seconds": "histogram", "vllm:loaded_bytes": "counter",
        "vllm:drafts": "counter", "vllm:accepted": "counter", "vllm:of_some_kind": "",
    }  # fmt: skip
    assert [each.name for each in exported.metrics.values() if each.hidden] == ["vllm:old_usage"]
    assert [n for n, each in exported.metrics.items() if each.deprecated] == ["vllm:ttft_seconds"]


def test_samples_are_what_prometheus_client_exports(exported: Exported) -> None:
    assert {"vllm:tokens_total", "vllm:cache_config_info", "vllm:ttft_seconds_bucket"} <= set(
        exported.samples
    )
    assert not {"vllm:tokens", "vllm:cache_queries", "vllm:ttft_seconds"} & set(exported.samples)


@pytest.mark.parametrize(
    ("engine", "there"),
    [("class LLMEngine: pass", True), ("LLMEngine = Other", False), ("", False), ("x = (", True)],
)
def test_a_file_of_an_engine_that_is_gone_does_not_count(
    tmp_path: Path, engine: str, there: bool
) -> None:
    place = opened(tmp_path, loggers=LOGGERS)
    folder = tmp_path / "vllm" / "engine"
    folder.mkdir()
    (folder / "metrics.py").write_text('Gauge(name="vllm:of_the_old_engine")')
    (folder / "llm_engine.py").write_text(engine)
    assert ("vllm:of_the_old_engine" in metrics.read(place, FACTS).metrics) is there


def test_a_file_that_cannot_be_parsed_is_told(tmp_path: Path) -> None:
    assert not metrics.read(opened(tmp_path / "a", loggers="x = ("), FACTS).whole
    assert not metrics.read(opened(tmp_path / "b", envs=ENVS), FACTS).whole
    assert not environment.read(opened(tmp_path / "c", envs="x = ("), FACTS).whole
    assert not environment.read(opened(tmp_path / "d", loggers=LOGGERS), FACTS).whole


def test_a_release_of_which_a_file_cannot_be_parsed_is_not_recorded(tmp_path: Path) -> None:
    from dspatch.stages.serveranges import names

    assert not list(names(opened(tmp_path / "a", envs=ENVS), FACTS)["metrics"])
    assert list(names(opened(tmp_path / "b", envs=ENVS, loggers=LOGGERS), FACTS)["metrics"])
    with pytest.raises(ServeFlagsError, match=r"not all of vllm 1\.0 could be read"):
        names(opened(tmp_path / "c", envs=ENVS, loggers="x = ("), FACTS)


def test_a_file_nested_too_deeply_is_told_and_faults_of_style_are_not(tmp_path: Path) -> None:
    deep, shabby = f"x = {'-' * 100_000}1", 'x = "\\d"\n'
    assert not metrics.read(opened(tmp_path / "a", loggers=deep), FACTS).whole
    assert not environment.read(opened(tmp_path / "b", envs=deep), FACTS).whole
    with warnings.catch_warnings(action="error"):
        assert metrics.read(opened(tmp_path / "c", loggers=shabby + dedent(LOGGERS)), FACTS).whole
        assert environment.read(opened(tmp_path / "d", envs=shabby + dedent(ENVS)), FACTS).whole


def test_variables_of_the_table_and_of_other_files(tmp_path: Path) -> None:
    found = environment.read(opened(tmp_path, envs=ENVS, elsewhere=ELSEWHERE), FACTS)
    assert found.whole
    assert set(found.variables) == {
        "VLLM_PLAIN", "VLLM_SWITCH", "VLLM_LEVEL", "MAX_JOBS", "VLLM_ASKED", "VLLM_TAKEN", "VLLM_SET",
    }  # fmt: skip
    assert found.variables["VLLM_SWITCH"].type == "int"
    level = found.variables["VLLM_LEVEL"]
    assert (level.choices, level.folded) == (("a", "b"), True)
    assert found.variables["VLLM_ASKED"].place == "vllm/env_override.py:2"


def test_other_files_are_read_only_for_names_that_the_table_lacks(tmp_path: Path) -> None:
    place = opened(tmp_path, envs=ENVS, elsewhere=ELSEWHERE)
    assert set(environment.read(place, FACTS, ["VLLM_PLAIN", "HOME"]).variables) == {
        "VLLM_PLAIN", "VLLM_SWITCH", "VLLM_LEVEL", "MAX_JOBS",
    }  # fmt: skip
    assert "VLLM_SET" in environment.read(place, FACTS, ["VLLM_SET"]).variables


BOARD = {
    "title": "vllm:a_title",
    "panels": [
        {"title": "Load", "targets": [{"expr": 'sum(vllm:num_requests_running{job="x"})'}]},
        {"title": "Rate", "targets": [{"expr": "rate(vllm:tokens[5m]) / rate(vllm:tokens_total[5m])"}]},
        {"title": "TTFT", "targets": [{"expr": "vllm:ttft_seconds", "legendFormat": "{{le}}"}]},
        {"title": "p99", "targets": [{"expr": "histogram_quantile(.99, vllm:ttft_seconds_bucket)"}]},
        {"title": "Old", "targets": [{"expr": "vllm:old_usage"}]},
        {"title": "Gone", "targets": [{"expr": "vllm:gone_total + vllm:gone_total"}]},
        {"title": "Never", "targets": [{"expr": "vllm:never_was"}]},
        {"title": "Var", "targets": [{"expr": "vllm:num_${what} or vllm:${all}"}]},
        {"title": "Re", "targets": [{"expr": '{__name__=~"vllm:nothing.*"}'}]},
    ],
    "templating": {"list": [{"query": "label_values(vllm:cache_config_info, model)"}]},
}  # fmt: skip
RULES = """
    groups:
    - rules:
      - record: vllm:requests:sum
        expr: sum(vllm:num_requests_running)
      - alert: Full
        expr: vllm:gone_total > 1 and vllm:requests:sum > 2  # not vllm:in_a_comment
"""
JUDGE = Judge(
    known=Known(releases=("0.1", "0.2"), names={"metrics": {"vllm:gone_total": "0.1"}}),
    answers={
        "vllm:gone_total": Answer(
            names=("vllm:gone_total",),
            fate="renamed",
            say="renamed",
            instead=("vllm:tokens_total",),
        )
    },
    version="0.2",
)


def judged(tmp_path: Path, exported: Exported, name: str, text: str) -> dict[str, Verdict]:
    path = tmp_path / name
    path.write_text(text)
    asked = queries.of_files([path], FACTS)
    return {each.word: each for each in queries.verdicts(asked, exported, FACTS, JUDGE)}


def test_a_dashboard_has_a_verdict_of_every_kind(tmp_path: Path, exported: Exported) -> None:
    found = judged(tmp_path, exported, "board.json", json.dumps(BOARD))
    assert {word: each.state for word, each in found.items()} == {
        "vllm:num_requests_running": "known", "vllm:tokens": "wrong", "vllm:tokens_total": "known",
        "vllm:ttft_seconds": "wrong", "vllm:ttft_seconds_bucket": "deprecated", "vllm:old_usage": "wrong",
        "vllm:gone_total": "unknown", "vllm:never_was": "unknown", "vllm:num_${what": "known",
        "vllm:${all": "known", "vllm:nothing.*": "unknown", "vllm:cache_config_info": "known",
    }  # fmt: skip
    assert found["vllm:tokens"].instead == ("vllm:tokens_total", "vllm:tokens_created")
    assert found["vllm:gone_total"].instead == ("vllm:tokens_total",)
    assert found["vllm:gone_total"].exists == "in 0.1"
    assert found["vllm:never_was"].exists == "in no release"
    assert found["vllm:num_requests_running"].place.endswith("board.json: Load")


def test_rules_are_searched_line_by_line(tmp_path: Path, exported: Exported) -> None:
    found = judged(tmp_path, exported, "rules.yaml", dedent(RULES))
    assert {word: each.state for word, each in found.items()} == {
        "vllm:requests:sum": "known", "vllm:num_requests_running": "known", "vllm:gone_total": "unknown",
    }  # fmt: skip
    assert found["vllm:gone_total"].place.endswith("rules.yaml:6")


def test_absence_means_nothing_where_a_file_was_not_read(
    tmp_path: Path, exported: Exported
) -> None:
    blind = Exported(metrics=exported.metrics, unread=("a file",))
    found = judged(tmp_path, blind, "board.json", json.dumps(BOARD))
    assert found["vllm:never_was"].state == "undecided"
    assert found["vllm:num_requests_running"].state == "known"


@pytest.mark.parametrize("content", [b"{ not json", b"\xff\xfe"])
def test_a_file_that_is_none_is_refused(tmp_path: Path, content: bytes) -> None:
    path = tmp_path / "board.json"
    path.write_bytes(content)
    with pytest.raises(ServeWordsError):
        queries.of_files([path], FACTS)
