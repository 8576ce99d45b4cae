"""Where, across the releases of an engine, a check of conformance starts or stops passing."""
