"""Every signature on its own line and on healthy logs; what is malformed is refused with file and line."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from dspatch.errors import PatchFormatError
from dspatch.serve.doctor import cause, recognise, scan
from tests import doctorkit
from tests.support import dedent

PLACE = re.compile(r"\{\w+\}")
SIGNATURES = doctorkit.signatures()
CAUSE = dedent(r"""
    id = "port-taken"
    title = "Another process listens on the port"
    what = "The address is taken."
    fix = "take another one than {port}"
    confirm = "ss -ltnp"

    [[signature]]
    regex = 'address already in use: (?P<port>\d{1,5})'
    line = 'OSError: address already in use: 8000'
    seen = "run: a server"
""")
SIGNATURE = CAUSE[CAUSE.index("[[signature]]") :]


def test_there_are_many_for_both_engines() -> None:
    of_findings = {each.engines[0] for each, _ in SIGNATURES if each.finding}
    assert of_findings == {"vllm", "lmdeploy"}
    assert len(SIGNATURES) >= 100
    assert len({each.id for each, _ in SIGNATURES}) >= 80


@pytest.mark.parametrize(
    ("each", "signature"), SIGNATURES, ids=lambda one: getattr(one, "id", one.__class__.__name__)
)
def test_its_line_is_found_by_the_whole_pipeline(
    each: cause.Cause, signature: object, tmp_path: Path
) -> None:
    one = next(s for s in each.signatures if s is signature)
    log = tmp_path / "server.log"
    log.write_text(f"INFO starting\n{one.near_line}\n{one.line}\nINFO end\n")
    found = {match.cause.id: match.hit.number for match in doctorkit.read(log).matches}
    assert found[each.id] == 3


@pytest.mark.parametrize("name", [name for name in doctorkit.kept() if name.startswith("healthy")])
def test_no_signature_matches_a_healthy_log(name: str) -> None:
    text = (doctorkit.LOGS / f"{name}.log").read_bytes()
    found = [hit.text for hit in scan.scanned(text, [one for _, one in SIGNATURES])]
    assert found == []


def test_a_signature_of_a_healthy_line_would_be_caught(tmp_path: Path) -> None:
    path = tmp_path / "port-taken.toml"
    path.write_text(
        CAUSE.replace("already in use: (?P<port>\\d{1,5})", "startup (?P<port>comp)")
        .replace("already in use: 8000", "startup complete. address startup comp")
    )  # fmt: skip
    planted = cause.load(path).signatures[0]
    text = (doctorkit.LOGS / "healthy-v3-32.log").read_bytes() + b"address startup complete\n"
    assert scan.scanned(text, [planted])


@pytest.mark.parametrize(
    ("old", "new", "told"),
    [
        (r"\d{1,5}", r"\d+", "without a bound"),
        (r"(?P<port>\d{1,5})", r"(?P<port>(?:\d{1,5}){1,9})", "repeats what repeats"),
        (r"(?P<port>\d{1,5})", r"\w{1,300}\w{1,300}(?P<port>\d{1,5})", "steps from one place"),
        (r"address already in use: (?P<port>\d{1,5})", r"(?P<port>\d{4})", "plain letters"),
        (r"use: (?P", r"use = (?P", "does not match its own line"),
        (r"(?P<port>\d", r"(?P<port\d", "no regular expression"),
        ('seen = "run: a server"', 'seen = "somewhere"', "`seen` must be"),
        ("{port}", "{host}", "`{host}` is no group"),
        ('id = "port-taken"', 'id = "other"', "the file's name"),
        ('what = "The', 'whatt = "The', "unknown key `whatt`"),
        ('confirm = "ss -ltnp"', 'confirm = "ss"\ncheck = "moon"', "`check` must be one of"),
        (SIGNATURE, "signature = [1]\n", "`signature` must be tables, written"),
        ('confirm = "ss -ltnp"', 'confirm = "ss"\nengines = ["moon"]', "no engine that dspatch"),
    ],
)
def test_what_is_malformed_is_told_with_its_place(
    tmp_path: Path, old: str, new: str, told: str
) -> None:
    path = tmp_path / "port-taken.toml"
    path.write_text(CAUSE)
    assert cause.load(path).id == "port-taken"
    assert old in CAUSE
    path.write_text(CAUSE.replace(old, new))
    with pytest.raises(PatchFormatError) as caught:
        cause.load(path)
    assert told in caught.value.what
    assert f"{path}, line " in caught.value.what


def test_ids_are_unique_and_facts_of_logs_are_read() -> None:
    ids = [each.id for each in doctorkit.known()]
    assert len(ids) == len(set(ids))
    assert {each.name for each in recognise.patterns()} >= {"version", "engine", "model", "device"}


def test_groups_are_filled_in_and_other_braces_stay() -> None:
    json = """--speculative-config '{"method": "mtp"}'"""
    assert (
        cause.filled(f"take {{port}}, {{host}}: {json}", {"port": "1"}) == f"take 1, HOST: {json}"
    )


def test_the_words_of_every_cause_can_be_shown() -> None:
    for each in doctorkit.known():
        for words in (each.fix, each.confirm):
            assert not PLACE.search(cause.filled(words, {})), each.id
