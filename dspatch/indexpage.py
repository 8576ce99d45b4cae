"""One place that offers packages (an index, a find-links folder or page) as the files in it."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, TypeAlias, cast
from urllib.parse import urljoin

if TYPE_CHECKING:
    from unearth.fetchers import Fetcher, PyPIClient
    from unearth.link import Link

ACCEPT = (
    "application/vnd.pypi.simple.v1+json, application/vnd.pypi.simple.v1+html; q=0.2, "
    "text/html; q=0.1"
)


@dataclass(frozen=True, kw_only=True)
class IndexFile:
    """A file that an index offers, with its sha256 and its size in bytes where they are stated."""

    filename: str
    url: str
    sha256: str | None = None
    size: int | None = None
    requires_python: str | None = None
    yanked: bool = False


Ask: TypeAlias = "Callable[[PyPIClient, str, str], list[IndexFile]]"


def project_page(client: PyPIClient, index: str, project: str) -> list[IndexFile]:
    """The files of a project on a simple index (PEP 503, PEP 691), none when the index lacks it."""
    from packaging.utils import canonicalize_name

    url = f"{_as_url(index).rstrip('/')}/{canonicalize_name(project)}/"
    # A mirror on disk has no server that would name the page of a folder.
    return _page(client, f"{url}index.html" if url.startswith("file:") else url)


def find_links(client: PyPIClient, place: str, project: str) -> list[IndexFile]:
    """The files of a project in a find-links folder, on such a page, or at a file's own address."""
    from unearth.collector import collect_links_from_location
    from unearth.link import Link
    from unearth.utils import is_archive_file

    link = Link(_as_url(place))
    if link.is_file:
        files = [
            _from_link(each) for each in collect_links_from_location(_fetcher(client), link, True)
        ]
    elif is_archive_file(link.filename):
        files = [_from_link(link)]
    else:
        files = _page(client, link.url)
    return [file for file in files if _belongs(file.filename, project)]


def _as_url(place: str) -> str:
    return place if "://" in place else Path(place).expanduser().absolute().as_uri()


def _page(client: PyPIClient, url: str) -> list[IndexFile]:
    from unearth.collector import IndexPage, LinkCollectError, is_secure_origin, parse_html_page
    from unearth.link import Link

    if not is_secure_origin(_fetcher(client), Link(url)):
        raise LinkCollectError("plain HTTP from a host that `trusted-host` does not name")
    response = client.get(url, headers={"Accept": ACCEPT})
    if response.status_code in (404, 410):
        return []
    if response.status_code != 200:
        raise LinkCollectError(f"the server answered {response.status_code}")
    kind = response.headers.get("Content-Type", "")
    if kind.startswith("application/vnd.pypi.simple.v1+json"):
        return _from_json(response.content, str(response.url))
    if "html" not in kind:
        raise LinkCollectError(f"neither HTML nor JSON but {kind or 'untyped'}")
    page = IndexPage(Link(str(response.url)), response.content, response.encoding, kind)
    return [_from_link(each) for each in parse_html_page(page)]


def _from_json(content: bytes, base: str) -> list[IndexFile]:
    # unearth's own reader of this format drops the sizes.
    try:
        return [
            IndexFile(
                filename=file["filename"],
                url=urljoin(base, file["url"]),
                sha256=file.get("hashes", {}).get("sha256"),
                size=file.get("size"),
                requires_python=file.get("requires-python"),
                yanked=bool(file.get("yanked")),
            )
            for file in json.loads(content)["files"]
        ]
    except (KeyError, TypeError, AttributeError) as error:
        raise ValueError(f"the page is not a PEP 691 project page: {error!r}") from error


def _from_link(link: Link) -> IndexFile:
    hashes = (link.hash_option or {}).get("sha256")
    return IndexFile(
        filename=link.filename,
        url=link.url_without_fragment,
        sha256=hashes[0] if hashes else None,
        size=link.file_path.stat().st_size if link.is_file and link.file_path.is_file() else None,
        requires_python=link.requires_python,
        yanked=link.is_yanked,
    )


def _fetcher(client: PyPIClient) -> Fetcher:
    # unearth's protocol and its own client disagree in unused parameters.
    return cast("Fetcher", client)


def _belongs(filename: str, project: str) -> bool:
    from packaging import utils

    name: str
    try:
        if filename.endswith(".whl"):
            name = utils.parse_wheel_filename(filename)[0]
        else:
            name = utils.parse_sdist_filename(filename)[0]
    except (utils.InvalidWheelFilename, utils.InvalidSdistFilename):
        return False
    return name == utils.canonicalize_name(project)
