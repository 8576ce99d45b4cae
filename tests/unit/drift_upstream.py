"""A mini engine with every kind of symbol that a patch can use, and a patch that uses them."""

from __future__ import annotations

from tests.support import dedent

PLATFORM = dedent("""
    from mini.registry import Backend


    class Config:
        def __init__(self, heads, block_size=16):
            self.heads = heads
            self.block_size = block_size


    class Platform:
        name = "cpu"

        @classmethod
        def backend(cls, config: Config, use_mla: bool) -> str:
            chosen = Backend.CPU
            if use_mla:
                raise NotImplementedError("MLA is not supported.")
            return chosen.value
""")

UPSTREAM: dict[str, str] = {
    "mini/__init__.py": "",
    "mini/platform.py": PLATFORM,
    "mini/registry.py": dedent("""
        from enum import Enum

        LIMIT = 4096


        class Backend(Enum):
            CPU = "mini.backends.cpu.Attention"
            FLASH = "mini.backends.flash.Attention"

            def path(self) -> str:
                return self.value
    """),
    "mini/backends/__init__.py": dedent("""
        from mini.backends.abstract import Attention, Builder, Metadata
        from .kernels import decode, kernel

        __all__ = ["Attention", "Builder", "Metadata", "decode", "kernel"]
    """),
    "mini/backends/abstract.py": dedent("""
        from abc import ABC, abstractmethod
        from dataclasses import dataclass
        from typing import Generic, NamedTuple, TypeVar

        M = TypeVar("M")


        class Dims(NamedTuple):
            rank: int
            rope: int = 64


        @dataclass
        class Metadata:
            lengths: list[int]
            slots: list[int]
            causal: bool = True

            @property
            def total(self) -> int:
                return sum(self.lengths)


        class Base(ABC):
            dtypes = ["float"]

            def __init__(self, heads: int, scale: float, dims: Dims) -> None:
                self.heads = heads
                self.scale = scale
                self.dims = dims

            @abstractmethod
            def forward(self, q, cache, metadata: Metadata, layer=None): ...

            def expand(self, kv, pe):
                return kv + pe


        class Attention(Base, Generic[M]):
            def update(self, cache, slots):
                cache[slots] = 0

            @staticmethod
            def name() -> str:
                return "BASE"


        class Builder(Generic[M]):
            reorder = 1

            def build(self, prefix: int, metadata: Metadata, fast: bool = False): ...
    """),
    "mini/backends/kernels.py": dedent('''
        def decode(q, cache, lengths, scale=1.0, *, causal=True):
            """Attention."""
            return q


        def kernel(function):
            return function


        def split(metadata, threshold=1):
            return 0, 0
    '''),
    "mini/layers.py": dedent("""
        class Linear:
            def __init__(self):
                self.weight = None

            def forward(self, x):
                return x


        class MLA:
            def __init__(self, proj: Linear) -> None:
                self.proj = proj

            def load(self, weight):
                half = weight.transpose(0, 1)
                self.half = half
    """),
}

OURS: dict[str, str] = {
    "mini/backends/ours.py": dedent("""
        from dataclasses import dataclass

        from mini import registry
        from mini.backends import Attention, Builder, Metadata, decode, kernel
        from mini.backends.kernels import split
        from mini.platform import Config

        CHUNK = registry.LIMIT // 2


        @dataclass
        class OurMetadata(Metadata):
            groups: list[int] | None = None


        class OurBuilder(Builder[OurMetadata]):
            reorder = 2

            def build(self, prefix: int, metadata: Metadata, fast: bool = False):
                count = split(metadata, self.reorder)
                total = metadata.total
                return OurMetadata(metadata.lengths, slots=metadata.slots, groups=[count, total])


        class OurAttention(Attention[OurMetadata]):
            dtypes = ["float", "half"]

            def __init__(self, heads, scale, dims):
                super().__init__(heads, scale, dims)
                self.width = self.dims.rank + self.dims.rope

            def forward(self, q, cache, metadata: OurMetadata, layer=None):
                return decode(q, cache, metadata.lengths, self.scale, causal=metadata.causal)

            def update(self, cache, slots):
                self._own(self.expand(cache, slots))

            def _own(self, x):
                return sorted(x, key=self.expand)


        @kernel
        def run(config: Config) -> int:
            return config.heads * config.block_size
    """),
    "mini/platform.py": PLATFORM.replace(
        'raise NotImplementedError("MLA is not supported.")',
        "chosen = Backend.FLASH if config.block_size == 16 else chosen\n            return chosen.path()",
    ),
    "mini/registry.py": UPSTREAM["mini/registry.py"].replace(
        '    FLASH = "mini', '    OURS = "mini.backends.ours.OurAttention"\n    FLASH = "mini'
    ),
    "mini/layers.py": UPSTREAM["mini/layers.py"].replace(
        "self.half = half", "self.half = half.contiguous()\n        self.proj.weight = None"
    ),
}


class Tree:
    """Files by path, as what reads a tree asks for them."""

    def __init__(self, files: dict[str, str]) -> None:
        self.files = files
        self.asked: list[str] = []

    def read(self, path: str) -> bytes | None:
        self.asked.append(path)
        text = self.files.get(path)
        return None if text is None else text.encode()

    def changed(self, path: str, old: str, new: str) -> Tree:
        """The tree with one piece of one file replaced."""
        assert self.files[path].count(old) == 1, (path, old)
        return Tree({**self.files, path: self.files[path].replace(old, new)})


BEFORE = Tree(UPSTREAM)
AFTER = Tree({**UPSTREAM, **OURS})
