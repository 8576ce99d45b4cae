"""Every check of a server passes on a right one, and catches the server that breaks its rule."""

from __future__ import annotations

import pytest

from dspatch.conformance.api import checks, client, metrics, run
from dspatch.conformance.api.checks import load
from dspatch.conformance.report import Report
from dspatch.paths import PACKAGE
from tests.unit.apikit import asking, serving

BY_ID = {check.id: check for check in checks.ALL}

# The rule that a server breaks, and the check that must see it.
FAULTS = {
    "unlisted": "models.listed",
    "mute": "answers.plain",
    "no-done": "stream.form",
    "after-done": "stream.form",
    "bad-json": "stream.form",
    "id-changes": "stream.form",
    "no-role": "stream.form",
    "drops": "stream.greedy",
    "seeded-stream": "stream.seeded",
    "torn": "stream.characters",
    "ends-twice": "finish.once",
    "speaks-on": "finish.once",
    "never-length": "finish.reason",
    "one-more": "tokens.exact",
    "markers-split": "tokens.markers",
    "lowers": "tokens.markers",
    "prompt-miscounted": "tokens.markers",
    "total-off": "usage.adds",
    "no-usage": "usage.streamed",
    "usage-unasked": "usage.streamed",
    "thought-uncounted": "usage.reasoning",
    "positive": "logprobs.sound",
    "not-among": "logprobs.sound",
    "sums-above": "logprobs.sound",
    "logprob-streamed": "logprobs.streamed",
    "stop-leaks": "stop.exact",
    "stop-kept": "stop.exact",
    "seed-ignored": "seed.repeats",
    "n-ignored": "n.choices",
    "n-differs": "n.choices",
    "echo-ignored": "prompt.echo",
    "list-order": "prompt.forms",
    "think-leaks": "reasoning.split",
    "reasoning-lost": "reasoning.split",
    "arguments-lost": "tools.calls",
    "hides-length": "tools.cut",
    "cross-talk": "load.mixed",
    "goes-on": "abort.frees",
    "unknown-500": "unknown.field",
    "unknown-changes": "unknown.field",
    "unknown-garbled": "unknown.field",
    "wrong-500": "malformed.refused",
    "accepts-negative": "malformed.refused",
    "says-nothing": "malformed.refused",
    "crashes": "malformed.refused",
    "remembers": "malformed.alive",
}


def checked(url: str, *names: str, limit: int = 2000, timeout: float = 10) -> Report:
    with asking(url, limit=limit, timeout=timeout) as server:
        return run.check_server(server, chosen=[BY_ID[name] for name in names] or checks.ALL)


def test_a_right_server_passes_every_check_within_its_requests() -> None:
    with serving() as url, asking(url) as server:
        for check in checks.ALL:
            before = server.wire.count
            found = run.check_server(server, chosen=[check]).results[0]
            assert found.status == "pass", found
            assert server.wire.count - before <= check.requests, check.id


def test_a_server_that_hangs_up_after_a_refusal_is_asked_over_another_connection() -> None:
    with serving("hangs-up") as url:
        assert not checked(url).failures()


def test_every_check_has_a_fault_that_it_must_catch_and_a_line_in_the_guide() -> None:
    assert set(FAULTS.values()) == {check.id for check in checks.ALL}
    guide = (PACKAGE.parent / "docs" / "api-conformance.md").read_text()
    named = {*FAULTS.values(), *client.NAMES}
    assert [name for name in named if f"`{name}`" not in guide] == []


@pytest.mark.parametrize(("fault", "name"), FAULTS.items())
def test_a_broken_rule_is_caught_by_its_check(
    fault: str, name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(load, "PATIENCE", 0.5)
    names = ["malformed.refused", name] if name == "malformed.alive" else [name]
    with serving(fault) as url:
        found = {result.check: result for result in checked(url, *names).results}
    assert found[name].status == "fail", found[name]
    assert found[name].note


@pytest.mark.parametrize("fault", ["dies", "hangs"])
def test_a_server_that_stops_fails_one_check_and_leaves_the_rest_not_shown(fault: str) -> None:
    with serving(fault) as url:
        report = checked(url, timeout=0.5 if fault == "hangs" else 10)
    statuses = [result.status for result in report.results]
    assert statuses.count("fail") == 1
    died = statuses.index("fail")
    assert "stopped answering" in report.results[died].note
    assert set(statuses[died + 1 :]) == {"not-shown"}
    assert "pass" in statuses[:died]


def test_requests_beyond_the_limit_are_not_sent() -> None:
    with serving() as url:
        report = checked(url, limit=9)
    assert report.facts["requests"] == 9
    assert {r.status for r in report.results if "--max-requests" in r.note} == {"not-shown"}
    assert not report.failures()


@pytest.mark.parametrize(
    "text",
    [
        'vllm:num_requests_running{m="a"} 2\nvllm:gpu_cache_usage_perc{m="a"} 0.25\n',
        'lmdeploy:num_requests_running{m="a"} 2\nlmdeploy:gpu_cache_usage_perc{m="a"} 0.25\n',
        'sglang:num_running_reqs{m="a"} 1\nsglang:num_running_reqs{m="b"} 1\nsglang:token_usage 0.25\n',
    ],
)
def test_metrics_are_read_whatever_engine_gives_them(text: str) -> None:
    load = metrics.parsed(f"# HELP x y\n{text}")
    assert (load.running, load.cache, load.generated) == (2, 0.25, None)


def test_a_page_that_is_no_metrics_tells_nothing() -> None:
    load = metrics.parsed("<script>\nvar x = 1\nnot here\n</script>")
    assert (load.running, load.cache, load.generated) == (None, None, None)
