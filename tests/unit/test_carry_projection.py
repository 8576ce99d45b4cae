"""A patch folder as a mail and back: nothing of patch.toml is lost, nothing of the mail either."""

from __future__ import annotations

import tomllib
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from dspatch import patchfile
from dspatch.carry.exchange import mail, projection
from dspatch.carry.exchange.mail import PatchMail
from dspatch.patchfile import Patch
from dspatch.traits import Trait

DIFF = "diff --git a/x b/x\nindex 1..2 100644\n--- a/x\n+++ b/x\n@@ -1 +1 @@\n-a\n+b\n"
NAMES = ("first", "second")
KNOWN = {name: Trait(name=name, what=name, question={}) for name in NAMES}
said = st.text(min_size=1).filter(lambda text: mail.text(text) != "")
lists = st.lists(st.sampled_from(["first", "!second"]), unique=True)
tables = st.fixed_dictionaries(
    {
        "subject": said,
        "reason": said,
        "upstream": st.sampled_from(
            ["never: a test", "https://x.example/pull/1", f"https://x.example/commit/{'a' * 40}"]
        ),
        "drop-when": said,
        "targets": st.sampled_from([["cpu"], ["cpu", "cuda"]]),
    },
    optional={
        "needs": lists,
        "families": st.lists(st.sampled_from(["mla", "moe"]), unique=True),
        "reference-ops": st.lists(st.sampled_from(["a_b", "c"]), unique=True),
        "written-for": st.just("v0.27.1"),
        "fuzz": st.fixed_dictionaries({"context": st.integers(1, 5), "reason": said}),
        "waive": st.lists(
            st.fixed_dictionaries({"symbol": said, "reason": said}, optional={"shape": said}),
            max_size=2,
        ),
    },
)


def patch(folder: Path, toml: bytes) -> Patch:
    folder.mkdir(exist_ok=True)
    (folder / "patch.toml").write_bytes(toml)
    (folder / "v0.27.1.diff").write_text(DIFF)
    return patchfile.load(folder, KNOWN, folder)


def as_mail(one: Patch) -> PatchMail:
    return projection.as_mail(one, DIFF, engine="vllm", made_on="v0.27.1")


@settings(max_examples=150)
@given(tables)
def test_a_patch_survives_its_mail(tmp_path_factory: pytest.TempPathFactory, table: dict) -> None:
    folder = tmp_path_factory.mktemp("p") / "a-patch"
    first = as_mail(patch(folder, projection.toml(table)))
    data = mail.write(first)
    again = projection.toml(projection.as_table(mail.read_own(data)))
    second = as_mail(patch(folder, again))
    assert mail.write(second) == data
    assert projection.made_on(second) == ("vllm", "v0.27.1")


@given(st.text())
def test_a_toml_string_says_the_text(text: str) -> None:
    value = tomllib.loads(projection.toml({"key": mail.text(text)}).decode())["key"]
    assert value.strip() == mail.text(text)


def test_the_toml_reads_as_one_would_write_it() -> None:
    table = {
        "subject": "S",
        "reason": 'one "quoted"\ntwo',
        "targets": ["cpu"],
        "fuzz": {"context": 1},
    }
    assert projection.toml(table).decode() == (
        "subject = \"S\"\nreason = '''\none \"quoted\"\ntwo\n'''\ntargets = [\"cpu\"]\n\n[fuzz]\ncontext = 1\n"
    )


@pytest.mark.parametrize(
    ("fields", "upstream"),
    [
        ({"Upstream": "never: mine"}, "never: mine"),
        ({"Origin": "backport, https://x.example/commit/1"}, "https://x.example/commit/1"),
        ({"Forwarded": "https://x.example/2"}, "https://x.example/2"),
        ({"Forwarded": "no"}, "never: nobody has said yet where it stands with upstream"),
    ],
)
def test_debian_s_fields_are_understood(fields: dict[str, str], upstream: str) -> None:
    one = PatchMail(subject="s", body="b", fields=tuple(fields.items()), diff=DIFF)
    table = projection.as_table(one)
    assert table["upstream"] == upstream
    assert table["targets"] == ["cpu", "cuda"]


@pytest.mark.parametrize(
    ("subject", "name"),
    [
        ("[Bugfix][CPU] Fix slot mapping (#123)", "fix-slot-mapping"),
        ("Größe", "gre"),
        ("尺寸", "patch"),
        ("a " * 60, "-".join("a" * 20)),
        ("x" * 90, "x" * 40),
    ],
)
def test_names_come_from_subjects(subject: str, name: str) -> None:
    assert projection.slug(subject) == name
