"""The commands of the groups `pin`, `patch` and `wheel`, one module an area."""
