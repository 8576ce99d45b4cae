"""What is installed: every package, and every data file that one of them reads."""

from __future__ import annotations

from configparser import ConfigParser

from dspatch import paths

ROOT = paths.PACKAGE.parent


def test_every_package_is_installed() -> None:
    config = ConfigParser()
    config.read(ROOT / "setup.cfg")
    listed = set(config["options"]["packages"].split())
    present = {
        ".".join(path.parent.relative_to(ROOT).parts) for path in paths.PACKAGE.rglob("__init__.py")
    }
    assert listed == present | {"dspatch.patches", "dspatch.templates"}
    data = config["options.package_data"]
    for path in paths.PACKAGE.rglob("*.toml"):
        package = ".".join(path.parent.relative_to(ROOT).parts)
        assert "*.toml" in data[package], path
