"""`tolerance.toml` written: a row for each check, dtype and device, in the order of the checks."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path

from dspatch.conformance.checks import CHECKS
from dspatch.conformance.tolerance import Key, Tolerance
from dspatch.files import write_atomically

HEADER = """\
# What each check accepts, per dtype and device. `value` is the limit, in `unit`; `noise` is the largest
# value seen without a fault; `fault` is the smallest value that a planted fault gave to the check that
# it names. A row without `value` was measured, and no limit tells the two apart: there the check shows
# nothing. A check, dtype and device that are not here fail: nobody has measured them.
# Measured on vLLM with `dspatch bench calibrate`, which writes this file.
"""


def text(rows: Mapping[Key, Tolerance]) -> str:
    """The whole file."""
    order = {name: place for place, name in enumerate(CHECKS)}
    keys = sorted(rows, key=lambda key: (order.get(key[0], len(order)), _dtype(key[1]), key))
    return HEADER + "".join(_row(key, rows[key]) for key in keys)


def write(path: Path, rows: Mapping[Key, Tolerance]) -> None:
    """Write the file in one step."""
    write_atomically(path, text(rows).encode())


def _dtype(name: str) -> tuple[bool, str]:
    return name != "float32", name


def _row(key: Key, row: Tolerance) -> str:
    check, dtype, device = key
    value = "" if row.value is None else f"value = {_number(row.value)}\n"
    return (
        f'\n["{check}".{dtype}.{device}]\n{value}unit = {_text(row.unit)}\n'
        f"noise = {_number(row.noise)}\nfault = {_number(row.fault)}\n"
        f"reason = {_text(row.reason)}\ndate = {row.date}\n"
    )


def _text(value: str) -> str:
    # JSON's strings are TOML's, but for characters that JSON writes as two halves.
    return json.dumps(value, ensure_ascii=False)


def _number(value: float) -> str:
    if float(value).is_integer() and abs(value) < 1e6:
        return str(int(value))
    return f"{value:.2g}"
