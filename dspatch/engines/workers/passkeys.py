"""What a model whose weights look things up is asked, and by how much its right tokens led.

For the workers of engines, beside which it lies: they import it as `passkeys`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from typing import Any

from asking import UnaskableError


def asked(request: Mapping[str, Any]) -> Mapping[str, Any]:
    """The prompt, its answer and the places where it is read. Raises `UnaskableError` where nothing is looked up."""
    found: Mapping[str, Any] = request["lookup"]
    if not found:
        raise UnaskableError("the weights of this model look nothing up")
    return found


def leads(
    lookup: Mapping[str, Any], at: Callable[[int, int], float], generated: Iterable[float]
) -> dict[str, Any]:
    """`passkey|NAME.lead` (tokens,), logits, and `passkey|length` (1,).

    All questions but the last stand answered in the prompt: `at` gives the lead of a token at its place there. The
    last is answered by generating.
    """
    import torch

    prompt = lookup["prompt"]
    rows = {name: [at(p, prompt[p]) for p in places] for name, places in lookup["read"].items()}
    rows["generated"] = list(generated)
    found = {
        f"passkey|{name}.lead": torch.tensor(row, dtype=torch.float64) for name, row in rows.items()
    }
    return {**found, "passkey|length": torch.tensor([len(prompt)])}
