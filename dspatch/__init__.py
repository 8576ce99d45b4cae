"""Patch, rebuild and prove pinned LLM inference engines for DeepSeek models.

pins ──checkout──▶ Checkout ──series, render, apply──▶ PatchedTree ──build──▶ Wheel ──conformance──▶ Report
"""

__version__ = "0.1.0"
