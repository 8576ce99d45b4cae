"""The one place that words git, through GitPython's command interface; it knows nothing of engines."""

from __future__ import annotations

import os
import re
import shutil
import tempfile
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import IO, TYPE_CHECKING, BinaryIO, cast

from dspatch.errors import DiskFullError, DspatchError, GitError, NotWritableError
from dspatch.files import folder_in_one_step

if TYPE_CHECKING:
    from git.cmd import Git

# Commits are a pure function of their content: who and when never enter a tree's history.
IDENTITY = "dspatch <dspatch@localhost>"
EPOCH = 946684800
# Less room than this on the disk of a failed write is why it failed.
FULL_BYTES = 1 << 20
# A lock of git's that stays as it is for so long was left by one that was killed.
STALE_SECONDS = 1.0
# One git command takes a few of them.
MOST_LOCKS = 5
EXECUTABLE, LINK = "100755", "120000"
RAW = "-text -eol -ident -filter -working-tree-encoding"
FILE_MODES = {0o644: "100644", 0o755: EXECUTABLE}

# Variables that git reads and a hook or an outer git may have left in the environment.
_INHERITED = ("GIT_DIR", "GIT_WORK_TREE", "GIT_INDEX_FILE", "GIT_OBJECT_DIRECTORY", "GIT_PREFIX")
_ENVIRONMENT = {
    "GIT_CONFIG_NOSYSTEM": "1",
    "GIT_CONFIG_GLOBAL": os.devnull,
    "GIT_TERMINAL_PROMPT": "0",
    "LC_ALL": "C",
}
_SETTINGS = (
    "core.autocrlf=false",
    "core.safecrlf=false",
    "core.quotePath=false",
    "core.fsmonitor=false",
    "gc.auto=0",
    "advice.detachedHead=false",
    # A pristine tree is written once and read often: light compression, no delta search.
    "core.compression=1",
    "pack.compression=1",
    "pack.depth=0",
    "fastimport.unpackLimit=1000",
)


@dataclass(frozen=True, kw_only=True)
class Entry:
    """One file of a tree: its mode as git writes it, and the id of its blob."""

    path: str
    mode: str
    blob: str


@dataclass(frozen=True, kw_only=True)
class Change:
    """What a commit does to one path: new bytes, or `None` to delete it.

    `blob` is their id where git holds them already; it says nothing that the bytes do not.
    """

    path: str
    data: bytes | None
    mode: str = "100644"
    blob: str | None = field(default=None, compare=False)


@dataclass(frozen=True, kw_only=True)
class NewCommit:
    """A commit to be written: its message and the paths that differ from its parent."""

    message: str
    changes: Iterable[Change] = ()


@dataclass(frozen=True, kw_only=True)
class Merge:
    """What a merge gave: its tree, the paths in conflict, and git's own words about each.

    `commits` are base, ours and theirs, by whose ids the conflict markers name the sides.
    """

    commits: tuple[str, str, str]
    tree: str
    clean: bool
    conflicts: tuple[str, ...]
    messages: tuple[tuple[str, str, tuple[str, ...]], ...]


class Repo:
    """A git repository: bare, or with a work tree."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self._readers = 0

    @cached_property
    def _git(self) -> Git:
        from git.cmd import Git

        if shutil.which("git") is None:
            raise GitError("git is not installed.", next="apt-get install git")
        # They would make git work on the repository of the hook that called us.
        for name in _INHERITED:
            os.environ.pop(name, None)
        return Git(str(self.path))

    def run(
        self, *args: str, stdin: IO[bytes] | str | None = None, env: Mapping[str, str] | None = None
    ) -> str:
        """Run one git command here and return its stdout; `GitError` says what git said.

        `stdin` is a file, or a text that git reads there.
        """
        return self._execute(args, stdin, env).decode("utf-8", "surrogateescape").rstrip("\n")

    def _execute(
        self, args: Iterable[str], stdin: IO[bytes] | str | None, env: Mapping[str, str] | None
    ) -> bytes:
        if isinstance(stdin, str):
            with tempfile.TemporaryFile() as stream:
                stream.write(stdin.encode("utf-8", "surrogateescape"))
                stream.seek(0)
                return self._execute(args, stream, env)
        status, out, err, command = self._raw(args, stdin, env)
        for _ in range(MOST_LOCKS):
            if status == 0 or not self._unlocked(err):
                break
            if stdin is not None:
                stdin.seek(0)
            status, out, err, command = self._raw(args, stdin, env)
        if status != 0:
            raise _error(command, err, self.path)
        return out

    def _unlocked(self, said: str) -> bool:
        """Whether a lock of ours that a killed git had left stood in the way, and is gone now."""
        found = re.search(r"Unable to create '([^']+\.lock)': File exists", said)
        if found is None:
            return False
        # In a tree that somebody works in, the other locks may be his.
        bare = not (self.path / ".git").exists()
        ours = bare or "/refs/dspatch/" in found[1] or found[1].endswith("/packed-refs.lock")
        return ours and _is_dropped(self.path / found[1])

    def _attempt(self, args: Iterable[str], *, worst: int = 1) -> tuple[int, bytes]:
        """Run a command that answers by its exit status: 0 yes, up to `worst` no, else an error."""
        status, out, err, command = self._raw(args, None, None)
        if not 0 <= status <= worst:
            raise _error(command, err, self.path)
        return status, out

    def _raw(
        self, args: Iterable[str], stdin: IO[bytes] | None, env: Mapping[str, str] | None
    ) -> tuple[int, bytes, str, list[str]]:
        settings = [part for setting in _SETTINGS for part in ("-c", setting)]
        command = ["git", *settings, *args]
        status, out, err = self._git.execute(
            command,
            istream=cast("BinaryIO | None", stdin),
            with_extended_output=True,
            with_exceptions=False,
            stdout_as_string=False,
            strip_newline_in_stdout=False,
            env={**_ENVIRONMENT, **(env or {})},
        )
        return status, out, err, command

    # -- objects -----------------------------------------------------------------------------

    def resolve(self, revision: str) -> str | None:
        """The object id that a revision names, or `None`."""
        try:
            return self.run("rev-parse", "--verify", "--quiet", "--end-of-options", revision)
        except GitError:
            return None

    def resolve_all(self, *revisions: str) -> list[str | None]:
        """The object ids that revisions name, each or `None`, from one process."""
        names = "".join(f"{revision}\n" for revision in revisions)
        found = self.run("cat-file", "--batch-check=%(objectname)", stdin=names)
        return [None if " " in line else line for line in found.split("\n")]

    def has_all(self, ids: Sequence[str]) -> bool:
        """Whether every one of some objects is here; of none, yes."""
        return not ids or None not in self.resolve_all(*ids)

    def entries(self, tree: str, paths: Sequence[str] = ()) -> dict[str, Entry]:
        """The files of a tree, by path: all of them, or those of the given paths that are there."""
        args = ["ls-tree", "-r", "-z", "--full-tree", tree, *(["--", *paths] if paths else [])]
        listing = self._execute(args, None, None)
        found = {}
        for record in listing.split(b"\0")[:-1]:
            head, path = record.split(b"\t", 1)
            mode, _, blob = head.decode().split(" ")
            name = path.decode("utf-8", "surrogateescape")
            found[name] = Entry(path=name, mode=mode, blob=blob)
        return found

    def blob(self, oid: str) -> bytes:
        """The bytes of a blob; many of them come cheaper inside `reading`."""
        if self._readers:
            return bytes(self._git.get_object_data(oid)[3])
        return self._execute(["cat-file", "blob", oid], None, None)

    @contextmanager
    def reading(self) -> Iterator[Callable[[str], bytes]]:
        """A reader of many blobs by id, through one `git cat-file --batch` that ends with the block."""
        self._readers += 1
        try:
            yield self.blob
        finally:
            self._readers -= 1
            if not self._readers:
                self._git.clear_cache()

    def diff(self, old: str, new: str) -> str:
        """The diff of two trees as `git am` and `git apply` take it."""
        options = ["-p", "-r", "--binary", "--full-index", "--find-renames"]
        out = self._execute(["diff-tree", *options, old, new], None, None)
        return out.decode("utf-8", "surrogateescape")

    def diffs(self, commits: Sequence[str]) -> list[str]:
        """The diffs of commits against their parents, from one process."""
        options = ["-p", "-r", "--binary", "--full-index", "--find-renames", "--always"]
        names = "".join(f"{commit}\n" for commit in commits)
        out = self._execute(["diff-tree", "--stdin", *options], names, None)
        text = out.decode("utf-8", "surrogateescape")
        starts = [text.index(f"{commit}\n") for commit in commits]
        ends = [*starts[1:], len(text)]
        return [text[a:b].partition("\n")[2] for a, b in zip(starts, ends, strict=True)]

    def blame(self, revisions: Sequence[str], path: str) -> list[str]:
        """The commit that each line of a file comes from; zeros where no commit has it yet.

        revisions: the commit to look at, none for the work tree; `^base` gives all lines from
        before to that base.
        """
        out = self._execute(["blame", "--porcelain", *revisions, "--", path], None, None)
        heads = re.findall(rb"^([0-9a-f]{40}) \d+ (\d+)", out, re.MULTILINE)
        lines = {int(line): commit.decode() for commit, line in heads}
        return [lines[number] for number in sorted(lines)]

    def grep(self, tree: str, word: str, files: str) -> list[str]:
        """The paths of a tree, of those that a pattern like `*.py` names, whose text holds a word."""
        args = ["grep", "-l", "-z", "-w", "-F", "-e", word, tree, "--", files]
        _, out = self._attempt(args)
        found = out.decode("utf-8", "surrogateescape").split("\0")[:-1]
        return [path.partition(":")[2] for path in found]

    def range_diff(self, old: str, new: str) -> str:
        """How the changes of two commits differ, as git shows it; empty when they do not."""
        ranges = [f"{old}^..{old}", f"{new}^..{new}"]
        # The two are known to be one change: never take them for two.
        options = ["--no-color", "--creation-factor=999"]
        head, _, text = self.run("range-diff", *options, *ranges).partition("\n")
        return "" if re.match(r"\d+: +[0-9a-f]+ = ", head) else text

    def changed_paths(self, old: str, new: str) -> tuple[str, ...]:
        """The paths that differ between two trees."""
        out = self._execute(["diff-tree", "-r", "-z", "--name-only", old, new], None, None)
        return tuple(p.decode("utf-8", "surrogateescape") for p in out.split(b"\0")[:-1])

    # -- writing -----------------------------------------------------------------------------

    def write_commits(
        self, ref: str, parent: str | None, commits: Iterable[NewCommit]
    ) -> list[str]:
        """Write a chain of commits onto `parent` in one pass and point `ref` at the last.

        Returns their ids, first to last. Nothing refers to a commit before all are written.
        """
        with tempfile.TemporaryFile() as stream, _marks_file() as marks:
            count = _write_stream(stream, ref, parent, commits)
            stream.seek(0)
            self.run("fast-import", "--quiet", "--force", f"--export-marks={marks}", stdin=stream)
            return _read_marks(marks, count)

    def write_blobs(self, contents: Sequence[bytes]) -> list[str]:
        """Write blobs in one pass; returns their ids."""
        if not contents:
            return []
        with tempfile.TemporaryFile() as stream, _marks_file() as marks:
            for number, data in enumerate(contents, 1):
                stream.write(b"blob\nmark :%d\ndata %d\n%s\n" % (number, len(data), data))
            stream.write(b"done\n")
            stream.seek(0)
            self.run("fast-import", "--quiet", f"--export-marks={marks}", stdin=stream)
            return _read_marks(marks, len(contents))

    @contextmanager
    def scratch_index(self) -> Iterator[Index]:
        """An index of its own that ends with the block: trees are made in it, no work tree needed."""
        with tempfile.TemporaryDirectory() as folder:
            yield Index(self, Path(folder) / "index")

    def merge(self, base: str, ours: str, theirs: str) -> Merge:
        """Merge two trees that came from a third, as git merges commits: renames are followed.

        Conflicts are left in the files of the result, with the base between its own markers.
        """
        root = self.commit_tree(base)
        sides = [self.commit_tree(tree, root) for tree in (ours, theirs)]
        args = ["-c", "merge.conflictStyle=diff3", "merge-tree", "--write-tree", "-z", "--messages"]
        status, out = self._attempt([*args, *sides])
        return _read_merge(out, (root, sides[0], sides[1]), clean=status == 0)

    def commit_tree(self, tree: str, *parents: str) -> str:
        """A commit of a tree, with no word of who and when."""
        parent_args = [word for parent in parents for word in ("-p", parent)]
        return self.run("commit-tree", "-m", "merging", *parent_args, tree, env=_author())

    def set_ref(self, ref: str, oid: str) -> None:
        """Point a ref at an object."""
        self.run("update-ref", ref, oid)

    def set_refs(self, refs: Mapping[str, str | None]) -> None:
        """Point refs at objects, or remove those given `None`: all of them or none."""
        words = "".join(
            f"update {ref} {oid}\n" if oid else f"delete {ref}\n" for ref, oid in refs.items()
        )
        self.run("update-ref", "--stdin", stdin=f"start\n{words}prepare\ncommit\n")

    # -- remotes and work trees ----------------------------------------------------------------

    def fetch(self, source: str, revision: str, ref: str) -> None:
        """Fetch one revision of another repository, without its history, under `ref`."""
        self.run("fetch", "--quiet", "--no-tags", "--depth=1", source, f"+{revision}:{ref}")

    def status(self) -> dict[str, str]:
        """Edited and untracked paths of the work tree, each with git's two-letter state."""
        out = self._execute(["status", "--porcelain", "-z", "--no-renames", "-uall"], None, None)
        lines = out.decode("utf-8", "surrogateescape").split("\0")[:-1]
        return {line[3:]: line[:2] for line in lines}

    def commit_all(self, message: str) -> None:
        """Commit the work tree as it stands, untracked files too, even when nothing changed."""
        self.run("add", "--all")
        words = ("commit", "--quiet", "--allow-empty", "--no-verify", "--file=-")
        self.run(*words, stdin=message, env=_author())

    def work_tree(self) -> str:
        """Write the work tree as it stands as a tree, untracked files too; the index stays as it is."""
        with tempfile.TemporaryDirectory() as folder:
            index = Path(folder) / "index"
            shutil.copyfile(self.path / ".git" / "index", index)
            env = {"GIT_INDEX_FILE": str(index)}
            self.run("add", "--all", env=env)
            return self.run("write-tree", env=env)

    def merge_files(self, base: bytes, ours: bytes, theirs: bytes) -> bytes | None:
        """Merge the change from `base` to `theirs` into `ours`; `None` when it conflicts."""
        with tempfile.TemporaryDirectory() as folder:
            names = [str(Path(folder) / name) for name in ("ours", "base", "theirs")]
            for name, data in zip(names, (ours, base, theirs), strict=True):
                Path(name).write_bytes(data)
            status, out = self._attempt(["merge-file", "--stdout", "--quiet", *names], worst=127)
        return out if status == 0 else None

    def reset_hard(self, commit: str) -> None:
        """Move the branch, the index and the work tree to a commit, whatever a killed git locked."""
        for name in ("index", "HEAD", "ORIG_HEAD", "refs/heads/dspatch"):
            (self.path / ".git" / f"{name}.lock").unlink(missing_ok=True)
        self.run("reset", "--quiet", "--hard", commit)


class Index:
    """An index outside any work tree, in which trees are made and diffs applied."""

    def __init__(self, repo: Repo, path: Path) -> None:
        self._repo = repo
        self._env = {"GIT_INDEX_FILE": str(path)}

    def add(self, entries: Iterable[Entry]) -> None:
        """Put files into the index by mode and blob."""
        lines = "".join(f"{entry.mode} {entry.blob}\t{entry.path}\0" for entry in entries)
        self._repo.run("update-index", "-z", "--index-info", stdin=lines, env=self._env)

    def apply(self, diff: str, *, context: int | None = None) -> None:
        """Apply a diff, all of it or none; `context` lets hunks match on that many lines around.

        Raises `GitError` with git's reason.
        """
        lines = [] if context is None else [f"-C{context}"]
        words = ("apply", "--cached", "--whitespace=nowarn", *lines, "-")
        self._repo.run(*words, stdin=diff, env=self._env)

    def tree(self) -> str:
        """Write the index as a tree; returns its id."""
        return self._repo.run("write-tree", env=self._env)

    def entries(self) -> dict[str, Entry]:
        """Every file of the index, by path."""
        found = {}
        listing = self._repo.run("ls-files", "--stage", "-z", env=self._env)
        for record in listing.split("\0")[:-1]:
            head, path = record.split("\t", 1)
            mode, blob, _ = head.split(" ")
            found[path] = Entry(path=path, mode=mode, blob=blob)
        return found


def _author() -> dict[str, str]:
    """No word of who and when."""
    said = (("NAME", "dspatch"), ("EMAIL", "dspatch@localhost"), ("DATE", f"{EPOCH} +0000"))
    return {f"GIT_{role}_{what}": value for role in ("AUTHOR", "COMMITTER") for what, value in said}


def init_bare(path: Path) -> Repo:
    """Make a bare repository, or open the one that is there."""
    if not (path / "HEAD").exists():
        shutil.rmtree(path, ignore_errors=True)
        with folder_in_one_step(path) as made:
            Repo(made).run("init", "--quiet", "--bare", "--template=", "--initial-branch=main", ".")
            made.chmod(0o755)
    return Repo(path)


def init_sharing(path: Path, objects_of: Repo) -> Repo:
    """Make a repository with a work tree that borrows the objects of another."""
    path.mkdir(parents=True)
    repo = Repo(path)
    repo.run("init", "--quiet", "--template=", "--initial-branch=dspatch", ".")
    alternates = path / ".git" / "objects" / "info" / "alternates"
    alternates.parent.mkdir(exist_ok=True)
    alternates.write_text(f"{objects_of.path / 'objects'}\n")
    # The bytes of a file are those of its blob, both ways, whatever upstream's .gitattributes ask for.
    attributes = path / ".git" / "info" / "attributes"
    attributes.parent.mkdir(exist_ok=True)
    attributes.write_text(f"* {RAW}\n")
    return repo


def _write_stream(
    stream: IO[bytes], ref: str, parent: str | None, commits: Iterable[NewCommit]
) -> int:
    count = 0
    for count, commit in enumerate(commits, 1):
        message = commit.message.encode()
        stream.write(f"commit {ref}\nmark :{count}\n".encode())
        for role in ("author", "committer"):
            stream.write(f"{role} {IDENTITY} {EPOCH} +0000\n".encode())
        stream.write(b"data %d\n%s\n" % (len(message), message))
        if count == 1 and parent is not None:
            stream.write(f"from {parent}\n".encode())
        for change in commit.changes:
            _write_change(stream, change)
    stream.write(b"done\n")
    return count


def _write_change(stream: IO[bytes], change: Change) -> None:
    path = _quoted(change.path)
    if change.data is None:
        stream.write(b"D %s\n" % path)
        return
    if change.blob is not None:
        stream.write(b"M %s %s %s\n" % (change.mode.encode(), change.blob.encode(), path))
        return
    stream.write(b"M %s inline %s\n" % (change.mode.encode(), path))
    stream.write(b"data %d\n" % len(change.data))
    stream.write(change.data)
    stream.write(b"\n")


def _quoted(path: str) -> bytes:
    raw = path.encode("utf-8", "surrogateescape")
    if raw.startswith(b'"') or b"\n" in raw:
        escaped = raw.replace(b"\\", b"\\\\").replace(b'"', b'\\"').replace(b"\n", b"\\n")
        return b'"%s"' % escaped
    return raw


def _read_merge(out: bytes, commits: tuple[str, str, str], *, clean: bool) -> Merge:
    """The output of `git merge-tree -z`: a tree, the conflicted entries, then the messages."""
    fields = out.decode("utf-8", "surrogateescape").split("\0")
    end = fields.index("", 1)
    conflicts = [field.partition("\t")[2] for field in fields[1:end]]
    messages, rest = [], fields[end + 1 :]
    while len(rest) > 2:
        count = int(rest[0])
        paths, (kind, text) = rest[1 : count + 1], rest[count + 1 : count + 3]
        messages.append((kind, text.strip(), tuple(paths)))
        rest = rest[count + 3 :]
    return Merge(
        commits=commits,
        tree=fields[0],
        clean=clean,
        conflicts=tuple(dict.fromkeys(conflicts)),
        messages=tuple(messages),
    )


@contextmanager
def _marks_file() -> Iterator[Path]:
    with tempfile.TemporaryDirectory() as folder:
        yield Path(folder) / "marks"


def _read_marks(marks: Path, count: int) -> list[str]:
    ids = dict(line.split(" ", 1) for line in marks.read_text().splitlines())
    return [ids[f":{number}"] for number in range(1, count + 1)]


def _is_dropped(lock: Path) -> bool:
    """Whether a lock that nobody touches for a while is removed; a live git holds it for milliseconds."""
    try:
        seen = lock.stat().st_mtime_ns
        time.sleep(STALE_SECONDS)
        if lock.stat().st_mtime_ns != seen:
            return False
        lock.unlink()
    except FileNotFoundError:  # it was a live one
        return True
    return True


def _error(command: list[str], stderr: str, place: Path) -> DspatchError:
    words = [word for word in command if word not in ("-c", *_SETTINGS)]
    # git does not say of every write that failed why it did.
    if "No space left on device" in stderr or _is_full(place):
        return DiskFullError(
            "The disk is full.", why=stderr.strip(), next="free some space and run it again"
        )
    if re.search(
        r"Read-only file system|insufficient permission|file.*: Permission denied", stderr
    ):
        return NotWritableError(
            f"{place} may not be written.", why=stderr.strip(), next="move it with DSPATCH_CACHE"
        )
    return GitError(f"`{' '.join(words[:6])}` failed.", why=stderr.strip() or "git said nothing")


def _is_full(place: Path) -> bool:
    return place.exists() and shutil.disk_usage(place).free < FULL_BYTES
