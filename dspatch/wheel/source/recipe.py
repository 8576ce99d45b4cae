"""What a build from source takes, by engine and device: read from `builds.toml`."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from packaging.version import InvalidVersion, Version

from dspatch import paths, tomlfile
from dspatch.errors import PinError

_ENGINE = ("variables", "settings", "ccache", "archs", "requirements", "tests-only", "devices")
_DEVICE = ("variables", "compiler", "headers", "toolkit", "packages", "cuda", "memory", "disk")


@dataclass(frozen=True, kw_only=True)
class Archs:
    """The variable that chooses CUDA architectures, and its form: `torch` or `cmake`."""

    variable: str
    form: str


@dataclass(frozen=True, kw_only=True)
class Recipe:
    """What one device of an engine takes to be built; `memory` (of one process) and `disk` in GB.

    `variables` are set for the build, `{device}`, `{version}` and `{jobs}` filled in; `settings`
    are the user's own that change what is compiled. `headers` maps a header to how to get it,
    `toolkit` one that a CUDA toolkit may lack to its package, by the major version of nvcc.
    `requirements` are files of the tree, `packages` what they leave out, `{cuda}` filled in.
    """

    engine: str
    device: str
    variables: Mapping[str, str]
    settings: tuple[str, ...]
    ccache: tuple[str, ...]
    archs: Archs | None
    requirements: tuple[str, ...]
    packages: tuple[str, ...]
    tests_only: tuple[str, ...]
    compiler: Version | None
    headers: Mapping[str, str]
    toolkit: Mapping[str, Mapping[str, str]]
    cuda: bool
    memory: float
    disk: float

    def environment(self, *, version: str, jobs: int) -> dict[str, str]:
        """The variables that the build is given."""
        known = {"device": self.device, "version": version, "jobs": jobs}
        return {name: text.format(**known) for name, text in self.variables.items()}

    def needed(self, nvcc: Version | None) -> list[str]:
        """The packages of the build that nothing of the tree names."""
        return [text.format(cuda=nvcc.major if nvcc else "") for text in self.packages]


TABLE = Path(__file__).with_name("builds.toml")


def own_table() -> Path:
    """Where the user's own builds are told: `builds.toml`, beside the user's pins."""
    return paths.own_pins() / TABLE.name


def recipe(engine: str, device: str) -> Recipe:
    """How to build an engine for a device, by the user's own table where it has the engine.

    Raises `PinError` for a device that no table has, or with file and line.
    """
    found = (_read(path, engine) for path in _tables())
    known = next((rows for rows in found if rows), [])
    for one in known:
        if one.device == device:
            return one
    devices = ", ".join(one.device for one in known)
    raise PinError(
        f"dspatch does not know how to build {engine} for {device} from source.",
        why=f"it knows {devices or 'no device of that engine'}",
        next=f"use --device {known[0].device}" if known else f"tell it in {own_table()}",
    )


def _tables() -> list[Path]:
    return [path for path in (own_table(), TABLE) if path.is_file()]


def _read(path: Path, engine: str) -> list[Recipe]:
    source = tomlfile.load(path, PinError)
    if engine not in source.data:
        return []
    return _engine(source, engine, source.get(source.data, engine, dict))


def _engine(source: tomlfile.TomlFile, name: str, table: dict[str, Any]) -> list[Recipe]:
    source.check_keys(table, _ENGINE, within=name)
    devices = source.get(table, "devices", dict, within=name)
    return [_device(source, name, table, device, devices[device]) for device in devices]


def _device(
    source: tomlfile.TomlFile, name: str, table: dict[str, Any], device: str, row: dict[str, Any]
) -> Recipe:
    within = f"{name}.devices.{device}"
    source.check_keys(row, _DEVICE, within=within)
    return Recipe(
        engine=name,
        device=device,
        variables={**_texts(source, table, name), **_texts(source, row, within)},
        settings=source.strings(table, "settings", within=name),
        ccache=source.strings(table, "ccache", within=name),
        archs=_archs(source, table, name),
        requirements=source.strings(table, "requirements", within=name),
        packages=source.strings(row, "packages", within=within),
        tests_only=source.strings(table, "tests-only", within=name),
        compiler=_version(source, row, within),
        headers=source.get(row, "headers", dict, within=within, default={}),
        toolkit=source.get(row, "toolkit", dict, within=within, default={}),
        cuda=source.get(row, "cuda", bool, within=within, default=False),
        memory=source.get(row, "memory", float, within=within),
        disk=source.get(row, "disk", float, within=within),
    )


def _texts(source: tomlfile.TomlFile, table: dict[str, Any], within: str) -> dict[str, str]:
    return source.get(table, "variables", dict, within=within, default={})


def _archs(source: tomlfile.TomlFile, table: dict[str, Any], within: str) -> Archs | None:
    if "archs" not in table:
        return None
    row = source.get(table, "archs", dict, within=within)
    source.check_keys(row, ("variable", "form"), within=within)
    form = source.get(row, "form", str, within=within)
    if form not in ("torch", "cmake"):
        raise source.fail("`form` must be torch or cmake", key="archs", within=within)
    return Archs(variable=source.get(row, "variable", str, within=within), form=form)


def _version(source: tomlfile.TomlFile, row: dict[str, Any], within: str) -> Version | None:
    if "compiler" not in row:
        return None
    try:
        return Version(source.get(row, "compiler", str, within=within))
    except InvalidVersion:
        raise source.fail("`compiler` must be a version", key="compiler", within=within) from None
