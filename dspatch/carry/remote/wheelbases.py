"""The files that a form was made on, read from the wheel of that release instead of its whole source."""

from __future__ import annotations

from collections.abc import Collection
from typing import TYPE_CHECKING

from dspatch import diffs
from dspatch.carry.remote import remote
from dspatch.carry.remote.ranges import Traffic
from dspatch.carry.remote.releases import Published
from dspatch.threeway import blob_id

if TYPE_CHECKING:
    from unearth.fetchers import PyPIClient

    from dspatch.bases import Bases
    from dspatch.carry.remote.remote import RemoteWheel
    from dspatch.git import Repo
    from dspatch.patchfile import Form, Patch


class WheelBases:
    """What merging a form asks for: its old blobs in git's reach, and the paths beside them.

    One for all releases of a run, so that each base is opened once.

    Where the wheel lacks them, or has others (native files; a form made with other patches below
    it), `behind` is asked, which fetches the whole source.
    """

    def __init__(
        self,
        project: str,
        published: Published,
        client: PyPIClient,
        traffic: Traffic,
        behind: Bases,
    ) -> None:
        self._project = project
        self._published = published
        self._client = client
        self._traffic = traffic
        self._behind = behind
        self._opened: dict[str, RemoteWheel | None] = {}

    def provide(self, patch: Patch, form: Form, repo: Repo) -> bool:
        """Put a form's old blobs into a repository, and say whether they are there."""
        wheel = self._wheel(form)
        if wheel is None:
            return self._behind.provide(patch, form, repo)
        old = {part.old_path: part.old_blob for part in diffs.read(form.diff) if part.old_path}
        found = {path: wheel.read(path) for path in old}
        fitting = [
            data
            for path, data in found.items()
            if data is not None and blob_id(data).startswith(old[path] or "-")
        ]
        repo.write_blobs(fitting)
        return len(fitting) == len(old) or self._behind.provide(patch, form, repo)

    def paths(self, form: Form) -> Collection[str]:
        """The paths of the wheel of the release that a form was made on; none without one."""
        wheel = self._wheel(form)
        return wheel.paths() if wheel is not None else ()

    def _wheel(self, form: Form) -> RemoteWheel | None:
        if form.made_on not in self._opened:
            release = self._published.release(form.made_on)
            self._opened[form.made_on] = (
                remote.open_wheel(self._project, release.wheel, self._client, self._traffic)
                if release is not None and release.wheel is not None
                else None
            )
        return self._opened[form.made_on]
