"""Every patch on every release, and what documents claim of it."""
