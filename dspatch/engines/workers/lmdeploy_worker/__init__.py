"""LMDeploy under observation, in a Python of its own: what it answers, as it shows nothing inside."""
