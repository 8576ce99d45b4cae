"""Logs of every kind and size, read in one pass: no line is lost, none is slow, no secret is shown."""

from __future__ import annotations

import io
import random
import string
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dspatch.audit import linear
from dspatch.errors import EmptyLogError, LogError
from dspatch.serve.doctor import lines, reading, scan
from dspatch.serve.doctor.lines import BLOCK, Log
from dspatch.serve.doctor.redact import HIDDEN, redacted
from tests import doctorkit

LAST = b"NotImplementedError: MLA is not supported on CPU.\n"


class Endless(io.RawIOBase):
    """A log of so many bytes that is made while it is read; `most` is the largest piece asked for."""

    def __init__(self, size: int, filler: bytes) -> None:
        self.left, self.filler, self.most = size, filler, 0

    def read(self, size: int = -1) -> bytes:
        assert size > 0
        self.most = max(self.most, size)
        if self.left <= 0:
            return b""
        give = (self.filler * (size // len(self.filler) + 1))[: min(size, self.left)]
        self.left -= size
        return give if self.left > 0 else give + b"\n" + LAST


@pytest.mark.parametrize("filler", [b"INFO 11-30 all is well\n", b"x"], ids=["lines", "one line"])
def test_a_large_log_is_read_in_blocks_that_do_not_grow(filler: bytes) -> None:
    stream = Endless(32 * BLOCK, filler)
    log = Log(name="large", stream=stream)  # type: ignore[arg-type]
    largest = 0
    sizes = []
    for block in log.blocks():
        sizes.append(len(block.data))
        largest = max(largest, len(block.data))
    assert sum(sizes) >= 32 * BLOCK
    assert largest <= 2 * BLOCK + len(LAST)
    assert stream.most == BLOCK


def test_the_number_of_the_line_holds_behind_a_large_log(tmp_path: Path) -> None:
    path = tmp_path / "server.log"
    with path.open("wb") as out:
        for _ in range(3):
            out.write(b"INFO 11-30 all is well\n" * 50_000)
        out.write(LAST)
    done = doctorkit.read(path)
    assert (done.matches[0].hit.number, done.lines) == (150_001, 150_001)


@given(
    st.lists(st.binary(max_size=40).map(lambda b: b.replace(b"\n", b"")), max_size=30), st.data()
)
def test_blocks_hold_every_byte_and_every_line(rows: list[bytes], data: st.DataObject) -> None:
    text = b"\n".join(rows)
    log = Log(name="any", stream=io.BytesIO(text))
    if not text:
        with pytest.raises(EmptyLogError):
            list(log.blocks())
        return
    plain = text.removeprefix(b"\xef\xbb\xbf")
    got = b"".join(block.data for block in log.blocks())
    assert got == plain or b"\x1b" in text
    assert log.lines == text.count(b"\n") + (not text.endswith(b"\n"))


@given(st.binary(max_size=3000))
def test_any_bytes_are_read_without_an_error(text: bytes) -> None:
    log = Log(name="any", stream=io.BytesIO(b"INFO\n" + text))
    done = reading.read(log, doctorkit.known())
    assert done.bytes == len(text) + 5


def test_lines_made_against_the_expressions_cost_no_more_than_others() -> None:
    """The work is bounded by construction; here every expression meets lines full of its own letters."""
    for _, one in doctorkit.signatures():
        assert not list(linear.faults(one.regex.pattern, "it"))
        hostile = (one.line[:-1] * (lines.LONGEST // len(one.line) + 1))[: lines.LONGEST]
        for text in (
            hostile,
            one.needle.decode() + "a" * 8000,
            one.needle.decode() * 300 + " " * 4000,
        ):
            scan.scanned(text.encode(), [one])


@pytest.mark.parametrize(
    "pattern", ["(a+)+b12345", "a*b12345", "(?:a{1,20}){1,20}b12345", ".{0,301}b12345"]
)
def test_an_expression_without_a_bound_is_refused(pattern: str) -> None:
    assert list(linear.faults(pattern, "it"))


def test_needles_stand_in_what_matches_and_survive_json() -> None:
    assert (
        linear.needle(r"KeyError: '[\w.]{0,9}e_score_correction_bias'") == "e_score_correction_bias"
    )
    assert linear.needle(r"(?:abcdefgh|ijklmnop)xyz12345") == "xyz12345"
    assert linear.needle(r"Required: (?P<n>\d{1,9}) > limits") == "Required"
    for _, one in doctorkit.signatures():
        assert one.needle.decode() in one.line


@pytest.mark.parametrize(
    "secret",
    [
        "hf_AbCdEfGhIjKlMnOpQrStUvWxYz012345", "sk-proj-abcdefghijklmnop1234", "ghp_abcdefghijklmnop1234",
        "Authorization: Bearer abc.def-123456", "authorization: Basic dXNlcjpwYXNz", "--api-key s3cr3t-value",
        "'api_key': ['s3cr3t-value']", "api_key='s3cr3t-value'", "HF_TOKEN=s3cr3tvalue", "password: s3cr3t-value",
        "https://user:s3cr3t-value@host/x", "AKIAIOSFODNN7EXAMPLE", "HUGGING_FACE_HUB_TOKEN='s3cr3t-value'",
        "eyJhbGciOiJIUzI1NiJ9.eyJzdWIiOiIxIn0.abcdefgh", "https://b.s3/x?X-Amz-Signature=0123abcd",
    ],
)  # fmt: skip
def test_no_secret_is_shown(secret: str) -> None:
    told = redacted(f"ERROR 11-30 request failed {secret} end")
    assert HIDDEN in told
    assert told.startswith("ERROR 11-30 request failed")
    assert told.endswith(" end")
    for word in ("s3cr3t", "AbCdEf", "abcdefgh", "dXNlcj", "IOSFODNN", "0123abcd", "def-123456"):
        assert word not in told


@pytest.mark.parametrize(
    "text",
    [
        "max_num_batched_tokens=8192, tokenizer='deepseek-ai/DeepSeek-V3', skip_tokenizer_init=False",
        "ValueError: To serve at least one request with the model's max seq len (5000)",
        "num_tokens: 128, bos_token_id=0, api_key=None, special tokens: <bos>",
    ],
)
def test_what_is_no_secret_stays(text: str) -> None:
    assert redacted(text) == text


@given(st.text(alphabet=string.ascii_letters + string.digits, min_size=20, max_size=40))
def test_any_token_of_the_hub_is_hidden(token: str) -> None:
    assert token not in redacted(f"using token hf_{token} for {random.Random(0).random()}")


def test_a_folder_nothing_and_zstd_are_told(tmp_path: Path) -> None:
    zst = tmp_path / "server.log.zst"
    zst.write_bytes(b"\x28\xb5\x2f\xfd0000")
    for given_path, told in ((tmp_path, "a folder"), (tmp_path / "no", "no log"), (zst, "zstd")):
        with pytest.raises(LogError, match=told), lines.opened(str(given_path)):
            pass
