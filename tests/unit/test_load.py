"""Two servers differ only where every round says so, and by more than one server differs from itself."""

from __future__ import annotations

import itertools
import json
import random
from pathlib import Path
from typing import Any

import pytest

from dspatch.bench import generator, page, rounds
from dspatch.bench.generator import Load
from dspatch.bench.rounds import METRICS, Round
from dspatch.console import Console
from dspatch.errors import LoadError
from dspatch.stages import load, show_load
from dspatch.stages.load import Wanted


def made(*levels: float, errors: int = 0) -> tuple[Round, ...]:
    return tuple(
        Round(completed=9, errors=errors, values=dict.fromkeys(METRICS, level)) for level in levels
    )


def verdict(subject: tuple[Round, ...], peer: tuple[Round, ...], metric: str = "ttft p50") -> str:
    return rounds.compare(subject, peer, metric).verdict


def test_a_planted_slowdown_is_seen_and_noise_is_not() -> None:
    peer = made(10.0, 10.4, 9.8)
    assert verdict(made(13.0, 12.9, 13.3), peer) == "worse"
    assert verdict(made(7.0, 7.1, 7.2), peer) == "better"
    assert verdict(made(13.0, 12.9, 13.3), peer, "output tokens") == "better"
    assert verdict(made(10.2, 10.1, 10.0), peer) == "no difference seen"
    # All pairs say slower, but two rounds of one server are as far apart.
    assert verdict(made(11, 13, 15), made(10, 12, 14)) == "no difference seen"
    # One pair says the contrary.
    assert verdict(made(13, 13, 9), made(10, 10, 10)) == "no difference seen"


def test_a_server_held_against_itself_is_no_different() -> None:
    dice = random.Random(3)
    found = [
        verdict(
            made(*(dice.gauss(100, 8) for _ in range(5))),
            made(*(dice.gauss(100, 8) for _ in range(5))),
        )
        for _ in range(200)
    ]
    # Five pairs agree by chance in one of sixteen; to be past the spread, too, is rare.
    assert found.count("no difference seen") >= 196


def test_turns_change_who_begins() -> None:
    assert rounds.turns(3, ["a", "b"]) == ["a", "b", "b", "a", "a", "b"]
    with pytest.raises(ValueError, match="zip"):
        rounds.compare(made(1, 2), made(1), "ttft p50")
    assert rounds.compare(made(0, 0), made(0, 0), "ttft p50").verdict == "no difference seen"


def report(**changes: Any) -> dict[str, Any]:
    one = {"successful": {"mean": 5.0, "percentiles": {"p50": 2.0, "p99": 3.0}}}
    metrics = {group: one for group, _ in generator.PLACES.values()}
    totals = {"successful": 4, "errored": 1, "incomplete": 0}
    return {"benchmarks": [{"metrics": metrics, "request_totals": totals, **changes}]}


def test_a_round_is_read_from_the_report(tmp_path: Path) -> None:
    path = tmp_path / "guidellm.json"
    path.write_text(json.dumps(report()))
    found = generator.read(path)
    assert (found.completed, found.errors) == (4, 1)
    assert found.values["ttft p99"] == 3.0
    assert found.values["output tokens"] == 5.0
    assert set(found.values) == set(METRICS)
    path.write_text(json.dumps(report(request_totals={"successful": 0, "errored": 3})))
    assert generator.read(path) == Round(completed=0, errors=3, values={})


@pytest.mark.parametrize(
    "text", ["", "[]", "{}", '{"benchmarks": []}', json.dumps(report(metrics={})), "\x00"]
)
def test_a_report_that_is_none(tmp_path: Path, text: str) -> None:
    path = tmp_path / "guidellm.json"
    path.write_text(text)
    with pytest.raises(LoadError, match="cannot be read"):
        generator.read(path)
    with pytest.raises(LoadError, match="cannot be read"):
        generator.read(tmp_path / "nowhere")


def test_what_is_asked_of_guidellm(tmp_path: Path) -> None:
    asked = Load(requests=7, concurrency=3, prompt_tokens=11, output_tokens=5)
    words = list(
        map(str, generator.command(tmp_path / "python", "http://127.0.0.1:1", tmp_path, asked, tmp_path))
    )  # fmt: skip
    assert words[0] == str(tmp_path / "guidellm")
    pairs = dict(itertools.pairwise(words))
    assert (pairs["--max-requests"], pairs["--rate"], pairs["--rate-type"]) == (
        "7",
        "3",
        "concurrent",
    )
    assert json.loads(pairs["--data"]) == {"prompt_tokens": 11, "output_tokens": 5}


def whole(tmp_path: Path, subject: tuple[Round, ...], peer: tuple[Round, ...]) -> load.Loaded:
    names = {"subject": "vllm <1>", "peer": "vllm 2"}
    wanted = Wanted(load=Load(), rounds=len(subject))
    return load._whole(names, wanted, {"subject": subject, "peer": peer}, tmp_path)


def test_the_comparison_is_told_and_written(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    done = whole(tmp_path, made(13, 14, 15), made(10, 10, 10))
    show_load.told(done, Console())
    assert "worse" in capsys.readouterr().out
    show_load.told(done, Console(as_json=True))
    told = json.loads(capsys.readouterr().out)
    assert told == json.loads(done.files[0].read_text())
    html = done.files[1].read_text()
    assert "vllm &lt;1&gt;" in html
    assert "worse: ttft p50" in html
    assert html.count("<svg") == len(METRICS)
    assert "http" not in html.replace("http-equiv", "")


def test_a_peer_that_measured_nothing_is_text_in_json(tmp_path: Path) -> None:
    done = whole(tmp_path, made(13, 14), made(0, 0))
    told = json.loads(done.files[0].read_text(), parse_constant=pytest.fail)
    assert {one["ratio"] for one in told["compared"]} == {"inf"}


def test_failed_requests_are_an_error_behind_the_result(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    done = whole(tmp_path, made(1, 1, errors=2), made(1, 1))
    with pytest.raises(LoadError, match="4 requests failed"):
        show_load.told(done, Console(as_json=True))
    assert json.loads(capsys.readouterr().out)["errors"] == 4
    lost = (Round(completed=0, errors=9, values={}),) * 2
    with pytest.raises(LoadError, match="18 requests failed"):
        show_load.told(whole(tmp_path, lost, made(1, 1)), Console())


def test_marks_stand_within_the_chart() -> None:
    bars = page.Bars(title="t", note="", bars=(page.Bar(label="a", value=2, text="2", high=4),))
    assert page.LEFT <= bars.at(0) < bars.at(2) < bars.at(4) <= page.WIDTH
    line = page.Line(title="t", note="", unit="u", points=((0, 5.0), (1, 5.0)))
    for point in line.points:
        x, y = line.place(point)
        assert 0 <= x <= page.WIDTH
        assert 0 <= y <= page.TALL
    none = page.Bars(title="", note="", bars=())
    empty = page.Page(title="t", verdict="v", ok=True, about="", bars=(none,))
    assert "</html>" in page.as_html(empty)
