"""Record what vLLM computes inside, operation by operation, at the positions that the oracle kept."""

from __future__ import annotations

import inspect
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

from .observe import positions_of, routing

# Operations by the modules, below a decoder layer, that may hold them; who has none stays unobserved.
OUTPUTS = {
    "input_norm": ("input_layernorm",),
    "q_a": ("self_attn.q_a_proj",),
    "q_a_norm": ("self_attn.q_a_layernorm",),
    "query": ("self_attn.q_b_proj", "self_attn.q_proj"),
    "kv_a": ("self_attn.kv_a_proj_with_mqa",),
    "kv_a_norm": ("self_attn.kv_a_layernorm",),
    "o_proj": ("self_attn.o_proj",),
    "post_norm": ("post_attention_layernorm",),
    "gate": ("mlp.gate",),
    "shared_expert": ("mlp.shared_experts",),
    "mlp": ("mlp",),
}
READ = ("kv_a_norm",)  # what attention reads of every position; beside it the rotated key
FUSED = "self_attn.fused_qkv_a_proj"
ROTARY = ("self_attn.rotary_emb", "self_attn.mla_attn.rotary_emb")


class Rows:
    """Which row of which prompt a token is that a pass has at a position, wherever in a batch it stands.

    While one prompt runs by itself it is that `alone`; else what any other text has there, too, is nobody's.
    """

    def __init__(self) -> None:
        self.alone = ""
        self.known: dict[tuple[int, int], dict[str, int]] = {}
        self.texts: Counter[tuple[int, int]] = Counter()

    def add(self, prompt: str, ids: list[int], rows: list[int]) -> None:
        """Know a text, and the positions that are kept of it."""
        self.texts.update(enumerate(ids))
        for number, position in enumerate(rows):
            self.known.setdefault((position, ids[position]), {})[prompt] = number

    def find(self, pair: tuple[int, int]) -> tuple[str, int] | None:
        """The prompt, and the number of its row, of a position and a token."""
        rows = self.known.get(pair, {})
        if self.alone:
            return (self.alone, rows[self.alone]) if self.alone in rows else None
        return next(iter(rows.items())) if rows and self.texts[pair] == 1 else None


class Kept:
    """Rows of tensors by name, at some positions of every prompt; `seen` are those that were run.

    Where texts share passes, a row that is met twice is `doubted`: another text went on like this one there.
    """

    def __init__(self) -> None:
        self.rows = Rows()
        self.seen: dict[str, list[bool]] = {}
        self.doubted: set[tuple[str, int]] = set()
        self.parts: dict[str, list[tuple[list[tuple[str, int]], Any]]] = {}
        self.targets: list[tuple[str, int]] = []
        self.index: list[int] = []

    def add(self, prompt: str, ids: list[int], rows: list[int]) -> None:
        """Know a text, and the positions that are kept of it."""
        self.seen[prompt] = [False] * len(rows)
        self.rows.add(prompt, ids, rows)

    def begin(self, pairs: list[tuple[int, int]]) -> None:
        """A pass with these positions and tokens starts: find the rows to keep."""
        found = [(number, self.rows.find(pair)) for number, pair in enumerate(pairs)]
        self.index = [number for number, target in found if target is not None]
        self.targets = [target for _, target in found if target is not None]
        for prompt, row in self.targets:
            if self.seen[prompt][row] and not self.rows.alone:
                self.doubted.add((prompt, row))
            self.seen[prompt][row] = True

    def known(self, prompt: str) -> list[bool]:
        """Which rows of a prompt were run, and are no other's."""
        each = enumerate(self.seen[prompt])
        return [was and (prompt, number) not in self.doubted for number, was in each]

    def take(self, name: str, value: Any) -> None:
        """Keep the rows of one tensor, (tokens, ...), of this pass."""
        if self.index:
            rows = value.detach()[self.index].flatten(1).cpu()
            self.parts.setdefault(name, []).append((self.targets, rows))

    def joined(self, prompt: str, name: str) -> dict[int, Any]:
        """The rows of a prompt that went through the name, by number; none that is doubted."""
        rows: dict[int, Any] = {}
        for targets, values in self.parts[name]:
            pairs = zip(targets, values, strict=True)
            rows |= {n: value for (of, n), value in pairs if of == prompt}
        return {n: value for n, value in rows.items() if (prompt, n) not in self.doubted}


class Places:
    """Rows of tensors by operation, for every prompt, at the positions that the oracle kept.

    In less than float32 also what attention reads of all positions before them: each operation is held
    there against what is right for the engine's own input to it.
    """

    def __init__(self, golden: Path, prompts: Mapping[str, Any]) -> None:
        from safetensors import safe_open

        self.kept, self.context = Kept(), Kept()
        with safe_open(golden, "pt") as file:
            for prompt in prompts:
                ids, rows = (file.get_tensor(f"{prompt}.{key}").tolist() for key in ("ids", "rows"))
                self.kept.add(prompt, ids, rows)
                self.context.add(prompt, ids, list(range(len(ids) - 1)))
        self.tokens: Any = None
        self.embedded: Any = None
        self.layer = 0
        self.taken: set[str] = set()

    def alone(self, prompt: str) -> None:
        """While one prompt runs by itself, whatever runs is that."""
        self.kept.rows.alone = self.context.rows.alone = prompt

    def begin(self, positions: Any) -> None:
        """A forward pass starts: find the rows to keep."""
        self.taken = set()
        alike = getattr(self.tokens, "shape", None) == positions.shape
        pairs = list(zip(positions.tolist(), self.tokens.tolist(), strict=True)) if alike else []
        self.kept.begin(pairs)
        self.context.begin(pairs)
        self.take("embed", self.embedded)

    def take(self, name: str, value: Any) -> None:
        """Keep the rows of one operation's result, (tokens, ...), the first time in a pass.

        Whatever is of another form is left, so that the operation stays unobserved.
        """
        if name not in self.taken and self._fits(value):
            self.taken.add(name)
            self.kept.take(name, value)

    def here(self, name: str, value: Any) -> None:
        """Keep the rows of an operation of the layer that is running."""
        self.take(f"{self.layer}.{name}", value)

    def read(self, name: str, value: Any) -> None:
        """Keep all positions of what this layer's attention reads, in the engine's own dtype."""
        name = f"{self.layer}.{name}"
        narrow = str(getattr(value, "dtype", "")) in ("torch.bfloat16", "torch.float16")
        if narrow and f"context.{name}" not in self.taken and self._fits(value):
            self.taken.add(f"context.{name}")
            self.context.take(name, value)

    def _fits(self, value: Any) -> bool:
        return bool(self.kept.index or self.context.index) and (
            getattr(value, "shape", ())[:1] == self.tokens.shape[:1]
        )

    def joined(self, sparse_layers: list[int]) -> dict[str, Any]:
        """`PROMPT.seen` (rows,), `PROMPT.place.OPERATION` (rows, width) of whole operations, and what attention read.

        That is `PROMPT.context.N.NAME` (positions, width), NaN where a position was not run.
        """
        import torch

        out: dict[str, Any] = {}
        for prompt in self.kept.seen:
            out[f"{prompt}.seen"] = torch.tensor(self.kept.known(prompt), dtype=torch.uint8)
            own = {name: self._whole(prompt, name) for name in self.kept.parts}
            whole = {name: value for name, value in own.items() if value is not None}
            _take_shared_out(whole, sparse_layers)
            out |= {f"{prompt}.place.{name}": value for name, value in whole.items()}
            for name in self.context.parts:
                if rows := self.context.joined(prompt, name):
                    every = _filled(rows, len(self.context.seen[prompt]))
                    out[f"{prompt}.context.{name}"] = every
        return out

    def _whole(self, prompt: str, name: str) -> Any:
        """The rows of a prompt; `None` where a pass did not go through the operation."""
        rows, seen = self.kept.joined(prompt, name), self.kept.known(prompt)
        if not rows or {number for number, was in enumerate(seen) if was} != rows.keys():
            return None
        return _filled(rows, len(seen)).float()


def _filled(rows: Mapping[int, Any], count: int) -> Any:
    """As many rows, NaN where there is none."""
    import torch

    empty = torch.full_like(next(iter(rows.values())), float("nan"))
    return torch.stack([rows.get(number, empty) for number in range(count)])


def _take_shared_out(whole: dict[str, Any], sparse_layers: list[int]) -> None:
    """What the routed experts add is what the shared one leaves of the whole."""
    for layer in sparse_layers:
        both, shared = whole.pop(f"{layer}.mlp", None), whole.get(f"{layer}.shared_expert")
        if both is not None and shared is not None:
            whole[f"{layer}.experts"] = both - shared


@contextmanager
def watching(model: Any, request: Mapping[str, Any]) -> Iterator[Places | None]:
    """Watch the forward passes of the block; nothing without golden results to compare with."""
    if request["golden"] is None:
        yield None
        return
    places = Places(Path(request["golden"]), request["prompts"])
    with ExitStack() as stack:
        for handle in _hooked(model, places, request["config"]):
            stack.enter_context(handle)
        stack.enter_context(routing(model, _router(places, request["config"])))
        yield places


def _hooked(model: Any, places: Places, config: Mapping[str, Any]) -> Iterator[Any]:
    if (module := _find(model, ("model.embed_tokens",))) is not None:
        yield module.register_forward_hook(_embedded(places), with_kwargs=True)
    if (module := _find(model, ("model.norm",))) is not None:
        ended = _ended(places, len(model.model.layers))
        yield module.register_forward_pre_hook(ended, with_kwargs=True)
        yield module.register_forward_hook(
            lambda module, args, output: places.take("final_norm", _first(output))
        )
    # A rotary module may serve all layers; it is hooked once, and the layer is known when it runs.
    rotary: dict[int, Any] = {}
    for number, layer in enumerate(model.model.layers):
        yield layer.register_forward_pre_hook(_entered(places, number), with_kwargs=True)
        for name, paths in OUTPUTS.items():
            if (module := _find(layer, paths)) is not None:
                yield module.register_forward_hook(_output(places, name))
        if (fused := _find(layer, (FUSED,))) is not None:
            yield fused.register_forward_hook(_split(places, config["q_lora_rank"]))
        if (module := _find(layer, ("self_attn.o_proj",))) is not None:
            yield module.register_forward_pre_hook(_before(places), with_kwargs=True)
        if (module := _find(layer, ROTARY)) is not None:
            rotary[id(module)] = module
    for module in rotary.values():
        yield module.register_forward_hook(_rotated(places))


def _find(layer: Any, paths: tuple[str, ...]) -> Any:
    """The first of these modules that the layer has."""
    for path in paths:
        found = layer
        for name in path.split("."):
            found = getattr(found, name, None)
        if hasattr(found, "register_forward_hook"):
            return found
    return None


def _first(output: Any) -> Any:
    return output[0] if isinstance(output, tuple) else output


def _input(args: Any, kwargs: Any) -> Any:
    return args[0] if args else next(iter(kwargs.values()), None)


def _embedded(places: Places) -> Callable[..., None]:
    def hook(module: Any, args: Any, kwargs: Any, output: Any) -> None:
        places.tokens, places.embedded = _input(args, kwargs), output

    return hook


def _entered(places: Places, number: int) -> Callable[..., None]:
    def hook(module: Any, args: Any, kwargs: Any) -> None:
        places.layer = number
        if number == 0:
            places.begin(positions_of(args, kwargs))
        bound = inspect.signature(module.forward).bind(*args, **kwargs).arguments
        places.here("input", _stream(bound.get("hidden_states"), bound.get("residual")))

    return hook


def _ended(places: Places, layers: int) -> Callable[..., None]:
    """What the last norm reads is what the layer behind the last one would."""
    return lambda module, args, kwargs: places.take(
        f"{layers}.input", _stream(*[*args, *kwargs.values()][:2])
    )


def _stream(hidden: Any = None, residual: Any = None) -> Any:
    """The whole stream, from what the layer before adds to it and the rest; in float32, so that we do not round it."""
    return hidden if residual is None else hidden.float() + residual.float()


def _output(places: Places, name: str) -> Callable[..., None]:
    def hook(module: Any, args: Any, output: Any) -> None:
        places.here(name, _first(output))
        if name in READ:
            places.read(name, _first(output))

    return hook


def _before(places: Places) -> Callable[..., None]:
    return lambda module, args, kwargs: places.here("attention", _input(args, kwargs))


def _split(places: Places, rank: int) -> Callable[..., None]:
    def hook(module: Any, args: Any, output: Any) -> None:
        both = _first(output)
        if not hasattr(both, "shape"):
            return
        places.here("q_a", both[..., :rank])
        places.here("kv_a", both[..., rank:])

    return hook


def _rotated(places: Places) -> Callable[..., None]:
    def hook(module: Any, args: Any, output: Any) -> None:
        import torch

        parts = output if isinstance(output, tuple) else (output,)
        turned = [part.flatten(1) for part in parts if hasattr(part, "flatten")]
        if len({len(part) for part in turned}) == 1:
            places.here("rope", torch.cat(turned, -1))
            places.read("key", turned[-1])

    return hook


def _router(places: Places, config: Mapping[str, Any]) -> Callable[[Any, Any], tuple[Any, Any]]:
    def note(weights: Any, ids: Any) -> tuple[Any, Any]:
        import torch

        if ids.dim() != 2 or not ids.numel():
            return weights, ids
        width = max(config["n_routed_experts"], int(ids.max()) + 1)
        dense = torch.zeros(ids.shape[0], width, dtype=torch.float32, device=ids.device)
        places.here("router", dense.scatter(1, ids.long(), weights.float()))
        return weights, ids

    return note
