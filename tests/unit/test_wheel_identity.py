"""dspatch.wheel.metadata, versionfile, names: an overlay's own name and version, the rest kept."""

from __future__ import annotations

import ast

import pytest
from hypothesis import given
from hypothesis import strategies as st
from packaging.requirements import Requirement
from packaging.tags import parse_tag
from packaging.version import Version

from dspatch.errors import WheelError
from dspatch.wheel.metadata import rewrite_metadata, rewrite_wheel, satisfiable
from dspatch.wheel.names import Target, WheelName, overlay_version
from dspatch.wheel.versionfile import rewrite_version_file, stated_version, version_tuple
from tests.unit.wheelkit import METADATA, VERSION, VERSION_FILE, WHEEL


def metadata(text: str, **requirements: str) -> str:
    new, _ = rewrite_metadata(
        text.encode(), name="mini", version=VERSION, requirements=requirements
    )
    return new.decode()


def test_metadata_changes_where_it_must_and_nowhere_else() -> None:
    before, after = METADATA.splitlines(), metadata(METADATA).splitlines()
    assert [line for line in after if line not in before] == [
        "Name: mini",
        f"Version: {VERSION}",
        'Requires-Dist: torch==2.13.0; platform_machine == "x86_64"',
    ]
    assert [line for line in before if line not in after] == [
        "Name: mini-cpu",
        "Version: 1.0",
        "Maintainer-email: Someone <someone@example.org>",
        "Project-URL: Bug Tracker, https://example.org/mini-cpu/issues",
        'Requires-Dist: torch==2.13.0+cpu; platform_machine == "x86_64"',
    ]


def test_metadata_keeps_odd_bytes_line_ends_and_folded_fields() -> None:
    odd = b"Name: a\r\nVersion: 1\r\nLicense: one\r\n two: three\r\n\r\nbody \xff\r\nName: b\r\n"
    new, rewrites = rewrite_metadata(odd, name="a", version="2", requirements={})
    assert new == odd.replace(b"Version: 1", b"Version: 2")
    assert [(rewrite.old, rewrite.new) for rewrite in rewrites] == [("Version: 1", "Version: 2")]


def test_a_requirement_can_be_replaced_by_the_plan() -> None:
    assert "Requires-Dist: numpy<3\n" in metadata(METADATA, numpy="numpy<3")


@pytest.mark.parametrize(
    ("text", "requirements"),
    [(METADATA, {"scipy": "scipy"}), ("Name: mini\n\n", {}), ("Version: 1\n\n", {}), ("", {})],
)
def test_metadata_that_does_not_fit_the_plan_is_refused(
    text: str, requirements: dict[str, str]
) -> None:
    with pytest.raises(WheelError):
        metadata(text, **requirements)


@pytest.mark.parametrize(
    ("old", "new"),
    [
        ("torch==2.13.0+cpu", "torch==2.13.0"),
        ('torch==2.13.0+cpu; platform_machine == "x"', 'torch==2.13.0; platform_machine == "x"'),
        ("torch===2.13.0+cpu.cxx11.abi", "torch===2.13.0"),
        ("a[b]>=1,==2+x", "a[b]>=1,==2"),
        ("torch==2.13.0", "torch==2.13.0"),
        ("a!=1+x", "a!=1+x"),
        ("a @ https://example.org/a-1+cpu.whl", "a @ https://example.org/a-1+cpu.whl"),
        ("not a requirement ==1+x", "not a requirement ==1+x"),
    ],
)
def test_a_local_version_is_stripped_from_what_is_pinned(old: str, new: str) -> None:
    assert satisfiable(old) == new


@given(
    st.sampled_from(["torch", "a-b[x,y]"]),
    st.lists(st.integers(0, 99), min_size=1, max_size=4),
    st.from_regex(r"[a-z0-9]{1,5}(\.[a-z0-9]{1,5}){0,2}", fullmatch=True),
    st.sampled_from(["", '; python_version >= "3.8"', '; extra == "a+b"']),
)
def test_what_is_stripped_is_the_local_part_only(
    name: str, release: list[int], local: str, marker: str
) -> None:
    version = ".".join(map(str, release))
    old = Requirement(satisfiable(f"{name}=={version}+{local}{marker}"))
    assert str(old) == str(Requirement(f"{name}=={version}{marker}"))


def test_wheel_states_the_tags_of_its_file_name() -> None:
    text = WHEEL.encode() + b"\n"
    new, rewrites = rewrite_wheel(
        text, frozenset(parse_tag("cp38-abi3-manylinux1_x86_64.linux_x86_64"))
    )
    lines = new.decode().splitlines()
    assert lines[0] == "Wheel-Version: 1.0"
    assert lines[1].startswith("Generator: dspatch ")
    assert lines[2:] == [
        "Root-Is-Purelib: false",
        "Tag: cp38-abi3-linux_x86_64",
        "Tag: cp38-abi3-manylinux1_x86_64",
    ]
    assert rewrites[1].old == "Tag: cp312-cp312-linux_x86_64"
    again, rewrites = rewrite_wheel(
        new, frozenset(parse_tag("cp38-abi3-manylinux1_x86_64.linux_x86_64"))
    )
    assert again == new
    assert [rewrite.old for rewrite in rewrites] == [lines[1]]


def test_the_version_file_states_the_new_version_and_keeps_the_rest() -> None:
    new, rewrites = rewrite_version_file(VERSION_FILE.encode(), "v.py", VERSION)
    assert new.decode().splitlines()[:3] == VERSION_FILE.splitlines()[:3]
    assert stated_version(new, "v.py") == VERSION
    assert version_tuple(VERSION) == (1, 0, "cpu.dspatch.1a2b3c4d5e6f")
    assert b"version_tuple = (1, 0, 'cpu.dspatch.1a2b3c4d5e6f')" in new
    assert [rewrite.old for rewrite in rewrites] == ["'1.0'", "(1, 0)"]


@pytest.mark.parametrize(
    "text",
    [
        "__version__ = '1'\n",
        "__version__: str = '1'\n",
        "# é\nx = 'é'; __version__ = '1'  # é\n",
        'if True:\n    version = "no"\n__version__ = (\n    "1"\n)\n',
        "version_info = (1,)\r\n__version__ = '1'\r\n",
    ],
)
def test_every_form_of_a_version_module_is_rewritten_as_python(text: str) -> None:
    new, _ = rewrite_version_file(text.encode(), "v.py", VERSION)
    assert stated_version(new, "v.py") == VERSION
    assert len(ast.parse(new).body) == len(ast.parse(text).body)


@pytest.mark.parametrize(
    "text",
    ["", "version = 1\n", "from x import __version__\n", "def f(:\n", "a\0b", "x.version = '1'"],
)
def test_a_module_that_states_no_version_is_refused(text: str) -> None:
    with pytest.raises(WheelError):
        rewrite_version_file(text.encode(), "v.py", VERSION)


def test_a_module_that_states_two_versions_is_refused() -> None:
    with pytest.raises(WheelError, match="2 versions"):
        stated_version(b"__version__ = '1'\nversion = '2'\n", "v.py")


@pytest.mark.parametrize(
    ("base", "target", "version"),
    [
        ("0.27.1", "cpu", "0.27.1+cpu.dspatch.1a2b3c4d5e6f"),
        ("0.27.1+cpu", "cpu", "0.27.1+cpu.dspatch.1a2b3c4d5e6f"),
        ("0.8.5.post2", "cpu", "0.8.5.post2+cpu.dspatch.1a2b3c4d5e6f"),
        ("0.8.5+avx2", "cpu", "0.8.5+cpu.avx2.dspatch.1a2b3c4d5e6f"),
        ("0.27.1", "cuda", "0.27.1+dspatch.1a2b3c4d5e6f"),
        ("0.27.1+cu129", "cuda", "0.27.1+cu129.dspatch.1a2b3c4d5e6f"),
    ],
)
def test_an_overlays_version(base: str, target: Target, version: str) -> None:
    assert overlay_version(base, target, "1A2B3c4d5e6f708090") == version


@given(st.text("0123456789abcdef", min_size=12, max_size=64))
def test_an_overlays_version_is_its_own_normal_form(digest: str) -> None:
    version = overlay_version("0.27.1", "cpu", digest)
    assert str(Version(version)) == version
    assert "cpu" in version
    assert Version(version) > Version("0.27.1")


@given(
    st.from_regex(
        r"[0-9]{1,3}(\.[0-9]{1,3}){1,3}(rc1|\.post2|\.dev3)?(\+[a-z]{3})?", fullmatch=True
    )
)
def test_a_version_tuple_starts_with_the_release_and_ends_with_the_local_part(text: str) -> None:
    parsed = Version(text)
    parts = version_tuple(text)
    assert parts[: len(parsed.release)] == parsed.release
    assert parsed.local is None or parts[-1] == parsed.local


def test_a_file_name_keeps_everything_behind_the_version() -> None:
    name = WheelName.parse("mini_cpu-1.0-3-cp38-abi3-manylinux1_x86_64.linux_x86_64.whl")
    assert name.renamed("Mini.Engine", "1.0+cpu.x") == (
        "mini_engine-1.0+cpu.x-3-cp38-abi3-manylinux1_x86_64.linux_x86_64.whl"
    )


@pytest.mark.parametrize("filename", ["mini.whl", "mini-1.0.tar.gz", "mini-x-py3-none-any.whl"])
def test_a_file_name_that_is_no_wheels_is_refused(filename: str) -> None:
    with pytest.raises(WheelError):
        WheelName.parse(filename)
