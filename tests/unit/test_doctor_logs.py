"""Real logs, kept: each sick one gives its cause first, with the line that shows it; healthy ones give none."""

from __future__ import annotations

import gzip
import json
from pathlib import Path

import pytest

from tests import doctorkit

KEPT = doctorkit.kept()


@pytest.mark.parametrize("name", KEPT)
def test_the_first_cause_is_the_right_one(name: str) -> None:
    found, _ = doctorkit.examined(doctorkit.LOGS / f"{name}.log")
    first = found[0].cause.id if found else ""
    assert first == KEPT[name]["cause"], [(each.cause.id, each.match) for each in found]


def test_every_log_that_is_kept_is_named_and_the_other_way_round() -> None:
    assert {path.stem for path in doctorkit.LOGS.glob("*.log")} == set(KEPT)
    assert sum(bool(row["cause"]) for row in KEPT.values()) >= 20


def test_the_line_number_is_that_of_the_log() -> None:
    path = doctorkit.LOGS / "sick-mla-refused.log"
    found, _ = doctorkit.examined(path)
    assert found[0].match is not None
    line = path.read_text().splitlines()[found[0].match.hit.number - 1]
    assert line.endswith("NotImplementedError: MLA is not supported on CPU.")
    assert [each.cause.part for each in found] == ["cause", "symptom"]


def test_a_release_that_cannot_have_it_rules_a_finding_out() -> None:
    path = doctorkit.LOGS / "sick-mla-refused.log"
    found, dropped = doctorkit.examined(path, version="0.32.0")
    assert "vllm-cpu-mla-refused" not in [each.cause.id for each in found]
    assert [(each.cause.id, "0.10.0–0.27.1" in each.why) for each in dropped] == [
        ("vllm-cpu-mla-refused", True)
    ]


FORMS = {
    "colours": lambda line: f"\x1b[31m{line[:20]}\x1b[0m{line[20:]}\x1b[K",
    "windows": lambda line: f"{line}\r",
    "docker": lambda line: json.dumps({"log": f"{line}\n", "stream": "stderr", "time": "2026-11-30"}),
    "json-lines": lambda line: json.dumps({"level": "error", "ts": 1, "message": line}),
    "kubernetes": lambda line: f"2026-11-30T01:02:03.123456789Z stderr F {line}",
    "journald": lambda line: f"Nov 30 01:02:03 host vllm[206214]: {line}",
    "compose": lambda line: f"vllm-1  | {line}",
    "ray": lambda line: f"\x1b[36m(RayWorkerWrapper pid=5280, ip=10.0.0.1)\x1b[0m {line}",
    "junk": lambda line: f"\x00\x07{line}\x9f\ufffd",
}  # fmt: skip


@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("name", ["sick-mla-refused", "sick-v3-no-topk", "sick-tp-heads"])
def test_the_form_of_a_log_does_not_matter(form: str, name: str, tmp_path: Path) -> None:
    lines = (doctorkit.LOGS / f"{name}.log").read_text().splitlines()
    path = tmp_path / "server.log"
    path.write_bytes(b"".join(FORMS[form](line).encode() + b"\n" for line in lines))
    found, _ = doctorkit.examined(path)
    plain, _ = doctorkit.examined(doctorkit.LOGS / f"{name}.log")
    assert [each.cause.id for each in found] == [each.cause.id for each in plain]
    assert [each.match.hit.number for each in found if each.match] == [
        each.match.hit.number for each in plain if each.match
    ]


def test_a_packed_log_is_read_and_a_cut_one_as_far_as_it_goes(tmp_path: Path) -> None:
    text = (doctorkit.LOGS / "sick-mla-refused.log").read_bytes()
    path = tmp_path / "server.log.gz"
    path.write_bytes(gzip.compress(text))
    assert doctorkit.examined(path)[0][0].cause.id == "vllm-cpu-mla-refused"
    noise = b"".join(b"%d %x\n" % (n, hash((n, n))) for n in range(20000))
    path.write_bytes(gzip.compress(text + noise)[:-2000])
    done = doctorkit.read(path)
    assert done.cut
    assert done.matches[0].cause.id == "vllm-cpu-mla-refused"
