"""Patches changed with ordinary git in a job's tree, and taken back into their folders."""

from __future__ import annotations

import json
import shutil
import tomllib
from pathlib import Path

import pytest

from dspatch import errors
from dspatch.carry.editing import folder
from tests import killer
from tests.integration.test_exchange import RUN, files, git
from tests.integration.test_flow import APPLY, Bench, bench, made, repository
from tests.support import PATCH

__all__ = ["bench", "made"]  # fixtures
SECOND = """\
subject = "Name the backend"
reason = "So that one sees it."
upstream = "never: a test"
drop-when = "never"
targets = ["cpu", "cuda"]

[[edit]]
file = "mini/platform.py"
symbol = "CpuPlatform"
verb = "insert-after"
find = 'name = "cpu"'
text = '''
title = "it"
length = 2
'''
"""


@pytest.fixture
def job(bench: Bench) -> Bench:
    bench.write_series({"cpu-mla": PATCH, "name-it": SECOND})
    bench.run(*APPLY)
    return bench


def edit(bench: Bench, path: str, old: str, new: str) -> None:
    file = bench.tree / path
    assert old in file.read_text()
    file.write_text(file.read_text().replace(old, new))


def refresh(bench: Bench, *words: str, code: int = 0) -> str:
    return bench.run("patch", "refresh", *words, code=code)


def refreshed(bench: Bench, *words: str) -> list[dict]:
    """Refresh, and hold the tree against what applying the series afresh gives."""
    work = git(bench.tree, "stash", "create") or "HEAD"
    wanted = {k: v for k, v in files(bench.tree).items() if not k.startswith(".git/")}
    done = bench.json("patch", "refresh", *words)
    assert done["moved"]
    now = {k: v for k, v in files(bench.tree).items() if not k.startswith(".git/")}
    if "patch" not in work:
        assert now == wanted
    assert git(bench.tree, "status", "--porcelain") == ""
    fresh = bench.json(*APPLY, DSPATCH_WORK=str(bench.root / "fresh"), **own(bench))
    assert git(bench.tree, "rev-parse", "HEAD^{tree}") == fresh["tree"]
    shutil.rmtree(bench.root / "fresh")
    return done["patches"]


def own(bench: Bench) -> dict[str, str]:
    return {"DSPATCH_PATCHES": str(bench.root / "work/patches")}


def toml(bench: Bench, name: str) -> dict:
    return tomllib.loads((bench.root / f"data/patches/vllm/{name}/patch.toml").read_text())


def test_an_edit_of_a_rendered_file_goes_into_its_template(job: Bench) -> None:
    edit(job, "vllm/cpu_mla.py", "The backend.", "The MLA backend.")
    (done,) = refreshed(job)
    assert done["name"] == "cpu-mla"
    assert not done["form"]
    template = (job.root / "data/templates/vllm/cpu_mla.py.j2").read_text()
    assert template.startswith('"""The MLA backend."""')
    assert "<% for variant in variants %>" in template


def test_an_edit_of_an_edit_goes_into_its_text(job: Bench) -> None:
    before = (job.root / "data/patches/vllm/name-it/patch.toml").read_text()
    edit(job, "vllm/platform.py", 'title = "it"', '# named\n    title = "other"')
    (done,) = refreshed(job)
    assert done["name"] == "name-it"
    assert not done["form"]
    after = (job.root / "data/patches/vllm/name-it/patch.toml").read_text()
    assert after == before.replace('title = "it"\n', '# named\ntitle = "other"\n')


def test_the_lines_say_which_of_two_patches_is_meant(job: Bench) -> None:
    edit(job, "vllm/platform.py", 'return "CPU_MLA"', 'return "CPU_MLA2"')
    (done,) = refreshed(job)
    assert done["name"] == "cpu-mla"
    assert not done["form"]
    assert toml(job, "cpu-mla")["edit"][0]["text"] == 'return "CPU_MLA2"'


def test_what_no_source_can_say_is_kept_as_a_form_and_told(job: Bench) -> None:
    edit(job, "vllm/platform.py", "# a comment that stays", "# a comment that changed")
    edit(job, "vllm/cpu_mla.py", "The backend.", "The MLA backend.")
    message = refresh(job, code=errors.EditedTreeError.exit_code)
    assert "vllm/platform.py: one of cpu-mla, name-it" in message
    assert "git commit --fixup" in message
    (done,) = refreshed(job, "cpu-mla")
    assert done["kept_as_form"] == ["vllm/platform.py"]
    assert done["form"].endswith("data/patches/vllm/cpu-mla/v1.0.diff")
    assert "The MLA backend" in (job.root / "data/templates/vllm/cpu_mla.py.j2").read_text()


def test_amended_fixup_and_new_commits(job: Bench) -> None:
    edit(job, "vllm/cpu_mla.py", "The backend.", "A backend.")
    git(job.tree, "commit", "-qam", "fixup! Serve MLA on CPU")
    edit(job, "vllm/platform.py", "length = 2", "length = 3")
    message = "fixup! Name the backend"
    git(job.tree, "commit", "-qam", message)
    (job.tree / "vllm/more.py").write_text("x = 1\n")
    git(job.tree, "add", ".")
    git(
        job.tree,
        "commit",
        "-qm",
        "[Misc] Add more\n\nIt is needed.\n\nUpstream: https://x.example/1",
    )
    done = {one["name"]: one for one in refreshed(job)}
    assert list(done) == ["cpu-mla", "name-it", "add-more"]
    assert not done["cpu-mla"]["form"]
    assert not done["name-it"]["form"]
    assert done["add-more"]["new"]
    own = tomllib.loads((job.root / "work/patches/vllm/add-more/patch.toml").read_text())
    assert own["subject"] == "[Misc] Add more"
    # The next round is quiet.
    assert job.json("patch", "refresh")["patches"] == []


def test_a_reworded_commit_rewords_the_patch(job: Bench) -> None:
    said = git(job.tree, "log", "-1", "--format=%B").replace("So that one sees it.", "It is shown.")
    git(job.tree, "commit", "-q", "--amend", "-m", said.replace("Name the", "Name that"))
    refreshed(job)
    assert toml(job, "name-it")["subject"] == "Name that backend"
    assert toml(job, "name-it")["reason"].strip() == "It is shown."


def test_one_patch_is_edited_below_the_others(job: Bench) -> None:
    out = job.run("patch", "edit", "cpu-mla")
    assert "stands at cpu-mla" in out
    assert "title" not in (job.tree / "vllm/platform.py").read_text()
    assert "HEAD is" in job.run(*APPLY, code=errors.EditedTreeError.exit_code)
    edit(job, "vllm/platform.py", 'return "CPU_MLA"', 'return "CPU_MLA3"')
    again = job.run("patch", "edit", "name-it", code=errors.EditedTreeError.exit_code)
    assert "patch refresh" in again
    done = job.json("patch", "refresh")
    assert [one["name"] for one in done["patches"]] == ["cpu-mla"]
    text = (job.tree / "vllm/platform.py").read_text()
    assert 'return "CPU_MLA3"' in text
    assert "title" in text
    job.run("patch", "edit", "cpu-mla")
    job.run(*APPLY, "--discard-edits")
    assert "title" in (job.tree / "vllm/platform.py").read_text()


def test_an_edit_that_breaks_a_later_patch_changes_nothing(job: Bench) -> None:
    before = files(job.root / "data")
    job.run("patch", "edit", "cpu-mla")
    edit(job, "vllm/platform.py", "class CpuPlatform", "class Other")
    message = refresh(job, code=errors.PatchConflictError.exit_code)
    assert "name-it" in message
    assert files(job.root / "data") == before
    assert "class Other" in (job.tree / "vllm/platform.py").read_text()


def test_a_new_patch_from_edits_and_an_empty_one_to_fill(job: Bench) -> None:
    assert "--reason is needed" in job.run("patch", "new", "first", code=2)
    (job.tree / "vllm/first.py").write_text("x = 1\n")
    job.run("patch", "new", "first", "--reason", "It was missing")
    job.run("patch", "new", "second", "--reason", "That too", "--upstream", "https://x.example/2")
    edit(job, "vllm/first.py", "x = 1", "x = 2")
    edit(job, "vllm/platform.py", "# a comment that stays", "# a comment that changed")
    done = refreshed(job)
    assert [(one["name"], one["new"]) for one in done] == [("second", True)]
    own = job.root / "work/patches/vllm"
    assert (own / "series").read_text().splitlines()[1:] == ["first", "second"]
    assert (
        tomllib.loads((own / "second/patch.toml").read_text())["upstream"] == "https://x.example/2"
    )
    assert "there is a patch `second`" in job.run(
        "patch", "new", "second", "--reason", "x", code=31
    )


def test_dropping_own_and_shipped_patches(job: Bench) -> None:
    (job.tree / "vllm/first.py").write_text("x = 1\n")
    job.run("patch", "new", "first", "--reason", "It was missing")
    assert "removed" in job.run("patch", "drop", "first")
    assert not (job.root / "work/patches/vllm/first").exists()
    job.run("patch", "drop", "name-it")
    job.run(*APPLY)
    assert not (job.tree / "vllm/first.py").exists()
    assert "title" not in (job.tree / "vllm/platform.py").read_text()
    job.run("patch", "drop", "name-it", "--undo")
    job.run(*APPLY)
    assert "title" in (job.tree / "vllm/platform.py").read_text()
    assert "is not left out" in job.run("patch", "drop", "name-it", "--undo", code=31)


def test_words_are_edited_in_an_editor(job: Bench) -> None:
    script = job.root / "editor"
    script.write_text("#!/bin/sh\nsed -i 's/So that one sees it./Because./' \"$1\"\n")
    script.chmod(0o755)
    words = ("patch", "edit", "name-it", "--words")
    assert "changed" in job.run(*words, EDITOR=str(script))
    assert toml(job, "name-it")["reason"] == "Because."
    assert "as it was" in job.run(*words, EDITOR="true")
    script.write_text("#!/bin/sh\necho 'broken =' >> \"$1\"\n")
    message = job.run(*words, EDITOR=str(script), code=31)
    kept = Path(message.split("your text is kept in ")[1].strip())
    assert "broken =" in kept.read_text()
    assert toml(job, "name-it")["reason"] == "Because."


def test_a_tree_that_git_is_busy_with_or_that_lost_a_patch(job: Bench) -> None:
    git(job.tree, "revert", "--no-commit", "HEAD")
    assert "in the middle of a revert" in refresh(job, code=35)
    git(job.tree, "reset", "-q", "--hard")
    git(job.tree, "reset", "-q", "--hard", "HEAD~1")
    (job.tree / "vllm/x.py").write_text("x = 1\n")
    message = refresh(job, "cpu-mla", code=35)
    assert "no commit of name-it" in message
    assert "dspatch patch drop name-it" in message
    git(job.tree, "reset", "-q", "--hard", "refs/dspatch/patched")
    git(job.tree, "checkout", "-q", "-b", "side", "HEAD~1")
    git(job.tree, "commit", "-q", "--allow-empty", "-m", "side")
    git(job.tree, "checkout", "-q", "dspatch")
    git(job.tree, "merge", "-q", "side", "-m", "merge")
    assert "it has merges" in refresh(job, code=35)


def test_patches_changed_behind_the_tree_s_back_are_not_overwritten(job: Bench) -> None:
    edit(job, "vllm/cpu_mla.py", "The backend.", "A backend.")
    job.write_series({"cpu-mla": PATCH.replace("CPU_MLA", "CPU_MLA2"), "name-it": SECOND})
    message = refresh(job, code=35)
    assert "the patches have changed since" in message
    assert "A backend." in (job.tree / "vllm/cpu_mla.py").read_text()


def test_patches_of_an_installed_dspatch_get_an_own_form(job: Bench) -> None:
    before = files(job.root / "data")
    edit(job, "vllm/cpu_mla.py", "The backend.", "A backend.")
    # The data lies inside the package.
    installed = "from dspatch import paths\npaths.PACKAGE = paths.data('patches').parent\n"

    def run(*words: str) -> tuple[int, str]:
        code = installed + RUN.format(root=str(job.root), words=["patch", *words])
        done = killer.run(code, **variables(job))
        return done.returncode, done.stderr

    assert run("refresh")[0] == 0
    assert files(job.root / "data") == before
    assert (job.root / "work/patches/vllm/cpu-mla/v1.0.diff").is_file()
    assert "A backend." in (job.tree / "vllm/cpu_mla.py").read_text()
    edit(job, "vllm/cpu_mla.py", "A backend.", "Some backend.")
    assert run("refresh")[0] == 0
    assert "Some backend." in (job.root / "work/patches/vllm/cpu-mla/v1.0.diff").read_text()
    said = git(job.tree, "log", "-1", "--format=%B").replace("Name the", "Name that")
    git(job.tree, "commit", "-q", "--amend", "-m", said)
    code, message = run("refresh")
    assert code == errors.PatchFormatError.exit_code
    assert "DSPATCH_DATA" in message


def variables(bench: Bench) -> dict[str, str]:
    return {k: v for k, v in bench.environment.items() if k.startswith(("DSPATCH", "PIP"))}


@pytest.mark.parametrize(
    ("path", "data"),
    [
        ("vllm/empty.py", b""),
        ("vllm/bin.dat", bytes(range(256))),
        ("vllm/größe x.py", b"x = 1\r\ny = 2\r\n"),
        ("vllm/no_end.py", b"x = 1"),
    ],
)
def test_files_of_any_kind_are_taken(job: Bench, path: str, data: bytes) -> None:
    (job.tree / path).write_bytes(data)
    (job.tree / "run.sh").write_text("#!/bin/sh\n")
    (job.tree / "run.sh").chmod(0o755)
    (job.tree / "vllm/link.py").symlink_to("platform.py")
    (job.tree / "csrc/kernel.cpp").unlink()
    git(job.tree, "mv", "vllm/registry.py", "vllm/registered.py")
    git(job.tree, "add", ".")
    git(job.tree, "commit", "-qm", "All kinds\n\nBecause.")
    (done,) = refreshed(job)
    assert done["name"] == "all-kinds"


def test_a_form_of_another_release_that_still_fits_stays_the_only_one(job: Bench) -> None:
    edit(job, "vllm/registry.py", "CPU_ATTN = ", "CPU_ATTENTION = ")
    job.run("patch", "new", "mine", "--reason", "It is needed")
    mine = job.root / "work/patches/vllm/mine"
    (mine / "v1.0.diff").rename(mine / "v0.9.diff")
    job.run(*APPLY)
    before = files(mine)
    edit(job, "vllm/cpu_mla.py", "The backend.", "The MLA backend.")
    assert [one["name"] for one in refreshed(job)] == ["cpu-mla"]
    assert files(mine) == before


def test_a_refresh_takes_its_source_once(job: Bench) -> None:
    edit(job, "vllm/cpu_mla.py", "The backend.", "The MLA backend.")
    with job.start("patch", "refresh") as process:
        _, told = process.communicate()
    assert process.returncode == 0, told
    assert told.count("source: ") == 1


def test_killed_at_any_touch_of_a_refresh_no_edit_is_lost(job: Bench) -> None:
    saved = job.root / "saved"
    edit(job, "vllm/cpu_mla.py", "The backend.", "A backend.")
    edit(job, "vllm/platform.py", "length = 2", "length = 3")
    git(job.tree, "commit", "-qm", "fixup! Name the backend", "vllm/platform.py")
    edit(job, "vllm/cpu_mla.py", "A backend.", "Some backend.")
    shutil.copytree(job.root / "data", saved / "data")
    shutil.copytree(job.root / "work", saved / "work", symlinks=True)
    mine = {k: v for k, v in files(job.tree).items() if not k.startswith(".git/")}

    def prepare() -> None:
        for name in ("data", "work"):
            shutil.rmtree(job.root / name)
            shutil.copytree(saved / name, job.root / name, symlinks=True)

    old, seen = files(saved / "data"), []
    code = RUN.format(root=str(job.root), words=["patch", "refresh"])
    for _ in killer.killed_everywhere(code, prepare, step=9, **variables(job)):
        assert {k: v for k, v in files(job.tree).items() if not k.startswith(".git/")} == mine
        folder.finish(job.root / "work/patches/vllm")
        seen.append(files(job.root / "data"))
    new = seen[-1]
    assert new != old
    assert all(one in (old, new) for one in seen)
    assert b"Some backend." in new["templates/vllm/cpu_mla.py.j2"]
    prepare()
    job.run("patch", "refresh")
    assert files(job.root / "data") == new
    assert json.loads(job.run("status", "--json"))


def test_a_fork_s_revision_is_refreshed_under_its_commit(bench: Bench) -> None:
    fork = bench.root / "fork"
    repository(fork)
    (fork / ".gitattributes").write_text("* text=auto eol=crlf\n")
    (fork / "vllm/crlf.py").write_bytes(b"x = 1\r\ny = 2\r\n")
    git(fork, "-c", "core.autocrlf=false", "add", ".")
    git(fork, "commit", "-qm", "on the fork")
    git(fork, "commit", "-q", "--allow-empty", "-m", "and on")
    bench.write_series({"cpu-mla": PATCH, "name-it": SECOND})
    words = ("--rev", "main", "--repo", str(fork), "--base", "v1.0")
    bench.run("apply", *words)
    tree = bench.root / "work/jobs/vllm-main-cpu-deepseek/tree"
    assert git(tree, "status", "--porcelain") == ""
    # The bytes of the commit lie there, whatever the attributes ask for.
    assert b"\r" not in (tree / "vllm/platform.py").read_bytes()
    (tree / "vllm/new.py").write_bytes(b"a = 1\r\nb = 2\n")
    bench.run("patch", "new", "mine", "--reason", "It is needed")
    form = next((bench.root / "work/patches/vllm/mine").glob("*.diff"))
    assert form.name == git(fork, "rev-parse", "HEAD") + ".diff"
    assert b"+a = 1\r\n+b = 2\n" in form.read_bytes()
    assert bench.json("patch", "refresh")["patches"] == []
