"""The findings: a folder an engine, one TOML file a finding."""
