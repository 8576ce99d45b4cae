"""What the workers of both engines share, run with PyTorch and without an engine."""

from __future__ import annotations

import pytest

from dspatch import paths, process
from dspatch.conformance import oracle

pytestmark = pytest.mark.e2e

RECORDED = """
import torch
from states import recorded
class Records:
    def __init__(self):
        self.states, self.forwards = {}, []
class Layer(torch.nn.Module):
    def forward(self, one, rest=None):
        return one if rest is None else (one, rest)
def seen(name, *given):
    records, layer = Records(), Layer()
    with recorded(layer, records, name):
        layer(*given)
    layer(*given)
    [value] = records.states[name]
    return value, records.forwards
one, rest = (torch.randn(5, 4).bfloat16() for _ in range(2))
whole, forwards = seen("layer.3", one, rest)
assert torch.equal(whole, one.float() + rest.float()) and forwards == []
assert not torch.equal(whole, (one + rest).float()), "added in float32"
assert torch.equal(seen("layer.0", one[None])[0], one), "a batch of one is no dimension of rows"
final, forwards = seen("final", one, rest)
assert torch.equal(final, one) and forwards == [5], "a norm gives the stream beside its result"
one.zero_()
assert final.any(), "a copy: engines write to their buffers again"
print("held")
"""

LED = """
import torch, passkeys
from asking import UnaskableError
lookup = {"prompt": [5, 6, 7, 8], "answer": [1, 2], "read": {"far": [2], "near": [1, 3]}}
found = passkeys.leads(lookup, lambda place, token: place + token / 10, [3.0, -1.0])
told = {name: value.tolist() for name, value in found.items()}
assert told == {
    "passkey|far.lead": [2.7], "passkey|near.lead": [1.6, 3.8], "passkey|generated.lead": [3.0, -1.0],
    "passkey|length": [4],
}, told
assert passkeys.asked({"lookup": lookup}) is lookup
try:
    passkeys.asked({"lookup": {}})
except UnaskableError as error:
    assert "look nothing up" in str(error)
else:
    raise AssertionError("nothing is looked up")
print("held")
"""


@pytest.mark.parametrize("script", [RECORDED, LED])
def test_one_place_serves_both_workers(script: str) -> None:
    workers = str(paths.PACKAGE / "engines" / "workers")
    python = str(oracle.ensure().python)
    done = process.run([python, "-c", script], env={"PYTHONPATH": workers})
    assert done.stdout.strip() == "held"
