"""Where a patch to import comes from: a file, a folder, standard input, a commit, a branch, a fork."""

from __future__ import annotations

import hashlib
import re
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from dspatch import diffs, git
from dspatch.carry.exchange import exportfolder, mailbox
from dspatch.carry.exchange.mail import PatchMail, split_message
from dspatch.checkout import cache_of
from dspatch.errors import GitError, OfflineError, UnknownRevisionError

_MANY = 200
_ON_GITHUB = re.compile(
    r"(https://github\.com/[^/]+/[^/]+)/(?:(commit)s?|(tree)|(pull)|(compare))/(.+?)(?:/commits|/files)?/?$"
)


@dataclass(frozen=True, kw_only=True)
class Incoming:
    """Patches as they came, and the repository that holds the files they were made on, if any."""

    mails: tuple[PatchMail, ...]
    repo: git.Repo | None = None

    def provide(self, diff: str, cache: git.Repo) -> bool:
        """Put the old files of a diff into `cache`; whether all of them could be had."""
        if self.repo is None:
            return False
        wanted = [part.old_blob for part in diffs.read(diff) if part.old_path and part.old_blob]
        try:
            cache.write_blobs([self.repo.blob(oid) for oid in wanted])
        except GitError:
            return False
        return True


@dataclass(frozen=True, kw_only=True)
class Origin:
    """The repository that revisions are sought in, and the release that a branch is compared with."""

    repo: str
    upstream: str
    release: str
    squash: bool = False


def read(source: str, origin: Origin, *, named_repo: bool) -> Incoming:
    """The patches that `source` names.

    `named_repo` says that the user gave a repository: a folder's name is then a revision of it, and
    a diff's old files are looked for there. Raises `DiffFormatError`, `UnknownRevisionError` and `OfflineError`.
    """
    path = Path(source).expanduser()
    if source == "-":
        return Incoming(mails=mailbox.read(sys.stdin.buffer.read(), "standard input"))
    if path.is_file():
        clone = Path(origin.repo).expanduser()
        beside = git.Repo(clone) if named_repo and clone.is_dir() else None
        return Incoming(mails=mailbox.read(path.read_bytes(), path.stem), repo=beside)
    if not named_repo and path.is_dir():
        if (path / ".git").exists() or (path / "HEAD").is_file():
            return _from_git("HEAD", str(path.resolve()), origin)
        return Incoming(mails=exportfolder.read(path))
    repo, revision = _located(source, origin.repo)
    return _from_git(revision, repo, origin)


def _located(source: str, repo: str) -> tuple[str, str]:
    """Repository and revision of the words: an address of GitHub, `URL#branch`, or a revision."""
    if found := _ON_GITHUB.match(source):
        _, _, _, pull, compare, rest = found.groups()
        if pull:
            rest = f"refs/pull/{rest}/head"
        return found[1], rest.replace("...", "..") if compare else rest
    if re.match(r"[a-z+]+://|[\w.-]+@[\w.-]+:", source):
        url, _, revision = source.partition("#")
        return url, revision or "HEAD"
    place = Path(repo).expanduser()
    return str(place.resolve()) if place.exists() else repo, source


def _from_git(revision: str, url: str, origin: Origin) -> Incoming:
    with cache_of("incoming") as bare:
        return _fetched_patches(bare, revision, url, origin)


def _fetched_patches(bare: git.Repo, revision: str, url: str, origin: Origin) -> Incoming:
    if ".." in revision:
        old, new = re.split(r"\.{2,3}", revision, maxsplit=1)
        base, head = _fetched(bare, url, old), _fetched(bare, url, new or "HEAD")
    elif _is_commit(revision):
        head = _fetched(bare, url, revision)
        base = f"{head}^"
    else:
        head = _fetched(bare, url, revision)
        base = _fork_point(bare, url, head, origin)
    commits = _commits(bare, base, head, url)
    if origin.squash:
        return Incoming(mails=(_squashed(bare, base, commits, url, origin),), repo=bare)
    mails = (_mail(bare, oid, url, origin, bare.diff(f"{oid}^", oid)) for oid in commits)
    return Incoming(mails=tuple(mail for mail in mails if mail.diff), repo=bare)


def _is_commit(revision: str) -> bool:
    return re.fullmatch(r"[0-9a-f]{7,40}", revision) is not None


def _full(url: str, revision: str) -> str:
    """A revision as its repository can be asked for it: one elsewhere knows commits by 40 digits."""
    if Path(url).is_dir():
        return git.Repo(Path(url)).resolve(f"{revision}^{{commit}}") or revision
    if _is_commit(revision) and len(revision) < 40:
        raise UnknownRevisionError(
            f"{url} cannot be asked for {revision}.",
            why="a repository elsewhere gives commits by all 40 digits only",
            next="give all digits, the page's address, or --repo with a local clone",
        )
    return revision


def _fetched(bare: git.Repo, url: str, revision: str) -> str:
    """Fetch a revision with its history; files are fetched when they are read, where that is offered."""
    remote = "r" + hashlib.sha256(url.encode()).hexdigest()[:12]
    ref = f"refs/incoming/{remote}/{hashlib.sha256(revision.encode()).hexdigest()[:12]}"
    wanted = _full(url, revision)
    bare.run("config", f"remote.{remote}.url", url)
    try:
        bare.run("fetch", "--quiet", "--no-tags", "--filter=tree:0", remote, f"+{wanted}:{ref}")
    except GitError as error:
        kept = bare.resolve(f"{ref}^{{commit}}")
        if kept is None:
            raise _no_fetch(url, revision, error) from None
        return kept
    found = bare.resolve(f"{ref}^{{commit}}")
    assert found is not None
    return found


def _no_fetch(url: str, revision: str, error: GitError) -> UnknownRevisionError | OfflineError:
    if re.search(r"couldn't find remote ref|not our ref|no such remote ref", error.why, re.I):
        return UnknownRevisionError(
            f"{url} has no commit, tag or branch `{revision}`.",
            why=error.why,
            next="give a file, a folder, a branch, or a commit by all 40 digits; see --repo",
        )
    return OfflineError(
        f"`{revision}` of {url} could not be fetched.",
        why=error.why,
        next="give the diff as a file, or --repo with a local clone",
    )


def _fork_point(bare: git.Repo, url: str, head: str, origin: Origin) -> str:
    """Where a branch left upstream: its merge base with the release, from either repository."""
    for place in dict.fromkeys((url, origin.upstream)):
        try:
            release = _fetched(bare, place, origin.release)
            return bare.run("merge-base", release, head)
        except (UnknownRevisionError, OfflineError, GitError):
            continue
    raise UnknownRevisionError(
        f"it cannot be told which commits of the branch are its own: {origin.release} is not in {url}.",
        why="a branch is what it adds to the release",
        next="say from where: OLD..BRANCH",
    )


def _commits(bare: git.Repo, base: str, head: str, url: str) -> list[str]:
    found = bare.run("rev-list", "--reverse", "--no-merges", f"{base}..{head}").split()
    if not found or len(found) > _MANY:
        raise UnknownRevisionError(
            f"{url}: {len(found) or 'no'} commits lie between {base[:12]} and {head[:12]}.",
            why=f"each becomes a patch; more than {_MANY} are hardly meant" if found else "",
            next="name the commits: OLD..NEW",
        )
    return found


def _mail(bare: git.Repo, oid: str, url: str, origin: Origin, diff: str) -> PatchMail:
    message = bare.run("show", "--no-patch", "--format=%B", oid)
    subject, _, rest = message.partition("\n")
    body, fields = split_message(rest)
    return PatchMail(
        subject=subject,
        body=mailbox.reason_of(body),
        fields=fields or _upstream(url, oid, subject, origin),
        diff=diff,
    )


def _squashed(
    bare: git.Repo, base: str, commits: Sequence[str], url: str, origin: Origin
) -> PatchMail:
    mails = [_mail(bare, oid, url, origin, diff="") for oid in commits]
    body = mails[0].body if len(mails) == 1 else "\n".join(f"* {one.subject}" for one in mails)
    diff = bare.diff(base, commits[-1])
    return PatchMail(subject=mails[0].subject, body=body, fields=mails[0].fields, diff=diff)


def _upstream(url: str, oid: str, subject: str, origin: Origin) -> tuple[tuple[str, str], ...]:
    """Where a commit can be read: upstream's pull request that its subject names, or its own page."""
    page = _page(url)
    pull = re.search(r"\(#(\d+)\)$", subject)
    if pull and page == origin.upstream:
        return (("Upstream", f"{page}/pull/{pull[1]}"),)
    if url.startswith("https://"):
        return (("Upstream", f"{page}/commit/{oid}"),)
    return ()


def _page(url: str) -> str:
    """The page of a repository; of a clone, that of the one it was made from."""
    if Path(url).is_dir():
        try:
            url = git.Repo(Path(url)).run("config", "--get", "remote.origin.url")
        except GitError:
            return ""
    named = re.sub(r"^(?:ssh://)?git@([^:/]+)[:/]", r"https://\1/", url)
    return named.removesuffix("/").removesuffix(".git")
