"""Which patches of a series rest on one of them."""

from __future__ import annotations

from collections.abc import Collection, Mapping

from dspatch.carry.rebase.depends import Step, dependents

PLATFORM = b"class Platform:\n    name = 'cpu'\n\n    def backend(self):\n        return None\n"


def step(name: str, **files: tuple[bytes | None, bytes | None]) -> Step:
    named = {path.replace("__", "/") + ".py": sides for path, sides in files.items()}
    return Step(
        name=name,
        before={path: sides[0] for path, sides in named.items()},
        after={path: sides[1] for path, sides in named.items()},
    )


def nobody(names: Collection[str]) -> Mapping[str, str]:
    return {}


ADDS = step(
    "adds",
    e__ops=(None, b"def decode():\n    helper = 1\n    return helper\n"),
    e__platform=(PLATFORM, PLATFORM.replace(b"'cpu'", b"'cpu'\n    MLA = 'e.mla'")),
    e__layer=(b"", b"def make(linear):\n    linear.keep_weight = True\n"),
)


def found(*later: Step) -> dict[str, tuple[str, str]]:
    return {d.name: (d.kind, d.detail) for d in dependents("adds", [ADDS, *later], nobody)}


def test_an_import_of_what_it_adds() -> None:
    for line in (b"import e.ops\n", b"from e import ops\n", b"from e.ops import decode\n"):
        kind, detail = found(step("uses", e__x=(b"", line)))["uses"]
        assert kind == "import"
        assert detail == "e/x.py imports e.ops, which it adds"


def test_a_name_that_it_defines() -> None:
    uses = found(
        step("member", e__x=(b"", b"x = Platform.MLA\n")),
        step("attribute", e__y=(b"", b"def f(l):\n    return getattr(l, 'keep_weight', 0)\n")),
        step("none", e__z=(b"", b"def helper():\n    return Platform.name\n")),
    )
    assert uses["member"] == ("symbol", "e/x.py uses `MLA`, which it defines in e/platform.py")
    assert uses["attribute"][0] == "symbol"
    assert "none" not in uses


def test_what_was_used_before_or_is_defined_again_does_not_count() -> None:
    used = b"from e.ops import decode\n"
    assert not found(step("old", e__x=(used, used + b"y = 1\n")))
    assert not found(step("own", e__x=(b"", b"def decode():\n    return 1\n\n\ndecode()\n")))


def test_a_patch_that_fails_without_it_and_one_that_rests_on_that() -> None:
    text = step("text", e__t=(b"a = 1\n", b"a = 1\n\n\ndef added():\n    pass\n"))
    indirect = step("indirect", e__u=(b"", b"from e.t import added\n"))
    free = step("free", e__v=(b"", b"b = 2\n"))
    asked: list[set[str]] = []

    def without(names: Collection[str]) -> Mapping[str, str]:
        asked.append(set(names))
        return {"text": "e/t.py: hunk 1 finds no place\nmore"}

    found = dependents("adds", [ADDS, text, indirect, free], without)
    assert [(d.name, d.on, d.kind) for d in found] == [
        ("text", "adds", "text"),
        ("indirect", "text", "indirect"),
    ]
    assert str(found[0]) == "text: e/t.py: hunk 1 finds no place"
    assert asked == [{"adds"}]


def test_earlier_patches_and_unknown_names() -> None:
    assert dependents("nobody", [ADDS], nobody) == ()
    assert dependents("later", [step("first", e__x=(b"", b"later()\n")), ADDS], nobody) == ()
