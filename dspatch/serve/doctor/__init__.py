"""From a log, and the machine's facts, to causes: read, match, rank, and what helps."""
