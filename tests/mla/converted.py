"""Every number of e4m3 through the kernels' conversion; import it where mla_decode can be imported."""

import torch
import triton
import triton.language as tl
from mla_decode import e4m3


@triton.jit
def _read(pairs, even, odd, NATIVE: tl.constexpr):
    at = tl.arange(0, 128)
    both = tl.load(pairs + at)
    tl.store(even + at, e4m3.half(both, False, NATIVE))
    tl.store(odd + at, e4m3.half(both, True, NATIVE))


def faults(device: str, *, native: bool) -> list[int]:
    """Bytes that are not read as what they are; NaN without NATIVE counts as 480."""
    numbers = torch.arange(256, dtype=torch.uint8, device=device)
    even, odd = torch.zeros(2, 128, dtype=torch.float16, device=device)
    _read[(1,)](numbers.view(torch.int16), even, odd, native)
    got = torch.stack([even, odd], 1).flatten().float() * (1 if native else 256)
    want = numbers.view(torch.float8_e4m3fn).float()
    if not native:
        want[127], want[255] = 480, -480
    same = (got == want) | (got.isnan() & want.isnan())
    return [int(number) for number in numbers[~same]]
