"""Patches out and in: exports that plain git takes, imports of anyone's change, all of it or nothing."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest

from dspatch import errors
from dspatch.carry.editing import folder
from tests import killer, support
from tests.integration.test_flow import APPLY, Bench, bench, made, repository
from tests.support import PATCH

__all__ = ["bench", "made"]  # fixtures
WHERE = ("--engine", "vllm", "--rev", "v1.0")
EXPORT = ("patch", "export", *WHERE, "-o", "exported")
SECOND = """\
subject = "[CPU] Größer: name the backend"
reason = '''
diff --git would be mistaken here, and
---
so would this.
'''
upstream = "https://github.com/x/y/commit/0123456789012345678901234567890123456789"
drop-when = "upstream names it"
targets = ["cpu", "cuda"]
families = ["mla"]
written-for = "v1.0"

[[edit]]
file = "mini/platform.py"
symbol = "CpuPlatform"
verb = "insert-after"
find = 'name = "cpu"'
text = '''title = "größer"'''
"""

FORMATTED = 'option = "output-format"\n' + SECOND.replace(
    '"größer"', '"${ format.name }"\nfirst = 1\nsecond = 2\nthird = 3'
)
ACME = '[chat.completion]\nadd = { vendor = "acme" }\n'


def git(place: Path, *words: str) -> str:
    """Plain git, without the space around what it prints."""
    return support.git(place, *words).strip()


def files(place: Path) -> dict[str, bytes]:
    return {
        path.relative_to(place).as_posix(): path.read_bytes()
        for path in place.rglob("*")
        if path.is_file()
    }


def empty_data(bench: Bench) -> dict[str, str]:
    """Shipped data with the traits, but without patches."""
    folder = bench.root / "empty"
    (folder / "patches/vllm").mkdir(parents=True)
    (folder / "templates/vllm").mkdir(parents=True)
    shutil.copy(bench.root / "data/patches/vllm/traits.toml", folder / "patches/vllm/traits.toml")
    (folder / "patches/vllm/series").write_text("")
    return {"DSPATCH_DATA": str(folder)}


@pytest.fixture
def two(bench: Bench) -> Bench:
    bench.write_series({"cpu-mla": PATCH, "name-it": SECOND})
    return bench


def test_git_am_alone_gives_the_tree_of_an_export(two: Bench) -> None:
    done = two.json(*EXPORT)
    assert done["files"] == ["0001-cpu-mla.patch", "0002-name-it.patch", "series"]
    two.run(*APPLY)
    pristine = git(two.tree, "rev-parse", "refs/dspatch/pristine^{tree}")
    assert done["base_tree"] == pristine
    clone = two.root / "clone"
    git(two.root, "init", "-q", str(clone))
    (clone / ".git/objects/info/alternates").write_text(f"{two.root}/cache/git/vllm.git/objects\n")
    git(clone, "reset", "-q", "--hard", git(clone, "commit-tree", "-m", "base", pristine))
    mails = [str(two.root / "exported" / name) for name in done["files"][:2]]
    git(clone, "am", "-q", "--keep-cr", *mails)
    assert git(clone, "rev-parse", "HEAD^{tree}") == done["tree"]
    assert git(two.tree, "rev-parse", "HEAD^{tree}") == done["tree"]
    assert "[CPU] Größer: name the backend" in git(clone, "log", "-1", "--format=%s")
    # What git made of it is taken in again, as a branch.
    branch = (
        *WHERE,
        "--repo",
        str(clone),
        f"{git(clone, 'rev-list', '--max-parents=0', 'HEAD')}..HEAD",
    )
    taken = two.json("patch", "import", *branch, **empty_data(two))["taken"]
    assert [one["name"] for one in taken] == ["cpu-mla", "name-it"]


def test_an_import_of_an_export_is_exported_to_the_same_bytes(two: Bench) -> None:
    two.run(*EXPORT)
    nothing = empty_data(two)
    taken = two.json("patch", "import", *WHERE, "exported", **nothing)["taken"]
    assert [(one["name"], one["how"]) for one in taken] == [
        ("cpu-mla", "strict"),
        ("name-it", "strict"),
    ]
    two.run("patch", "export", *WHERE, "-o", "again", **nothing)
    assert files(two.root / "again") == files(two.root / "exported")
    two.run("patch", "export", *WHERE, "-o", "exported", "--check", **nothing)


def test_an_export_says_when_the_folder_has_drifted(two: Bench) -> None:
    two.run(*EXPORT)
    assert not two.json(*EXPORT)["changed"]
    two.run(*EXPORT, "--check")
    patch = two.root / "exported/0002-name-it.patch"
    patch.write_bytes(patch.read_bytes() + b"\n")
    (two.root / "exported/0001-cpu-mla.patch").unlink()
    message = two.run(*EXPORT, "--check", code=errors.ExportDriftError.exit_code)
    assert "missing 0001-cpu-mla.patch" in message
    assert "changed 0002-name-it.patch" in message
    assert "changed series" not in message
    two.run(*EXPORT)
    two.run(*EXPORT, "--dry-run")


def test_an_export_leaves_files_alone_that_it_did_not_write(two: Bench) -> None:
    for name, data in {
        "mine.txt": b"x",
        "0001-cpu-mla.patch": b"mine",
        "series": b"mine\n",
    }.items():
        shutil.rmtree(two.root / "exported", ignore_errors=True)
        (two.root / "exported").mkdir()
        (two.root / "exported" / name).write_bytes(data)
        message = two.run(*EXPORT, code=errors.PatchFormatError.exit_code)
        assert f"why:  {name}" in message
        assert files(two.root / "exported") == {name: data}


def test_single_patches_are_exported_by_name(two: Bench) -> None:
    assert two.json(*EXPORT, "name-it")["files"] == ["0001-name-it.patch", "series"]
    assert "there is no patch `no`" in two.run(*EXPORT, "no", code=31)
    message = two.run(*EXPORT, "cpu-mla", "--target", "cuda", code=34)
    assert "other target" in message


FIX = """\
--- a/vllm/platform.py
+++ b/vllm/platform.py
@@ -11,3 +11,3 @@
         if use_sparse:
-            raise NotImplementedError("Sparse is not supported on CPU.")
+            return "CPU_SPARSE"
         return "CPU_ATTN"
"""


def imported(bench: Bench, *words: str, code: int = 0) -> str:
    return bench.run("patch", "import", *WHERE, *words, code=code)


def test_a_plain_diff_becomes_a_patch_that_applies(bench: Bench) -> None:
    (bench.root / "fix.diff").write_text(FIX)
    message = imported(bench, "fix.diff", code=2)
    assert "--reason is needed" in message
    assert not (bench.root / "work/patches").exists()
    out = imported(bench, "fix.diff", "--reason", "Sparse works", "--name", "sparse")
    assert "sparse: as it is onto v1.0, vllm/platform.py" in out
    bench.run(*APPLY)
    assert 'return "CPU_SPARSE"' in (bench.tree / "vllm/platform.py").read_text()
    form = (bench.root / "work/patches/vllm/sparse/v1.0.diff").read_text()
    assert "index " in form
    assert len(form.split("index ")[1].split("..")[0]) == 40
    again = imported(bench, "fix.diff", "--reason", "Again", "--name", "sparse", code=31)
    assert "there is a patch `sparse` already" in again
    assert "as patched, has it already" in imported(bench, "fix.diff", "--reason", "Again")


def test_standard_input_and_messages_that_say_why(bench: Bench) -> None:
    mail = f"From: a <a@localhost>\nSubject: [PATCH] Serve sparse (#7)\n\nIt works now.\n---\n{FIX}"
    for text, code in (("", errors.DiffFormatError.exit_code), (mail, 0)):
        done = subprocess.run(
            [sys.executable, "-m", "dspatch", "patch", "import", *WHERE, "-"],
            input=text,
            env=bench.environment,
            cwd=bench.root,
            capture_output=True,
            text=True,
            check=False,
        )
        assert done.returncode == code, done.stderr
    toml = (bench.root / "work/patches/vllm/serve-sparse/patch.toml").read_text()
    assert 'reason = "It works now."' in toml


def fork(bench: Bench) -> tuple[Path, str]:
    """A clone of upstream where two commits came after the release, and lines moved before them."""
    folder = bench.root / "fork"
    repository(folder)
    platform = folder / "vllm/platform.py"
    platform.write_text("# moved\n# down\n" + platform.read_text().replace("comment", "remark"))
    git(folder, "commit", "-qam", "Move it down\n\nBecause.")
    moved = git(folder, "rev-parse", "HEAD")
    platform.write_text(platform.read_text().replace('"CPU_ATTN"', '"CPU_FAST"'))
    git(folder, "commit", "-qam", "[Perf] Take the fast one (#12)\n\nIt is faster.\n\nCc: b")
    (folder / "vllm/new.py").write_text("x = 1\n")
    git(folder, "add", ".")
    git(folder, "commit", "-qm", "Add new")
    return folder, moved


def test_a_commit_of_a_later_upstream_is_merged_onto_the_pin(bench: Bench) -> None:
    folder, _ = fork(bench)
    commit = git(folder, "rev-parse", "HEAD^")
    for revision in (commit, commit[:9]):
        shutil.rmtree(bench.root / "work/patches", ignore_errors=True)
        out = imported(bench, revision, "--repo", str(folder))
        assert "take-the-fast-one: merged three-way onto v1.0" in out
    bench.run(*APPLY)
    text = (bench.tree / "vllm/platform.py").read_text()
    assert '"CPU_FAST"' in text
    assert "# moved" not in text
    git(folder, "remote", "add", "origin", "git@github.com:vllm-project/vllm.git")
    shutil.rmtree(bench.root / "work/patches")
    imported(bench, commit, "--repo", str(folder))
    toml = (bench.root / "work/patches/vllm/take-the-fast-one/patch.toml").read_text()
    assert 'upstream = "https://github.com/vllm-project/vllm/pull/12"' in toml
    assert 'subject = "[Perf] Take the fast one (#12)"' in toml
    assert 'reason = "It is faster."' in toml


def test_a_diff_on_files_of_a_clone_is_merged_with_that_clone(bench: Bench) -> None:
    folder, _ = fork(bench)
    (bench.root / "f.patch").write_text(
        git(folder, "format-patch", "--stdout", "-1", "HEAD^") + "\n"
    )
    message = imported(bench, "f.patch", code=34)
    assert "--repo with a clone" in message
    assert "nothing was imported" in message
    assert "merged three-way" in imported(bench, "f.patch", "--repo", str(folder))


def test_a_branch_is_a_patch_a_commit_or_one(bench: Bench) -> None:
    folder, _ = fork(bench)
    imported(bench, "main", "--repo", str(folder), "--reason", "All of it")
    own = bench.root / "work/patches/vllm"
    assert (own / "series").read_text().splitlines()[1:] == [
        "move-it-down",
        "take-the-fast-one",
        "add-new",
    ]
    bench.run(*APPLY)
    assert (bench.tree / "vllm/new.py").exists()
    shutil.rmtree(own)
    imported(bench, str(folder), "--squash")
    assert [path.parent.name for path in own.glob("*/patch.toml")] == ["move-it-down"]
    assert "* Add new" in (own / "move-it-down/patch.toml").read_text()
    shutil.rmtree(own)
    imported(bench, "v1.0..main~1", "--repo", str(folder))
    assert len(list(own.glob("*/patch.toml"))) == 2


def test_revisions_that_are_not_there_are_told(bench: Bench) -> None:
    folder, moved = fork(bench)
    assert "no commit, tag or branch" in imported(bench, "nothing", "--repo", str(folder), code=11)
    assert "no commits lie" in imported(bench, f"{moved}..{moved}", "--repo", str(folder), code=11)
    assert "could not be fetched" in imported(bench, "main", "--repo", "/nowhere", code=22)
    unknown = imported(bench, "0123456", "--repo", str(folder), code=11)
    assert "all 40 digits" in unknown


def test_a_series_of_which_one_does_not_fit_is_not_imported_at_all(bench: Bench) -> None:
    folder, _ = fork(bench)
    platform = folder / "vllm/platform.py"
    platform.write_text(platform.read_text().replace("a remark", "an other"))
    git(folder, "commit", "-qam", "Reword the remark\n\nBecause.")
    before = files(bench.root / "work") if (bench.root / "work").exists() else {}
    revisions = "main~2..main"
    message = imported(bench, revisions, "--repo", str(folder), "--reason", "x", code=34)
    assert "`Reword the remark` does not fit vllm v1.0" in message
    assert "vllm/platform.py" in message
    assert "patch new" in message
    assert {k: v for k, v in files(bench.root / "work").items() if "patches" in k} == before


def test_the_folders_of_quilt_and_of_format_patch(bench: Bench) -> None:
    folder, _ = fork(bench)
    git(folder, "format-patch", "-q", "-o", str(bench.root / "mails"), "v1.0")
    out = imported(bench, "mails", "--reason", "All")
    assert out.count("onto v1.0") == 3
    shutil.rmtree(bench.root / "work/patches")
    quilt = bench.root / "quilt"
    (quilt / "sub").mkdir(parents=True)
    (quilt / "sub/fix.patch").write_text("Description: Serve sparse\n It works.\n---\n" + FIX)
    (quilt / "series").write_text("# ours\nsub/fix.patch -p1\n")
    assert "serve-sparse: as it is" in imported(bench, "quilt")
    (quilt / "series").write_text("gone.patch\n")
    assert "lists gone.patch" in imported(bench, "quilt", code=44)


def test_a_patch_for_a_name_or_trait_that_cannot_be(bench: Bench) -> None:
    mail = "From: a\nSubject: x\n\nwhy\n\nPatch: ../../evil\nApplies-to: vllm v1.0; needs no_such_trait\n---\n"
    (bench.root / "x.patch").write_text(mail + FIX)
    assert "`no_such_trait` is no trait" in imported(bench, "x.patch", code=31)
    (bench.root / "x.patch").write_text(mail.replace("; needs no_such_trait", "") + FIX)
    assert "x: as it is" in imported(bench, "x.patch")
    assert "cannot be the name" in imported(bench, "x.patch", "--name", "../x", code=31)


def test_two_imports_at_once_both_arrive(bench: Bench) -> None:
    bench.run(*APPLY)
    for number in range(3):
        new = f"--- /dev/null\n+++ b/vllm/n{number}.py\n@@ -0,0 +1 @@\n+x = {number}\n"
        (bench.root / f"n{number}.diff").write_text(new)
    runs = [bench.start("patch", "import", *WHERE, f"n{n}.diff", "--reason", "x") for n in range(3)]
    found = [run.communicate() for run in runs]
    assert [run.returncode for run in runs] == [0, 0, 0], found
    bench.run(*APPLY)
    assert len(list(bench.tree.glob("vllm/n?.py"))) == 3


RUN = "import os, sys\nfrom dspatch.cli import main\nos.chdir({root!r})\nmain({words!r})"


@pytest.mark.parametrize("command", ["import", "export"])
def test_killed_at_any_touch_the_old_state_or_the_new_stands(two: Bench, command: str) -> None:
    (two.root / "fix.diff").write_text(FIX)
    words = ["patch", "import", *WHERE, "fix.diff", "--reason", "x"]
    words = words if command == "import" else list(EXPORT)
    two.run(*EXPORT, "name-it")
    two.run(*APPLY)
    state = two.root / ("work/patches" if command == "import" else "exported")
    old = files(state) if state.exists() else {}

    def prepare() -> None:
        shutil.rmtree(state, ignore_errors=True)
        for name, data in old.items():
            (state / name).parent.mkdir(parents=True, exist_ok=True)
            (state / name).write_bytes(data)

    seen = []
    code = RUN.format(root=str(two.root), words=words)
    variables = {k: v for k, v in two.environment.items() if k.startswith(("DSPATCH", "PIP"))}
    for _ in killer.killed_everywhere(code, prepare, step=5, **variables):
        # The first thing that any command does when it reads the patches.
        folder.finish(state / "vllm")
        seen.append(files(state) if state.exists() else {})
    new = seen[-1]
    assert new != old
    assert all(one in (old, new) for one in seen)
    assert seen[0] == old


def test_a_read_only_folder_is_told(two: Bench) -> None:
    if os.geteuid() == 0:
        pytest.skip("root writes everywhere")
    target = two.root / "locked"
    target.mkdir(mode=0o555)
    two.run("patch", "export", *WHERE, "-o", str(target / "x"), code=1)


def test_a_pull_request_of_what_is_made_of_an_output_format_is_made_with_one(bench: Bench) -> None:
    bench.write_series({"cpu-mla": PATCH, "formatted": FORMATTED})
    (bench.root / "acme.toml").write_text(ACME)
    words = ("patch", "export", "formatted", "--upstream", *WHERE, "-o", "offered")
    message = bench.run(*words, code=errors.OutputFormatError.exit_code)
    assert "--output-format FILE" in message
    assert not (bench.root / "offered").exists()
    bench.run(*words, "--output-format", "acme.toml")
    changes = b"".join(files(bench.root / "offered").values())
    assert b'+    title = "acme"\n' in changes


def test_an_edit_in_the_tree_of_a_job_with_an_output_format_is_taken_back(bench: Bench) -> None:
    bench.write_series({"cpu-mla": PATCH, "formatted": FORMATTED})
    (bench.root / "acme.toml").write_text(ACME)
    bench.run(*APPLY, "--output-format", "acme.toml")
    (tree,) = (bench.root / "work/jobs").glob("*/tree")
    file = tree / "vllm/platform.py"
    file.write_text(file.read_text().replace("third = 3", "third = 4"))
    (done,) = bench.json("patch", "refresh", "formatted")["patches"]
    assert (done["name"], done["form"]) == ("formatted", None)
    toml = tomllib.loads((bench.root / "data/patches/vllm/formatted/patch.toml").read_text())
    assert toml["edit"][0]["text"] == (
        'title = "${ format.name }"\nfirst = 1\nsecond = 2\nthird = 4'
    )
