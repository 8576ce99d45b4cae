"""Prove that an engine computes what transformers computes."""

from __future__ import annotations

from dspatch.conformance.report import CheckResult, Report
from dspatch.conformance.suite import VARIANTS, run

__all__ = ["VARIANTS", "CheckResult", "Report", "run"]
