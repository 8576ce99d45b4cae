"""How every measured kernel of MLA decode is called: DeepSeek's dims, its scale, the page, and what a call gives."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

LATENT, ROPE, PAGE = 512, 64, 64
SCALE = (128 + ROPE) ** -0.5

# Output and log-sum-exp.
Call = Callable[[], tuple[Any, Any]]
