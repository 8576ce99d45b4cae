"""The findings about vLLM."""
