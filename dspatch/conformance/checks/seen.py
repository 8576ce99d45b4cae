"""What a check looks at, and what it says."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Literal, get_args

from dspatch.conformance import statistic

Prompts = Mapping[str, Mapping[str, Any]]
# Runs that ask one thing each, and all runs.
Probe = Literal[
    "local",
    "ladder",
    "replayed",
    "late",
    "routed",
    "turned",
    "sampled",
    "selfkl",
    "scored",
    "dequantised",
    "multiplied",
    "passkey",
]
Run = Literal["alone", "together", "again", Probe]
QUANTISED: tuple[Probe, ...] = ("dequantised", "multiplied")  # of quantised models only
# Sampling is the same code for both.
UNQUANTISED: tuple[Probe, ...] = ("sampled",)
# They take no prompt: a checkpoint is asked them once, however many sets of prompts it is run on.
UNPROMPTED: tuple[Probe, ...] = ("routed", "turned", *QUANTISED)
PROBES: tuple[Probe, ...] = get_args(Probe)
RUNS: tuple[Run, ...] = get_args(Run)


@dataclass(frozen=True, kw_only=True)
class Seen:
    """One engine run on one small model, measured against the oracle.

    `device` is what it computed on. `facts` is what the engine said of itself, `measures` what the
    oracle's worker measured, and `runs` says which run to judge as which: under a planted fault,
    that one's.
    """

    variant: str
    dtype: str
    config: Mapping[str, Any]
    facts: Mapping[str, Any]
    measures: Mapping[str, Any]
    device: str = "cpu"
    runs: Mapping[str, str] = field(default_factory=lambda: {name: f"{name}/" for name in RUNS})

    @property
    def alone(self) -> Prompts:
        """Measures of each prompt run by itself."""
        return self.prompts("alone")

    @property
    def together(self) -> Prompts:
        """Measures of each prompt in one batch with the others."""
        return self.prompts("together")

    @property
    def again(self) -> Prompts:
        """Measures of each prompt run once more, with its prefix in the cache."""
        return self.prompts("again")

    def prompts(self, run: str) -> Prompts:
        """Measures of each prompt of the run that is judged as this one; none of a run that was not made."""
        found: Prompts = self.measures.get("runs", {}).get(self.runs[run], {})
        return found

    def probe(self, name: str) -> Any:
        """The numbers of a probe, as the oracle's worker documents them; `None` where it was not made."""
        return self.measures.get("probes", {}).get(self.runs[name], {}).get(name)

    @property
    def black_box(self) -> bool:
        """Whether the engine shows nothing inside, and says so: it is judged by what it answers."""
        return "watched" in self.facts and not self.facts["watched"]

    def scale(self, check: str) -> str:
        """The device whose limits of a check count: where answers alone are seen, the one for these."""
        blind = self.black_box and statistic.blind(check, self.dtype)
        return f"{self.device}{statistic.ANSWERS}" if blind else self.device

    def unprobed(self, name: str) -> str:
        """Why the engine could not be asked for a probe; empty where it says nothing of that."""
        return str(self.facts.get("unprobed", {}).get(name, ""))

    def absent(self, name: str, otherwise: str = "no such run was made") -> Verdict:
        """What a check says that has no numbers of a probe: one that broke fails it."""
        if broke := self.facts.get("broken", {}).get(name):
            return Verdict(wrong=True, note=f"the engine was asked, and it broke: {broke}")
        told = self.unprobed(name)
        return unseen(f"the engine cannot be asked: {told}" if told else otherwise)


@dataclass(frozen=True, kw_only=True)
class Verdict:
    """What a check measured.

    `wrong` fails it whatever was measured; `unseen` says why it could not look. `unit` is that of what
    it measures, where tolerance.toml has none of another dtype.
    """

    measured: float | None = None
    note: str = ""
    unit: str = ""
    wrong: bool = False
    unseen: str = ""


def unseen(why: str) -> Verdict:
    """The verdict of a check that could not look."""
    return Verdict(unseen=why)
