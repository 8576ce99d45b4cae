"""vLLM under observation: runs prompts offline, reads states and weights back, plants faults."""
