"""What an engine cannot be asked, as against what breaks when it is.

For the workers of engines, beside which it lies: they import it as `asking`.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from kept import Kept, cause, clock


class UnaskableError(Exception):
    """An engine, a release or a model that has not what a run looks at, or a fault changes; says why."""


def probed(kept: Kept, name: str, run: Callable[[], Mapping[str, Any]]) -> None:
    """Keep what a run that asks one thing gives.

    Of one that this engine cannot be asked the reason is kept under `unprobed`, of one that broke the error under
    `broken`: its checks fail, and the others are still asked.
    """
    try:
        with clock(kept.facts["seconds"], name):
            kept.part(name, run())
    except UnaskableError as error:
        kept.facts["unprobed"][name] = str(error)
    except Exception as error:
        kept.facts["broken"][name] = cause(error)
