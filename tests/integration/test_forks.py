"""A fork's commit between two releases: traits decide, diffs merge, resolutions are kept by commit."""

from __future__ import annotations

import subprocess
from functools import partial
from pathlib import Path

import pytest

from dspatch import errors
from tests.integration.test_edge_cases import Plain, own_patch
from tests.integration.test_flow import SOURCE, Bench, Prepared, bench, one_release, prepared
from tests.support import PLATFORM

__all__ = ["bench"]  # a fixture
LINES = "".join(f"value_{n} = {n}\n" for n in range(40))
RELEASE = SOURCE | {"vllm/values.py": LINES.encode()}
PACKED = {path: data for path, data in RELEASE.items() if not path.startswith("csrc/")}


def edited(*changed: tuple[int, str]) -> bytes:
    lines = LINES.splitlines(keepends=True)
    for number, line in changed:
        lines[number] = line
    return "".join(lines).encode()


class Fork:
    """Somebody's repository, with upstream's release in its history."""

    def __init__(self, folder: Path) -> None:
        self.plain = Plain(folder=folder)
        self.files = dict(RELEASE)
        self.head = self.plain.commit({**self.files}, "v1.0\n")
        self.plain.repo.run("tag", "v1.0", self.head)

    def commit(self, **changed: bytes) -> str:
        """Commit changed files, named by their stems."""
        self.files |= {f"vllm/{name}.py": data for name, data in changed.items()}
        self.head = self.plain.commit({**self.files}, "ours\n", self.head)
        return self.head

    def diff(self) -> str:
        """What the last commit changed."""
        return self.plain.diff(self.head)


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Prepared:
    release = partial(one_release, source=RELEASE, base=PACKED)
    return prepared(tmp_path_factory.mktemp("made"), release)


def words(fork: Fork, rev: str = "main") -> tuple[str, ...]:
    return ("apply", "--rev", rev, "--repo", str(fork.plain.folder), "--base", "v1.0")


def content(bench: Bench, rev: str, path: str) -> bytes:
    return (bench.root / f"work/jobs/vllm-{rev}-cpu-deepseek/tree" / path).read_bytes()


def by_name(result: dict) -> dict[str, tuple[str, str]]:
    return {item["patch"]: (item["status"], item["how"]) for item in result["series"]}


def test_a_form_of_the_release_merges_onto_the_forks_commit(bench: Bench, tmp_path: Path) -> None:
    fork = Fork(tmp_path / "fork")
    fork.commit(values=edited((20, "value_20 = 'patched'\n")))
    own_patch(bench, "mine", "v1.0", fork.diff())
    other = Fork(tmp_path / "other")
    other.commit(values=edited((18, "value_18 = 'theirs'\n"), (2, "value_2 = 'theirs'\n")))
    found = bench.json(*words(other))
    # What ships is rendered from the fork's own source; what a user has as a diff is merged.
    assert by_name(found) == {"cpu-mla": ("applies", "rendered"), "mine": ("applies", "merged")}
    assert content(bench, "main", "vllm/values.py") == edited(
        (18, "value_18 = 'theirs'\n"), (2, "value_2 = 'theirs'\n"), (20, "value_20 = 'patched'\n")
    )
    built = bench.json("build-wheel", "--rev", "main")
    assert built["wheel"]["version"].startswith("1.0+cpu.dspatch.")
    assert bench.json("wheel", "verify")["passed"]


def test_traits_decide_not_the_number_of_the_nearest_release(bench: Bench, tmp_path: Path) -> None:
    fork = Fork(tmp_path / "fork")
    fork.commit(platform=PLATFORM.replace('raise NotImplementedError("MLA is', 'log("MLA is').encode())  # fmt: skip
    assert by_name(bench.json(*words(fork))) == {"cpu-mla": ("not needed", "")}
    fork.commit(platform=PLATFORM.replace("def backend", "# ours\n    def backend").encode())
    assert by_name(bench.json(*words(fork))) == {"cpu-mla": ("applies", "rendered")}


def test_what_the_fork_has_already_leaves_the_series(bench: Bench, tmp_path: Path) -> None:
    fork = Fork(tmp_path / "fork")
    fork.commit(values=edited((20, "value_20 = 'patched'\n")))
    own_patch(bench, "mine", "v1.0", fork.diff())
    fork.commit(values=edited((20, "value_20 = 'patched'\n"), (3, "value_3 = 0\n")))
    assert by_name(bench.json(*words(fork)))["mine"][0] == "upstream"


def test_a_resolution_is_kept_by_the_forks_commit(bench: Bench, tmp_path: Path) -> None:
    fork = Fork(tmp_path / "fork")
    fork.commit(values=edited((20, "value_20 = 'patched'\n")))
    own_patch(bench, "mine", "v1.0", fork.diff())
    theirs = Fork(tmp_path / "theirs")
    commit = theirs.commit(values=edited((20, "value_20 = 'theirs'\n")))
    message = bench.run(*words(theirs), code=errors.PatchConflictError.exit_code)
    assert "vllm main: mine cannot be applied" in message
    assert "Merge conflict in vllm/values.py" in message
    theirs.commit(values=edited((20, "value_20 = 'both'\n")))
    form = bench.root / f"work/patches/vllm/mine/{commit}.diff"
    form.write_text(theirs.diff())
    assert by_name(bench.json(*words(theirs, commit)))["mine"] == ("applies", "strict")
    assert content(bench, commit, "vllm/values.py") == edited((20, "value_20 = 'both'\n"))
    # It serves the fork's later commits too, and the release keeps its own form.
    later = Fork(tmp_path / "later")
    later.commit(values=edited((20, "value_20 = 'theirs'\n")))
    later.commit(values=edited((20, "value_20 = 'theirs'\n"), (1, "value_1 = 0\n")))
    assert by_name(bench.json(*words(later)))["mine"] == ("applies", "strict")
    assert content(bench, "main", "vllm/values.py") == edited(
        (20, "value_20 = 'both'\n"), (1, "value_1 = 0\n")
    )
    assert by_name(bench.json("apply", "--rev", "v1.0"))["mine"] == ("applies", "strict")


def test_a_form_of_the_release_does_not_stand_in_for_the_fork(bench: Bench, tmp_path: Path) -> None:
    """A patch that is rendered and has a form for v1.0 is rendered on a fork of v1.0."""
    fork = Fork(tmp_path / "fork")
    refusal = 'raise NotImplementedError("MLA is not supported on CPU.")'
    fork.commit(platform=PLATFORM.replace(refusal, 'return "FROM_FORM"').encode())
    folder = bench.root / "data/patches/vllm/cpu-mla"
    (folder / "v1.0.diff").write_text(fork.diff())
    assert by_name(bench.json("apply", "--rev", "v1.0"))["cpu-mla"] == ("applies", "strict")
    other = Fork(tmp_path / "other")
    other.commit(platform=PLATFORM.replace("def backend", "# ours\n    def backend").encode())
    assert by_name(bench.json(*words(other)))["cpu-mla"] == ("applies", "rendered")
    assert b'return "CPU_MLA"' in content(bench, "main", "vllm/platform.py")


def test_a_commit_of_a_fork_that_moved_is_still_the_one_that_was_meant(
    bench: Bench, tmp_path: Path
) -> None:
    fork = Fork(tmp_path / "fork")
    first = fork.commit(values=edited((1, "value_1 = 'one'\n")))
    bench.run(*words(fork, first))
    fork.commit(values=edited((1, "value_1 = 'two'\n")))
    subprocess.run(["rm", "-rf", fork.plain.folder], check=True)
    bench.run(*words(fork, first))
    assert content(bench, first, "vllm/values.py") == edited((1, "value_1 = 'one'\n"))
