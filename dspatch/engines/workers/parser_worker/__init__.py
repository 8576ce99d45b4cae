"""Runs an engine's own parsers of reasoning and tool calls, on texts cut in every way."""
