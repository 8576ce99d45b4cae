"""`patch rebase` on a small engine: what agrees, what conflicts and why, how it is resolved, what replays."""

from __future__ import annotations

import json
import shutil
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from dspatch import errors
from tests.integration.rebasekit import (
    FREE,
    LOADS_AND_HELPS,
    MODEL,
    RESOLVED,
    SORTED,
    files_of,
    patches,
    release,
)  # fmt: skip
from tests.integration.test_flow import Bench, Prepared, prepared
from tests.support import disk, git, repository

REBASE = ("patch", "rebase", "--rev", "v1.0", "--onto", "v3.0")
STOPPED = errors.RebaseStoppedError.exit_code
DONE = RESOLVED + LOADS_AND_HELPS[LOADS_AND_HELPS.index("\n\ndef helper") :]


def three_releases(bench: Bench) -> None:
    """2.0 changed the lines that the patch `loads` rests on, and has no pin."""
    release(bench, "1.0")
    release(bench, "2.0", {"vllm/model.py": SORTED}, kinds=("wheel",), pinned=False)
    release(bench, "3.0", {"vllm/model.py": SORTED, "vllm/free.py": "zero = 0\n" + FREE})
    patches(bench)
    bench.run(*REBASE, "--dry-run", code=errors.PatchConflictError.exit_code)


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Prepared:
    return prepared(tmp_path_factory.mktemp("made"), three_releases)


@pytest.fixture
def bench(made: Prepared, tmp_path: Path) -> Iterator[Bench]:
    with made.bench(tmp_path) as bench:
        yield bench


def tree(bench: Bench, version: str = "3.0") -> Path:
    return bench.root / f"work/jobs/vllm-{version}-cpu-deepseek/tree"


def form(bench: Bench, patch: str, rev: str = "v3.0") -> Path:
    return bench.root / f"data/patches/vllm/{patch}/{rev}.diff"


def rows(result: dict) -> dict[str, dict]:
    return {row["patch"]: row for row in result["patches"]}


def stopped(bench: Bench, *words: str) -> dict:
    with bench.start(*words, "--json") as process:
        out, err = process.communicate()
    assert process.returncode == STOPPED, out + err
    return json.loads(out)


def resolve(bench: Bench) -> None:
    (tree(bench) / "vllm/model.py").write_text(DONE)
    git(tree(bench), "add", "vllm/model.py")


def test_a_conflict_is_explained_and_the_independent_rest_applies(bench: Bench) -> None:
    found = stopped(bench, *REBASE)
    row = rows(found)["loads"]
    assert row["status"] == "conflict"
    (reason,) = row["reasons"]
    assert (reason["path"], reason["number"], reason["symbol"]) == (
        "vllm/model.py",
        1,
        "Model.load",
    )
    assert (reason["until"], reason["since"]) == ("v1.0", "v2.0")
    assert "for name, data in weights:" in reason["lines"]
    assert [each["name"] for each in row["dependents"]] == ["uses"]
    assert rows(found)["uses"]["status"] == "waits"
    assert rows(found)["free"]["status"] == "applies"
    assert "independent of it, and fine: free" in found["why"]
    assert "rests on it: uses: vllm/ops.py uses `helper`" in found["why"]
    assert found["stopped"] == "loads"


def test_the_tree_stands_at_the_conflict_as_after_a_merge(bench: Bench) -> None:
    stopped(bench, *REBASE)
    text = (tree(bench) / "vllm/model.py").read_text()
    assert "<<<<<<< vllm v3.0\n" in text
    assert "||||||| vllm v1.0\n" in text
    assert ">>>>>>> loads\n" in text
    assert git(tree(bench), "status", "--porcelain") == "UU vllm/model.py\n"
    git(tree(bench), "checkout", "--theirs", "vllm/model.py")
    assert (tree(bench) / "vllm/model.py").read_text() == LOADS_AND_HELPS
    git(tree(bench), "checkout", "--conflict=merge", "vllm/model.py")
    assert (tree(bench) / "vllm/free.py").read_text().startswith("zero = 0\n")


def test_a_resolution_is_recorded_and_replays(bench: Bench) -> None:
    stopped(bench, *REBASE)
    resolve(bench)
    done = bench.json("patch", "rebase", "--continue")
    assert rows(done)["loads"]["how"] == "strict"
    assert rows(done)["uses"]["status"] == "applies"
    assert done["recorded"] == [str(form(bench, "loads"))]
    assert (tree(bench) / "vllm/model.py").read_text() == DONE
    assert git(tree(bench), "status", "--porcelain") == ""
    shutil.rmtree(bench.root / "work")
    replayed = bench.json("apply", "--rev", "v3.0")
    assert replayed["tree"] == done["tree"]
    assert "no rebase is under way" in bench.run("patch", "rebase", "--continue", code=STOPPED)


def test_the_next_release_and_other_variants_profit(bench: Bench) -> None:
    stopped(bench, *REBASE)
    resolve(bench)
    bench.run("patch", "rebase", "--continue")
    moved = "# a header\n" * 9 + SORTED.replace("import os\n", "import os\nimport sys\n")
    release(bench, "3.1", {"vllm/model.py": moved})
    for words in (("--rev", "v3.1"), ("--rev", "v3.1", "--variant", "deepseek-v3")):
        applied = bench.json("apply", *words)
        hows = {row["patch"]: row["how"] for row in applied["series"]}
        assert hows["loads"] in ("strict", "merged")
    text = (tree(bench, "3.1") / "vllm/model.py").read_text()
    assert "sorted(weights)" in text
    assert "data.float()" in text


def test_what_is_not_resolved_does_not_go_on(bench: Bench) -> None:
    stopped(bench, *REBASE)
    go_on = ("patch", "rebase", "--continue")
    assert "vllm/model.py is not resolved" in bench.run(*go_on, code=STOPPED)
    git(tree(bench), "add", "vllm/model.py")
    assert "still holds conflict markers" in bench.run(*go_on, code=STOPPED)
    resolve(bench)
    (tree(bench) / "vllm/ops.py").write_text("edited = 1\n")
    assert "vllm/ops.py has changes that are not staged" in bench.run(*go_on, code=STOPPED)
    git(tree(bench), "checkout", "vllm/ops.py")
    (tree(bench) / "vllm/model.py").write_text(SORTED)
    git(tree(bench), "add", "vllm/model.py")
    assert "nothing is left of loads" in bench.run(*go_on, code=STOPPED)
    assert not form(bench, "loads").exists()


def test_a_resolution_may_be_committed_and_may_touch_other_files(bench: Bench) -> None:
    stopped(bench, *REBASE)
    resolve(bench)
    (tree(bench) / "vllm/new.py").write_text("x = 1\n")
    git(tree(bench), "add", ".")
    git(tree(bench), "commit", "-qm", "mine")
    done = bench.json("patch", "rebase", "--continue")
    assert (tree(bench) / "vllm/new.py").read_text() == "x = 1\n"
    assert "vllm/new.py" in form(bench, "loads").read_text()
    assert done["stopped"] is None


def test_skip_leaves_the_patch_and_those_that_rest_on_it_out(bench: Bench) -> None:
    stopped(bench, *REBASE)
    done = bench.json("patch", "rebase", "--skip")
    assert {name: row["status"] for name, row in rows(done).items()} == {
        "loads": "skipped",
        "uses": "waits",
        "free": "applies",
    }
    assert (tree(bench) / "vllm/model.py").read_text() == SORTED
    assert "five = 55" in (tree(bench) / "vllm/free.py").read_text()
    assert git(tree(bench), "status", "--porcelain") == ""


def test_abort_puts_everything_back(bench: Bench) -> None:
    stopped(bench, *REBASE)
    bench.run("patch", "rebase", "--abort")
    assert not tree(bench).exists()
    (bench.root / "data/patches/vllm/series").write_text("free\n")
    (bench.root / "data/patches/vllm/loads").rename(bench.root / "loads")
    (bench.root / "data/patches/vllm/uses").rename(bench.root / "uses")
    before = bench.json("apply", "--rev", "v3.0")
    patches(bench)
    stopped(bench, *REBASE)
    resolve(bench)
    assert "under way" in bench.run(*REBASE, code=STOPPED)
    bench.run("patch", "rebase", "--abort", "--onto", "v3.0")
    assert git(tree(bench), "rev-parse", "HEAD^{tree}").strip() == before["tree"]
    assert git(tree(bench), "status", "--porcelain") == ""


def test_abort_takes_recorded_forms_back(bench: Bench) -> None:
    """Two conflicts, of which one was resolved."""
    release(bench, "4.0", {"vllm/model.py": SORTED, "vllm/free.py": "four = 44\nfive = 5\n"})
    words = ("patch", "rebase", "--rev", "v1.0", "--onto", "v4.0")
    assert stopped(bench, *words)["stopped"] == "loads"
    model = tree(bench, "4.0") / "vllm/model.py"
    model.write_text(DONE)
    git(tree(bench, "4.0"), "add", "vllm/model.py")
    assert stopped(bench, "patch", "rebase", "--continue")["stopped"] == "free"
    assert model.read_text() == DONE
    assert form(bench, "loads", "v4.0").exists()
    bench.run("patch", "rebase", "--abort")
    assert not form(bench, "loads", "v4.0").exists()
    assert not tree(bench, "4.0").exists()


def test_a_dry_run_tells_all_and_touches_nothing(bench: Bench) -> None:
    code = errors.PatchConflictError.exit_code
    message = bench.run(*REBASE, "--dry-run", code=code)
    assert "its lines changed in v2.0 (v1.0 still has them)" in message
    assert not tree(bench).exists()
    with bench.start(*REBASE, "--dry-run", "--json") as process:
        out, _ = process.communicate()
    assert rows(json.loads(out))["loads"]["status"] == "conflict"


def test_only_the_patches_named_stop_it(bench: Bench) -> None:
    done = bench.json(*REBASE, "free")
    assert rows(done)["free"]["status"] == "applies"
    assert rows(done)["loads"]["status"] == "conflict"
    assert "five = 55" in (tree(bench) / "vllm/free.py").read_text()
    unknown = bench.run(*REBASE, "nothing", code=errors.PatchFormatError.exit_code)
    assert "there is no patch `nothing`" in unknown


def test_text_that_merges_where_edits_fail_is_recorded(bench: Bench) -> None:
    """Edits need their function by its name; a merge follows the lines."""
    folder = bench.root / "data/patches/vllm/free"
    edits = folder / "patch.toml"
    (folder / "v1.0.diff").unlink()
    edits.write_text(
        edits.read_text()
        + '[[edit]]\nfile = "vllm/ops.py"\nsymbol = "run"\nverb = "replace"\n'
        + 'find = "return y"\ntext = "return -y"\n'
    )
    (bench.root / "data/patches/vllm/series").write_text("free\n")
    for name in ("loads", "uses"):
        shutil.rmtree(folder.parent / name)
    release(bench, "4.0", {"vllm/ops.py": "def run_all(x):\n    y = x\n    return y\n"})
    done = bench.json("patch", "rebase", "--rev", "v1.0", "--onto", "v4.0")
    assert rows(done)["free"]["textual"] == "merged"
    assert rows(done)["free"]["semantic"] == "fails"
    assert done["recorded"] == [str(form(bench, "free", "v4.0"))]
    assert "return -y" in (tree(bench, "4.0") / "vllm/ops.py").read_text()
    shutil.rmtree(bench.root / "work")
    assert bench.json("apply", "--rev", "v4.0")["tree"] == done["tree"]


def test_lines_that_an_edit_takes_away_and_upstream_has_taken_away(bench: Bench) -> None:
    """Of such an edit nothing can be found; its diff has the lines around it."""
    folder = bench.root / "data/patches/vllm/free"
    (folder / "v1.0.diff").unlink()
    edit = '[[edit]]\nfile = "vllm/free.py"\nverb = "replace"\nfind = "three = 3"\ntext = ""\n'
    (folder / "patch.toml").write_text((folder / "patch.toml").read_text() + edit)
    (folder.parent / "series").write_text("free\n")
    for name in ("loads", "uses"):
        shutil.rmtree(folder.parent / name)
    release(bench, "4.0", {"vllm/free.py": "zero = 0\n" + FREE.replace("three = 3\n", "")})
    bench.run("apply", "--rev", "v4.0", code=errors.PatchConflictError.exit_code)
    done = bench.json("patch", "rebase", "--rev", "v1.0", "--onto", "v4.0")
    assert rows(done)["free"]["status"] == "upstream"
    assert "it reverse-applies, 1 of 1 hunks upstream" in rows(done)["free"]["why"]
    assert form(bench, "free", "v4.0").read_bytes() == b""
    (row,) = bench.json("apply", "--rev", "v4.0")["series"]
    assert row["status"] == "upstream"


def test_text_and_edits_are_compared(bench: Bench) -> None:
    folder = bench.root / "data/patches/vllm/free"
    (folder / "v1.0.diff").unlink()
    (folder.parent / "traits.toml").write_text(
        '[zero]\nwhat = "there is a zero"\nfile = "vllm/free.py"\nsymbol = "zero"\n'
    )
    toml = (folder / "patch.toml").read_text()
    edit = '[[edit]]\nfile = "vllm/free.py"\nverb = "insert-after"\nfind = "three = 3"\n'
    (folder / "patch.toml").write_text(f'{toml}{edit}text = "more = 1"\n')
    row = rows(bench.json(*REBASE, "free"))["free"]
    assert (row["textual"], row["semantic"], row["agree"]) == ("merged", "rendered", True)
    (folder / "patch.toml").write_text(f'{toml}{edit}text = "more = ${{ traits.zero }}"\n')
    row = rows(bench.json(*REBASE, "free"))["free"]
    assert row["agree"] is False
    assert "-more = False\n+more = True\n" in row["difference"]
    assert "by its text and by its edits it is not the same" in bench.run(*REBASE, "free")
    own = '[[edit]]\nfile = "vllm/free.py"\nverb = "insert-after"\nfind = "zero = 0"\ntext = "mine = 1"\n'
    (folder / "patch.toml").write_text(f'{toml}{edit}text = "more = 1"\n\n{own}when = ["zero"]\n')
    row = rows(bench.json(*REBASE, "free"))["free"]
    assert (row["agree"], row["difference"]) == (True, "")
    assert row["only_here"] == ["vllm/free.py: module"]
    assert "agree; only here: vllm/free.py: module" in bench.run(*REBASE, "free")


def test_a_base_from_an_sdist_a_target_that_is_a_wheel_and_one_from_git(bench: Bench) -> None:
    """The blobs that a merge needs come from one cache, wherever they were taken from."""
    shifted = {"vllm/model.py": MODEL.replace("import os\n", "import os\nimport sys\n")}
    shifted["vllm/model.py"] = shifted["vllm/model.py"].replace(
        "return names", "return sorted(names)"
    )
    release(bench, "5.0", shifted, kinds=("wheel",))
    done = bench.json("patch", "rebase", "--rev", "v1.0", "--onto", "v5.0", "loads")
    assert rows(done)["loads"]["how"] == "merged"
    text = (tree(bench, "5.0") / "vllm/model.py").read_text()
    assert "data.float()" in text
    assert "return sorted(names)" in text
    assert not (tree(bench, "5.0") / "csrc").exists()
    clone = bench.root / "clone"
    repository(clone, files_of("5.0", shifted))
    words = ("--onto", "main", "--repo", str(clone), "--base", "v5.0")
    done = bench.json("patch", "rebase", "--rev", "v1.0", *words)
    assert rows(done)["loads"]["how"] == "merged"
    assert done["job"] == "vllm-main-cpu-deepseek"


def test_a_conflict_on_a_git_revision_names_the_commit(bench: Bench) -> None:
    clone = bench.root / "clone"
    repository(clone, files_of("1.0"))
    git(clone, "tag", "v1.0")
    (clone / "vllm/model.py").write_text(SORTED)
    git(clone, "commit", "-qam", "Sort the weights (#77)")
    words = ("--onto", "main", "--repo", str(clone), "--base", "v3.0")
    found = stopped(bench, "patch", "rebase", "--rev", "v1.0", *words)
    assert "by commit" in found["why"]
    assert "Sort the weights (#77)" in found["why"]
    job = tree(bench, "main")
    (job / "vllm/model.py").write_text(DONE)
    git(job, "add", ".")
    done = bench.json("patch", "rebase", "--continue")
    commit = git(clone, "rev-parse", "HEAD").strip()
    assert done["recorded"] == [str(form(bench, "loads", commit))]
    replay = ("apply", "--rev", "main", "--repo", str(clone), "--base", "v3.0")
    assert bench.json(*replay)["tree"] == done["tree"]


def test_a_change_that_upstream_made_and_moved_since_is_known_by_its_patch_id(bench: Bench) -> None:
    clone = bench.root / "clone"
    repository(clone, files_of("1.0"))
    git(clone, "tag", "v1.0")
    (clone / "vllm/free.py").write_text(FREE.replace("five = 5", "five = 55"))
    git(clone, "commit", "-qam", "Five is 55 (#78)")
    (clone / "vllm/free.py").write_text("one = 1\ntwo = 2\nthree = 3\nfour = 4\nfive = 56\n")
    git(clone, "commit", "-qam", "Five is 56")
    words = ("--onto", "main", "--repo", str(clone), "--base", "v3.0")
    done = bench.json("patch", "rebase", "--rev", "v1.0", *words)
    row = rows(done)["free"]
    assert row["status"] == "upstream"
    assert row["textual"] == "conflict"
    assert "the same change (patch-id), commit" in row["why"]
    assert "Five is 55 (#78)" in row["why"]
    commit = git(clone, "rev-parse", "HEAD").strip()
    assert form(bench, "free", commit).read_text() == ""
    replay = bench.json("apply", "--rev", "main", "--repo", str(clone), "--base", "v3.0")
    assert replay["tree"] == done["tree"]


def test_apply_names_the_rebase_that_explains_its_conflict(bench: Bench) -> None:
    code = errors.PatchConflictError.exit_code
    message = bench.run("apply", "--rev", "v3.0", code=code)
    assert "dspatch patch rebase --engine vllm --rev v1.0 --onto v3.0 --dry-run" in message


def test_a_release_without_a_pin_is_the_usual_error(bench: Bench) -> None:
    message = bench.run(*REBASE[:-1], "v2.0", code=errors.UnpinnedRevisionError.exit_code)
    assert "dspatch pin add --engine vllm --rev v2.0" in message


def test_two_at_once(bench: Bench) -> None:
    from filelock import FileLock

    stopped(bench, *REBASE)
    with FileLock(tree(bench).parent / ".lock"):
        for words in (REBASE, ("patch", "rebase", "--continue"), ("patch", "rebase", "--abort")):
            bench.run(*words, code=errors.LockedError.exit_code)


def test_an_edited_tree_is_left_alone(bench: Bench) -> None:
    bench.run("apply", "--rev", "v1.0")
    (bench.root / "data/patches/vllm/series").write_text("free\n")
    for name in ("loads", "uses"):
        (bench.root / "data/patches/vllm" / name).rename(bench.root / name)
    bench.run("apply", "--rev", "v3.0")
    patches(bench)
    (tree(bench) / "vllm/ops.py").write_text("mine = 1\n")
    bench.run(*REBASE, code=errors.EditedTreeError.exit_code)
    assert (tree(bench) / "vllm/ops.py").read_text() == "mine = 1\n"
    git(tree(bench), "checkout", "vllm/ops.py")
    stopped(bench, *REBASE)
    (tree(bench) / "mine.py").write_text("x = 1\n")
    for step in ("--skip", "--abort"):
        message = bench.run("patch", "rebase", step, code=errors.EditedTreeError.exit_code)
        assert "mine.py" in message


def test_a_job_under_a_rebase_is_not_applied_over_and_status_says_so(bench: Bench) -> None:
    series = bench.root / "data/patches/vllm/series"
    moved = [bench.root / "data/patches/vllm" / name for name in ("loads", "uses")]
    series.write_text("free\n")
    for folder in moved:
        folder.rename(bench.root / folder.name)
    bench.run("apply", "--rev", "v3.0")
    patches(bench)
    stopped(bench, *REBASE)
    states = bench.json("status")["vllm-3.0-cpu-deepseek"]
    assert states[0]["state"] == "rebase under way"
    assert states[0]["detail"] == "onto v3.0, at loads"
    (bench.root / "data/patches/vllm/series").write_text("")
    shutil.rmtree(bench.root / "data/patches/vllm/loads")
    shutil.rmtree(bench.root / "data/patches/vllm/uses")
    shutil.rmtree(bench.root / "data/patches/vllm/free")
    message = bench.run("apply", "--rev", "v3.0", "--discard-edits", code=STOPPED)
    assert "a rebase onto v3.0 is under way" in message


def test_a_file_that_upstream_deleted(bench: Bench) -> None:
    release(bench, "4.0", {"vllm/model.py": None})
    words = ("patch", "rebase", "--rev", "v1.0", "--onto", "v4.0")
    found = stopped(bench, *words)
    (reason,) = rows(found)["loads"]["reasons"]
    assert (reason["gone"], reason["since"]) == (True, "v4.0")
    job = tree(bench, "4.0")
    assert git(job, "status", "--porcelain") == "DU vllm/model.py\n"
    git(job, "rm", "-q", "vllm/model.py")
    assert "nothing is left of loads" in bench.run("patch", "rebase", "--continue", code=STOPPED)
    done = bench.json("patch", "rebase", "--skip")
    assert rows(done)["uses"]["status"] == "waits"
    assert not (job / "vllm/model.py").exists()


def test_a_file_that_upstream_renamed_is_followed_by_the_merge(bench: Bench) -> None:
    release(bench, "4.0", {"vllm/model.py": None, "vllm/core/model_base.py": "# moved\n" + MODEL})
    done = bench.json("patch", "rebase", "--rev", "v1.0", "--onto", "v4.0")
    assert rows(done)["loads"]["how"] == "merged"
    assert "data.float()" in (tree(bench, "4.0") / "vllm/core/model_base.py").read_text()
    assert not (tree(bench, "4.0") / "vllm/model.py").exists()


def test_code_that_upstream_took_over_in_a_file_of_another_name(bench: Bench) -> None:
    moved = '"""Loads."""\n\nimport math\n\n\n' + LOADS_AND_HELPS[LOADS_AND_HELPS.index("class") :]
    release(bench, "4.0", {"vllm/model.py": "import math\n", "vllm/core.py": moved})
    row = bench.json("apply", "--rev", "v4.0")["series"][0]
    assert row["status"] == "upstream"
    assert "`Model.load` in vllm/core.py" in row["why"]


def test_several_rebases_at_once_are_told_apart(bench: Bench) -> None:
    stopped(bench, *REBASE)
    stopped(bench, *REBASE, "--variant", "deepseek-v3")
    message = bench.run("patch", "rebase", "--abort", "--variant", "deepseek-v2", code=STOPPED)
    assert "more than one rebase is under way" in message
    bench.run("patch", "rebase", "--abort", "--variant", "deepseek-v3")
    bench.run("patch", "rebase", "--abort")
    assert not tree(bench).exists()


@pytest.mark.parametrize("filled", [10_000, 40_000, 80_000, 110_000])
def test_a_full_disk_is_named_and_the_rebase_goes_on_with_room(filled: int, bench: Bench) -> None:
    with disk(bench.root / "disk", "160k") as place:
        moved = {"DSPATCH_WORK": str(place / "work")}
        (place / "filler").write_bytes(bytes(filled))
        full = errors.DiskFullError.exit_code
        with bench.start(*REBASE, **moved) as process:
            out, err = process.communicate()
        assert process.returncode in (full, STOPPED), err + out
        assert "Traceback" not in err
        (place / "filler").unlink()
        subprocess.run(["mount", "-o", "remount,size=4m", str(place)], check=True)
        bench.run(*REBASE, code=STOPPED, **moved)
        job = place / "work/jobs/vllm-3.0-cpu-deepseek/tree"
        assert git(job, "status", "--porcelain") == "UU vllm/model.py\n"
        bench.run("patch", "rebase", "--abort", **moved)
        assert not job.exists()


def test_a_damaged_state_is_told(bench: Bench) -> None:
    stopped(bench, *REBASE)
    path = tree(bench).parent / "rebase.json"
    for text in ("{", "[]", '{"wanted": {}}'):
        path.write_text(text)
        for words in (("patch", "rebase", "--continue"), REBASE):
            assert "rebase.json cannot be read" in bench.run(*words, code=STOPPED)


def test_edits_made_after_a_rebase_was_cut_off_are_not_overwritten(bench: Bench) -> None:
    stopped(bench, *REBASE)
    path = tree(bench).parent / "rebase.json"
    state = json.loads(path.read_text())
    path.write_text(json.dumps({**state, "phase": "working"}))
    (tree(bench) / "vllm/ops.py").write_text("mine = 1\n")
    code = errors.EditedTreeError.exit_code
    for words in (REBASE, ("patch", "rebase", "--continue")):
        assert "vllm/ops.py" in bench.run(*words, code=code)
    assert (tree(bench) / "vllm/ops.py").read_text() == "mine = 1\n"
    git(tree(bench), "checkout", "vllm/ops.py")
    bench.run(*REBASE, code=STOPPED)
    assert git(tree(bench), "status", "--porcelain") == "UU vllm/model.py\n"
