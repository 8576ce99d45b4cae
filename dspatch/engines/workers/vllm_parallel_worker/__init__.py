"""vLLM on several processes: what it says and which weights each holds; and both held against one process."""
