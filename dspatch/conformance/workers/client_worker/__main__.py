"""Usage: python -m client_worker REQUEST.json, with this package's parent folder on PYTHONPATH.

The request names the `url`, the `model`, the `timeout` of a request in seconds, the `budget` of
requests, the `operations` and `examples` of the described part, and the `target`, which gets a list of
`check`, `evidence`, `wrong` and `skipped`. The key is in DSPATCH_API_KEY, where there is one.
"""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

from . import OFFICIAL


def main(request: Path) -> None:
    """Run everything that the budget allows."""
    from . import official

    asked = json.loads(request.read_text())
    key = os.environ.get("DSPATCH_API_KEY") or "none"
    client = official.connected(asked, key)
    budget, found = asked["budget"], []
    for name, cost in OFFICIAL.items():
        look: Callable[..., tuple[str, str]] = getattr(official, name)
        rule = (look.__doc__ or "").partition("\n")[0].rstrip(".")
        if cost > budget:
            row = {"skipped": "no requests are left; --max-requests allows more", "requests": 0}
        else:
            budget -= cost
            row = {**_looked(partial(look, client, asked["model"])), "requests": cost}
        found.append({"check": f"client.{name}", "what": rule, **row})
    found.append(_described({**asked, "budget": budget - 1}, key))
    Path(asked["target"]).write_text(json.dumps(found, indent=1) + "\n")


def _looked(look: Callable[[], tuple[str, str]]) -> dict[str, Any]:
    import openai

    try:
        evidence, wrong = look()
    except openai.APIStatusError as error:
        if error.status_code < 500:
            return {"skipped": f"the server refused a plain request: {error.status_code}"}
        return {"evidence": "", "wrong": f"{type(error).__name__}: {error}"}
    except Exception as error:
        return {"evidence": "", "wrong": f"the client raised {type(error).__name__}: {error}"}
    return {"evidence": evidence, "wrong": wrong}


def _described(asked: dict[str, Any], key: str) -> dict[str, Any]:
    from . import described

    rule = "Requests drawn from the server's own description give no 5xx"
    row: dict[str, Any] = {"check": "schema.drawn", "what": rule, "requests": 0}
    try:
        evidence, wrong, count = described.tried(asked, key)
    except Exception as error:
        return {
            **row,
            "skipped": f"no description could be read: {type(error).__name__}: {str(error)[:120]}",
        }
    if evidence.startswith("0 "):
        return {**row, "skipped": f"nothing was drawn: {evidence}", "requests": count}
    return {**row, "evidence": evidence, "wrong": wrong, "requests": count}


if __name__ == "__main__":
    main(Path(sys.argv[1]))
