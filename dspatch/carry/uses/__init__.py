"""The upstream symbols that patches use, and whether they are still what they were."""
