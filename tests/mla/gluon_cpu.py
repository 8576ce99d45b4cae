"""Gluon enough to run seesaw.py on a CPU: numpy for tensors, a thread for each of its warp roles.

Copies land late and in any order, barriers count arrivals and bytes as
the hardware's do, and a role that waits for what never comes is an error, not a hang. Layouts,
instruction shapes and what the compiler does with them are left out, and so is the overlap of
asynchronous products.
"""

from __future__ import annotations

import random
import sys
import threading
import types
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import numpy as np

from benchmarks.alone import stand_in

PATIENCE = 10.0
# Addresses that were asked to be fetched into the L2, as (buffer, elements).
announced: list[tuple[Any, Any]] = []
_draw = random.Random(0)


class Tensor:
    """Numbers, of any shape; what operators and methods the kernels use."""

    def __init__(self, value: Any) -> None:
        value = value.value if isinstance(value, Tensor) else value
        self.value = np.asarray(value, np.float32 if isinstance(value, float) else None)

    def to(self, dtype: Any) -> Tensor:
        """The same numbers in another type."""
        return Tensor(self.value.astype(dtype))

    def __getitem__(self, key: Any) -> Tensor:
        return Tensor(self.value[key])

    def __index__(self) -> int:
        return int(self.value)

    def __bool__(self) -> bool:
        return bool(self.value)


def _operator(name: str) -> None:
    def apply(self: Tensor, other: Any) -> Any:
        if isinstance(other, Pointer):
            return NotImplemented
        with np.errstate(over="ignore", invalid="ignore"):
            return Tensor(getattr(np, name)(self.value, Tensor(other).value))

    def reflected(self: Tensor, other: Any) -> Any:
        with np.errstate(over="ignore", invalid="ignore"):
            return Tensor(getattr(np, name)(Tensor(other).value, self.value))

    python = {"subtract": "sub", "multiply": "mul", "floor_divide": "floordiv", "remainder": "mod"}
    python |= {"true_divide": "truediv", "less": "lt", "greater": "gt", "equal": "eq"}
    python |= {"not_equal": "ne", "bitwise_and": "and", "bitwise_or": "or", "bitwise_xor": "xor"}
    setattr(Tensor, f"__{python.get(name, name)}__", apply)
    setattr(Tensor, f"__r{python.get(name, name)}__", reflected)


for _name in ["add", "subtract", "multiply", "floor_divide", "remainder", "true_divide", "less", "greater",
              "equal", "not_equal", "bitwise_and", "bitwise_or", "bitwise_xor"]:  # fmt: skip
    _operator(_name)


class Pointer:
    """A place, or a tensor of places, in a flat buffer."""

    def __init__(self, buffer: Any, at: Any = 0) -> None:
        self.buffer, self.at = buffer, Tensor(at).value
        self.dtype = types.SimpleNamespace(element_ty=buffer.dtype)

    def __add__(self, other: Any) -> Pointer:
        return Pointer(self.buffer, self.at + Tensor(other).value)

    def __getitem__(self, key: Any) -> Pointer:
        return Pointer(self.buffer, self.at[key])


class Shared:
    """A view of shared memory."""

    def __init__(self, array: Any) -> None:
        self.array, self.shape, self.dtype = array, array.shape, array.dtype

    def index(self, place: Any) -> Any:
        """One of its first dimension."""
        found = self.array[int(place)]
        return found[0] if isinstance(found[0], Barrier) else Shared(found)

    def slice(self, start: int, length: int, dim: int = 0) -> Shared:
        """Part of a dimension."""
        return Shared(self.array[(slice(None),) * dim + (slice(start, start + length),)])

    def permute(self, order: Sequence[int]) -> Shared:
        """Dimensions in another order."""
        return Shared(self.array.transpose(order))

    def load(self, _layout: Any) -> Tensor:
        """What is there now."""
        return Tensor(self.array.copy())

    def store(self, values: Tensor) -> None:
        """Put values there."""
        assert values.value.dtype == self.dtype
        self.array[...] = values.value


class Barrier:
    """An mbarrier: a phase ends when all have arrived and all bytes have come."""

    def __init__(self) -> None:
        self.ready = threading.Condition()
        self.phase = self.count = self.pending = self.bytes = 0

    def change(self, arrivals: int = 0, expected: int = 0) -> None:
        """So many arrived, and so many more bytes (or fewer) are to come."""
        with self.ready:
            self.pending -= arrivals
            self.bytes += expected
            assert self.pending >= 0, "more arrivals than the barrier counts"
            if self.pending == 0 and self.bytes == 0:
                self.phase ^= 1
                self.pending = self.count
                self.ready.notify_all()

    def wait(self, parity: Any) -> None:
        """Wait until the phase of that parity is over."""
        with self.ready:
            if not self.ready.wait_for(lambda: self.phase != int(parity), PATIENCE):
                raise TimeoutError("a role waits for what never comes")


class Descriptor:
    """Rows of a matrix, to fetch boxes of."""

    def __init__(self, array: Any, box: Sequence[int]) -> None:
        self.array, self.box, self.dtype = array, tuple(box), array.dtype

    @classmethod
    def from_tensor(cls, tensor: Any, box: Sequence[int], _layout: Any) -> Descriptor:
        """Of a torch tensor."""
        return cls(tensor.numpy(), box)


def _init(barrier: Barrier, count: int) -> None:
    barrier.count = barrier.pending = count


def _arrive(barrier: Barrier, count: int = 1, pred: Any = True) -> None:
    if bool(pred):
        barrier.change(arrivals=count)


def _copy(boxes: Descriptor, at: Sequence[Any], barrier: Barrier, target: Shared) -> None:
    row, column = (int(number) for number in at)
    assert target.shape == boxes.box, "a box goes to a place of another shape"
    target.array[...] = np.nan  # until it has come

    def land() -> None:
        found = boxes.array[row : row + boxes.box[0], column : column + boxes.box[1]]
        target.array[...] = 0
        target.array[: len(found)] = found
        barrier.change(expected=-target.array.nbytes)

    threading.Timer(_draw.random() / 500, land).start()


def _mma(a: Any, b: Shared, total: Tensor, *, is_async: bool) -> Tensor:
    assert is_async
    left = a.array if isinstance(a, Shared) else a.value
    with np.errstate(invalid="ignore"):
        return Tensor(total.value + left.astype(np.float32) @ b.array.astype(np.float32))


def _wait(_outstanding: int, deps: Sequence[Tensor]) -> Any:
    return deps[0] if len(deps) == 1 else tuple(deps)


def _load(at: Pointer, mask: Any = True, other: Any = 0) -> Tensor:
    mask = np.broadcast_to(Tensor(mask).value, at.at.shape)
    safe = np.where(mask, at.at, 0)
    assert safe.size == 0 or (safe.min() >= 0 and safe.max() < len(at.buffer)), "read out of bounds"
    return Tensor(np.where(mask, at.buffer[safe], np.asarray(other, at.buffer.dtype)))


def _store(at: Pointer, values: Tensor, mask: Any = True) -> None:
    mask = np.broadcast_to(Tensor(mask).value, at.at.shape)
    at.buffer[at.at[mask]] = np.broadcast_to(values.value, at.at.shape)[mask].astype(
        at.buffer.dtype
    )


def _assembly(text: str, _constraints: str, arguments: Sequence[Any], **_: Any) -> None:
    if "prefetch" in text:
        announced.append((arguments[0].buffer, arguments[0].at))


def _specialize(roles: Sequence[Any], *_: Any) -> None:
    faults: list[BaseException] = []

    def run(function: Callable[..., None], arguments: Sequence[Any]) -> None:
        try:
            function(*arguments)
        except BaseException as error:
            faults.append(error)

    threads = [threading.Thread(target=run, args=role) for role in roles]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    if faults:
        raise faults[0]


def _shared_memory(kind: Any, shape: Sequence[int], _layout: Any) -> Shared:
    array = np.empty(shape, object if kind is np.int64 else kind)
    if kind is np.int64:
        array[...] = [[Barrier()] for _ in range(len(array))]
    else:
        array[...] = np.nan
    return Shared(array)


class Kernel:
    """A function of the kernels; with a grid, its programs one after the other."""

    place = (0, 0)

    def __init__(self, function: Callable[..., Any]) -> None:
        self._function = function
        function.__globals__["range"] = _range

    def __call__(self, *arguments: Any) -> Any:
        """Call it from another."""
        return self._function(*arguments)

    def __getitem__(self, grid: Sequence[int]) -> Callable[..., None]:
        """Launch it."""

        def launch(*arguments: Any, num_warps: int, **sizes: Any) -> None:
            assert num_warps == 4
            made = [
                Pointer(a.view(-1).numpy()) if hasattr(a, "numpy")
                else a if isinstance(a, Descriptor) else Tensor(a)
                for a in arguments
            ]  # fmt: skip
            for worker in range(grid[1]):
                for block in range(grid[0]):
                    Kernel.place = (block, worker)
                    self._function(*made, **sizes)

        return launch


def _range(*ends: Any) -> Iterator[Tensor]:
    return (Tensor(number) for number in range(*(int(end) for end in ends)))


def _reduced(name: str) -> Callable[[Tensor, int], Tensor]:
    return lambda values, axis: Tensor(getattr(np, name)(values.value, axis))


def _plain(name: str) -> Callable[..., Tensor]:
    return lambda *values: Tensor(getattr(np, name)(*(Tensor(v).value for v in values)))


def _nothing(*_: Any, **__: Any) -> None:
    pass


def _language() -> dict[str, Any]:
    layouts = ("NVMMASharedLayout", "NVMMADistributedLayout", "SliceLayout", "DotOperandLayout",
               "BlockedLayout", "SwizzledSharedLayout", "DistributedLinearLayout")  # fmt: skip
    plain = ("maximum", "minimum", "where", "exp2", "log2", "abs", "zeros_like")
    return {
        **dict.fromkeys(layouts, _nothing),
        **{name: _plain(name) for name in plain},
        "constexpr": lambda value: value,
        "int32": np.int32, "int64": np.int64, "float32": np.float32,
        "static_range": range, "static_assert": _nothing,
        "arange": lambda begin, end, layout: Tensor(np.arange(begin, end)),
        "zeros": lambda shape, kind, layout: Tensor(np.zeros(shape, kind)),
        "full": lambda shape, value, kind, layout: Tensor(np.full(shape, value, kind)),
        "max": _reduced("max"), "sum": _reduced("sum"),
        "convert_layout": lambda values, layout: values,
        "program_id": lambda axis: Tensor(Kernel.place[axis]),
        "load": _load, "store": _store, "inline_asm_elementwise": _assembly,
        "allocate_shared_memory": _shared_memory, "warp_specialize": _specialize,
    }  # fmt: skip


@contextmanager
def in_place_of_gluon() -> Iterator[None]:
    """What is imported meanwhile takes this for Triton's Gluon."""
    before = dict(sys.modules)
    _install()
    yield
    for name in [name for name in sys.modules if name.startswith("triton.experimental")]:
        del sys.modules[name]
    sys.modules.update({n: m for n, m in before.items() if n.startswith("triton.experimental")})


def _install() -> None:
    names = types.SimpleNamespace
    language = names(**_language())
    barrier = names(
        init=_init, arrive=_arrive, wait=Barrier.wait, MBarrierLayout=_nothing,
        expect=lambda barrier, count: barrier.change(arrivals=1, expected=count),
    )  # fmt: skip
    gluon = names(jit=Kernel, constexpr_function=lambda function: _nothing)
    root = "triton.experimental.gluon"
    stand_in("triton.experimental", gluon=gluon)
    stand_in(root, language=language)
    stand_in(f"{root}.language", **vars(language))
    stand_in(f"{root}.language.nvidia")
    stand_in(
        f"{root}.language.nvidia.hopper",
        fence_async_shared=_nothing, mbarrier=barrier, warpgroup_mma=_mma, warpgroup_mma_wait=_wait,
        tma=names(async_copy_global_to_shared=_copy),
    )  # fmt: skip
    stand_in(f"{root}.nvidia")
    stand_in(f"{root}.nvidia.hopper", TensorDescriptor=Descriptor)
