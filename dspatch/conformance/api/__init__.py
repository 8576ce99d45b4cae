"""API conformance: what an OpenAI-compatible server must do, seen from outside."""

from dspatch.conformance.api.run import check_server

__all__ = ["check_server"]
