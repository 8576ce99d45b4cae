"""An engine in a process of its own, asked by lines of JSON: both ends of the line."""

from __future__ import annotations

import contextlib
import json
import os
import random
import subprocess
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

MARK = "@"  # begins a line that is an answer; all others belong to the log
ROW = 576 * 2  # bytes of a token and layer in the latent cache


class Child:
    """The parent's end. What else the process says goes to a log, or without one to where errors go."""

    def __init__(
        self, name: str, command: Sequence[str], extra: Mapping[str, str], log: Path | None = None
    ) -> None:
        self.name = name
        self.log = os.fdopen(os.dup(2), "w") if log is None else log.open("w")
        self.process = subprocess.Popen(
            command,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=self.log,
            env={**os.environ, **extra},
            text=True,
        )

    def read(self) -> Any:
        """The next answer, or None when the engine has ended; other lines are its log's."""
        assert self.process.stdout is not None
        for line in self.process.stdout:
            if line.startswith(MARK):
                return json.loads(line[1:])
            self.log.write(line)
            self.log.flush()
        return None

    def ask(self, **what: Any) -> Any:
        """An answer to a question, or None when the engine has ended."""
        assert self.process.stdin is not None
        try:
            self.process.stdin.write(json.dumps(what) + "\n")
            self.process.stdin.flush()
        except OSError:
            return None
        return self.read()

    def close(self) -> None:
        """Nothing more is asked: wait until the process has ended."""
        assert self.process.stdin is not None
        assert self.process.stdout is not None
        with contextlib.suppress(BrokenPipeError):  # it ended before it had read all
            self.process.stdin.close()
        self.process.wait()
        self.process.stdout.close()
        self.log.close()


def say(what: Any) -> None:
    """The child's end: one line for the parent, which knows it by its first letter."""
    print(MARK + json.dumps(what), flush=True)


def tell(begun: float, what: str) -> None:
    """A line of progress, with the seconds since the start."""
    print(f"{time.monotonic() - begun:.0f} s: {what}", flush=True)


def where() -> dict[str, str]:
    """The card, or that there is none, and PyTorch."""
    import torch

    card = torch.cuda.get_device_name() if torch.cuda.is_available() else "no GPU"
    return {"card": card, "torch": torch.__version__}


def latents(folder: str, tokens: int) -> int:
    """Bytes of the latent cache of so many tokens of a checkpoint's model, in bfloat16."""
    config = json.loads((Path(folder) / "config.json").read_text())
    return tokens * ROW * int(config["num_hidden_layers"])


def words(count: int, seed: int, vocabulary: int) -> list[int]:
    """Token ids that are the same everywhere."""
    dice = random.Random(seed)
    return [dice.randrange(vocabulary) for _ in range(count)]
