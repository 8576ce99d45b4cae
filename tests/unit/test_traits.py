"""Traits are read from source, by meaning."""

from __future__ import annotations

from pathlib import Path

import pytest

from dspatch import traits
from dspatch.errors import PatchFormatError
from tests.support import PLATFORM, REGISTRY, dedent

FILES = {"p.py": PLATFORM.encode(), "r.py": REGISTRY.encode(), "k.cpp": b"auto s = q.stride(-2);\n"}


def read(text: str, tmp_path: Path) -> traits.Traits:
    path = tmp_path / "traits.toml"
    path.write_text(dedent(text))
    return traits.Traits(traits.load(path), FILES.get)


@pytest.mark.parametrize(
    ("probe", "expected"),
    [
        ('file = "p.py"', True),
        ('file = "absent.py"', False),
        ('file = "p.py"\nsymbol = "CpuPlatform.name"', True),
        ('file = "p.py"\nsymbol = "CpuPlatform.absent"', False),
        ('file = "r.py"\nsymbol = "MODELS.DeepseekForCausalLM"', True),
        ('file = "r.py"\nsymbol = "MODELS.DeepseekV3ForCausalLM"', False),
        ('file = "p.py"\nsymbol = "CpuPlatform.backend"\nparameter = "use_mla"', True),
        ('file = "p.py"\nsymbol = "CpuPlatform.backend"\nparameter = "num_heads"', False),
        ('file = "p.py"\ncontains = "if use_mla: ..."', True),
        ('file = "p.py"\ncontains = "if use_mla: pass"', False),
        ('file = "k.cpp"\nregex = "stride\\\\(-2\\\\)"', True),
        ('file = "k.cpp"\ncontains = "x"', False),
        ('any = [{file = "absent"}, {file = "p.py"}]', True),
        ('all = [{file = "absent"}, {file = "p.py"}]', False),
        ('not = {file = "absent"}', True),
    ],
)
def test_probe(probe: str, expected: bool, tmp_path: Path) -> None:
    facts = read(f'[t]\nwhat = "w"\n{probe}\n', tmp_path)
    assert facts["t"] is expected


def test_first_of_gives_the_value_of_the_first_that_holds(tmp_path: Path) -> None:
    facts = read(
        """
        [where]
        what = "where it lives"
        first_of = [{value = "old", file = "absent.py"}, {value = "new", file = "p.py"}]
        [nowhere]
        what = "nothing holds"
        first_of = [{value = "old", file = "absent.py"}]
        [both]
        what = "by name"
        all = [{trait = "where"}, {file = "r.py"}]
        """,
        tmp_path,
    )
    assert facts["where"] == "new"
    assert facts["both"] is True
    assert set(facts) == {"where", "both"}
    with pytest.raises(KeyError):
        facts["nowhere"]


@pytest.mark.parametrize(
    ("text", "line", "expected"),
    [
        ('[t]\nwhat = "w"\nfile = "p.py"\ncontain = "x"\n', 4, "unknown key `contain`"),
        ('[t]\nfile = "p.py"\n', 1, "`what` (string) is missing"),
        ('[t]\nwhat = "w"\nsymbol = "A"\n', 1, "a probe needs a `file`"),
        ('[t]\nwhat = "w"\ntrait = "u"\n', 1, "refers to `u`"),
        ('[t]\nwhat = "w"\nfile = "p.py"\ncontains = "def"\n', 1, "invalid syntax"),
        ('[a]\nwhat = "w"\nfile = "x"\n[t]\nwhat = 3\nfile = "p.py"\n', 5, "must be a string"),
    ],
)
def test_a_malformed_file_is_named_with_its_line(
    text: str, line: int, expected: str, tmp_path: Path
) -> None:
    with pytest.raises(PatchFormatError) as error:
        read(text, tmp_path)
    assert f"traits.toml, line {line}: " in error.value.what
    assert expected in error.value.what


def test_broken_toml_is_named_with_its_line(tmp_path: Path) -> None:
    with pytest.raises(PatchFormatError) as error:
        read("[t]\nwhat = \n", tmp_path)
    assert "line 2" in error.value.why


def test_what_a_question_rests_on_is_told_once_even_where_traits_name_each_other() -> None:
    known = {
        "a": traits.Trait(name="a", what="w", question={"all": [{"file": "p.py"}, {"trait": "b"}]}),
        "b": traits.Trait(name="b", what="w", question={"not": {"trait": "a"}}),
        "c": traits.Trait(
            name="c", what="w", question={"first_of": [{"value": "x", "trait": "d"}]}
        ),
        "d": traits.Trait(name="d", what="w", question={"file": "d.py"}),
    }
    assert traits.rests_on([{"any": [{"trait": "a"}]}], known) == {"a", "b"}
    assert traits.rests_on([{"trait": "a"}, {"trait": "c"}], known) == {"a", "b", "c", "d"}
    assert traits.rests_on([{"file": "p.py"}], known) == set()
