"""Measurements of engines: what noise the checks see, how fast they serve, whether they leak, where time goes."""
