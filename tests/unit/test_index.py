import hashlib
import multiprocessing
import shutil
import socket
import threading
import time
from collections import namedtuple

import pytest

from dspatch import fetch, index, pipconfig
from dspatch.errors import (
    DiskFullError,
    DownloadError,
    HashMismatchError,
    LockedError,
    OfflineError,
)
from tests.unit.index_server import TLS, Served, serve

NAME = "engine-1.0.tar.gz"
DATA = bytes(range(256)) * 2000


@pytest.fixture(autouse=True)
def clean(monkeypatch, tmp_path):
    """No configuration but the test's own, an empty cache, and no waiting between attempts."""
    for name in ("REQUESTS_CA_BUNDLE", "CURL_CA_BUNDLE", "HTTP_PROXY", "http_proxy"):
        monkeypatch.delenv(name, raising=False)
    for name in ("CERT", "FIND_LINKS", "EXTRA_INDEX_URL", "INDEX_URL", "PROXY", "NO_INDEX"):
        monkeypatch.delenv(f"PIP_{name}", raising=False)
    monkeypatch.setenv("PIP_CONFIG_FILE", "/dev/null")
    monkeypatch.setenv("DSPATCH_CACHE", str(tmp_path / "cache"))
    monkeypatch.setattr(fetch, "PAUSE", 0.0)


@pytest.fixture
def server(monkeypatch):
    with serve() as running:
        monkeypatch.setenv("PIP_INDEX_URL", running.simple)
        yield running


def closed_port() -> int:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        return taken.getsockname()[1]


def leftovers(path):
    return {each.name for each in path.parent.iterdir() if not each.name.endswith(".lock")}


# -- listing -----------------------------------------------------------------------------------


@pytest.mark.parametrize("html", [False, True])
def test_both_kinds_of_page_name_the_file(server, html):
    server.html = html
    sha256 = server.add(NAME, Served(data=DATA))
    found = index.find("engine", NAME)
    assert (found.filename, found.sha256, found.requires_python) == (NAME, sha256, ">=3.10")
    assert found.url == f"{server.url}/files/engine/{NAME}"
    assert found.size == (None if html else len(DATA))


def test_the_project_is_asked_for_by_its_normal_name(server):
    server.add(NAME, Served(data=DATA), project="my-engine")
    assert index.files("My_Engine")
    assert server.requests == ["/simple/my-engine/"]


def test_a_project_that_no_index_has_has_no_files(server):
    assert index.files("engine") == ()


def test_a_file_that_no_index_has_is_named(server):
    server.add(NAME, Served(data=DATA))
    with pytest.raises(DownloadError, match=r"No package index has engine-9\.tar\.gz"):
        index.find("engine", "engine-9.tar.gz")


def test_an_index_on_disk(monkeypatch, tmp_path):
    folder = tmp_path / "simple" / "engine"
    folder.mkdir(parents=True)
    (folder / NAME).write_bytes(DATA)
    sha256 = hashlib.sha256(DATA).hexdigest()
    (folder / "index.html").write_text(f'<a href="{NAME}#sha256={sha256}">{NAME}</a>')
    monkeypatch.setenv("PIP_INDEX_URL", (tmp_path / "simple").as_uri())
    assert index.find("engine", NAME).size == len(DATA)
    assert index.files("other") == ()
    assert index.download("engine", NAME, sha256).read_bytes() == DATA


def test_find_links_folder_gives_this_projects_files_only(monkeypatch, tmp_path):
    (tmp_path / NAME).write_bytes(DATA)
    (tmp_path / "other-1.0.tar.gz").write_bytes(b"x")
    (tmp_path / "readme.txt").write_bytes(b"x")
    monkeypatch.setenv("PIP_NO_INDEX", "1")
    monkeypatch.setenv("PIP_FIND_LINKS", str(tmp_path))
    assert [file.filename for file in index.files("engine")] == [NAME]
    sha256 = hashlib.sha256(DATA).hexdigest()
    assert index.download("engine", NAME, sha256).read_bytes() == DATA


def test_find_links_page_and_plain_address(server, monkeypatch):
    server.html = True
    server.add(NAME, Served(data=DATA))
    monkeypatch.setenv("PIP_NO_INDEX", "1")
    monkeypatch.setenv(
        "PIP_FIND_LINKS", f"{server.simple}/engine/ {server.url}/files/engine/{NAME}"
    )
    assert [file.filename for file in index.files("engine")] == [NAME, NAME]


def test_an_index_that_cannot_be_asked_does_not_hide_another(server, monkeypatch):
    server.add(NAME, Served(data=DATA))
    monkeypatch.setenv("PIP_EXTRA_INDEX_URL", f"http://127.0.0.1:{closed_port()}/simple")
    found = index.listing("engine")
    assert len(found.files) == 1
    assert len(found.problems) == 1
    assert found.offline


def test_no_index_can_be_asked(monkeypatch):
    monkeypatch.setenv("PIP_INDEX_URL", f"http://127.0.0.1:{closed_port()}/simple")
    with pytest.raises(OfflineError, match="The files of engine cannot be listed"):
        index.files("engine")


def test_an_index_that_answers_nonsense_is_no_missing_network(server):
    server.add(NAME, Served(data=DATA))
    server.status = 503
    with pytest.raises(DownloadError, match="answered 503"):
        index.files("engine")


def test_plain_http_needs_a_trusted_host(monkeypatch):
    monkeypatch.setenv("PIP_INDEX_URL", "http://packages.invalid/simple")
    with pytest.raises(DownloadError, match="trusted-host"):
        index.files("engine")


def test_credentials_are_not_shown(monkeypatch):
    monkeypatch.setenv("PIP_INDEX_URL", f"http://me:secret@127.0.0.1:{closed_port()}/simple")
    with pytest.raises(OfflineError) as caught:
        index.files("engine")
    assert "secret" not in str(caught.value)


def test_the_proxy_is_used_for_trusted_hosts_too(server, monkeypatch):
    server.add(NAME, Served(data=DATA))
    monkeypatch.setenv("PIP_INDEX_URL", "http://packages.invalid/simple")
    monkeypatch.setenv("PIP_TRUSTED_HOST", "packages.invalid")
    monkeypatch.setenv("PIP_PROXY", server.url)
    sha256 = index.find("engine", NAME).sha256
    assert index.download("engine", NAME, sha256).read_bytes() == DATA


def test_a_private_certificate_is_trusted_when_pip_names_it(monkeypatch):
    with serve(tls=True) as server:
        server.add(NAME, Served(data=DATA))
        monkeypatch.setenv("PIP_INDEX_URL", server.simple)
        with pytest.raises(OfflineError, match=r"(?i)certificate"):
            index.files("engine")
        monkeypatch.setenv("PIP_CERT", str(TLS))
        assert index.files("engine")


def test_a_certificate_that_is_not_there_is_named(monkeypatch):
    monkeypatch.setenv("PIP_CERT", "/no/such.pem")
    with pytest.raises(DownloadError, match=r"bundle /no/such\.pem cannot be read"):
        index.files("engine")


# -- download ----------------------------------------------------------------------------------


def test_download_verifies_reports_and_leaves_nothing_else(server):
    sha256 = server.add(NAME, Served(data=DATA))
    seen = []
    path = index.download(
        "engine", NAME, sha256, progress=lambda done, total: seen.append((done, total))
    )
    assert path.read_bytes() == DATA
    assert path.parent.name == sha256
    assert seen[-1] == (len(DATA), len(DATA))
    assert leftovers(path) == {NAME}


def test_the_cache_serves_without_a_network(server, monkeypatch):
    sha256 = server.add(NAME, Served(data=DATA))
    path = index.download("engine", NAME, sha256)
    server.requests.clear()
    monkeypatch.setenv("PIP_INDEX_URL", f"http://127.0.0.1:{closed_port()}/simple")
    assert index.download("engine", NAME, sha256) == path
    assert server.requests == []


def test_no_network_and_an_empty_cache(monkeypatch):
    monkeypatch.setenv("PIP_INDEX_URL", f"http://127.0.0.1:{closed_port()}/simple")
    with pytest.raises(OfflineError):
        index.download("engine", NAME, "0" * 64)


def test_a_spoilt_cached_file_is_fetched_again(server):
    sha256 = server.add(NAME, Served(data=DATA))
    path = index.download("engine", NAME, sha256)
    path.write_bytes(DATA[:-1])
    assert index.download("engine", NAME, sha256).read_bytes() == DATA


def test_a_cut_connection_is_resumed_where_it_stopped(server):
    sha256 = server.add(NAME, Served(data=DATA, cuts=[100_000, 50_000, 1]))
    assert index.download("engine", NAME, sha256).read_bytes() == DATA
    assert server.ranges == ["", "bytes=100000-", "bytes=150000-", "bytes=150001-"]


def test_a_server_without_ranges_is_asked_from_the_start(server):
    sha256 = server.add(NAME, Served(data=DATA, cuts=[100_000], ranges=False))
    assert index.download("engine", NAME, sha256).read_bytes() == DATA


def test_a_download_that_stays_cut_is_an_error_and_the_next_run_resumes(server):
    served = Served(data=DATA, cuts=[1000] * 4)
    sha256 = server.add(NAME, served)
    with pytest.raises(DownloadError, match=r"cut short 4 times") as caught:
        index.download("engine", NAME, sha256)
    assert "4000 of 512000 bytes" in caught.value.why
    assert index.download("engine", NAME, sha256).read_bytes() == DATA
    assert server.ranges[-1] == "bytes=4000-"


def test_a_file_shorter_than_the_index_says_is_truncated(server):
    sha256 = server.add(NAME, Served(data=DATA, size=len(DATA) + 1))
    with pytest.raises(DownloadError, match="cut short"):
        index.download("engine", NAME, sha256)


def test_wrong_bytes_are_refused_removed_and_both_hashes_named(server):
    wanted = hashlib.sha256(DATA).hexdigest()
    found = server.add(NAME, Served(data=DATA[::-1], sha256=wanted))
    with pytest.raises(HashMismatchError) as caught:
        index.download("engine", NAME, wanted)
    assert wanted in caught.value.why
    assert found in caught.value.why
    assert not list((fetch_folder(wanted)).glob("engine*.gz*[!k]"))


def fetch_folder(sha256):
    from dspatch import paths

    return paths.cache() / "downloads" / sha256


def test_an_index_with_another_hash_is_refused_before_anything_is_fetched(server):
    listed = server.add(NAME, Served(data=DATA))
    with pytest.raises(HashMismatchError, match=listed):
        index.download("engine", NAME, "0" * 64)
    assert server.files["engine"][NAME].gets == 0


def test_a_longer_file_than_the_pin_says_is_stopped(server):
    sha256 = server.add(NAME, Served(data=DATA))
    with pytest.raises(HashMismatchError):
        index.download("engine", NAME, sha256, size=10)


def test_a_spoilt_part_of_an_earlier_run_is_dropped(server):
    sha256 = server.add(NAME, Served(data=DATA))
    part = fetch_folder(sha256) / f"{NAME}.part"
    part.parent.mkdir(parents=True)
    part.write_bytes(b"another mirror's page")
    assert index.download("engine", NAME, sha256).read_bytes() == DATA


def test_a_missing_file_is_no_missing_network(server):
    sha256 = server.add(NAME, Served(data=DATA, status=404))
    with pytest.raises(DownloadError, match="answered 404"):
        index.download("engine", NAME, sha256)


def test_a_server_error_is_tried_again(server):
    served = Served(data=DATA, status=503)
    sha256 = server.add(NAME, served)
    with pytest.raises(DownloadError, match="answered 503"):
        index.download("engine", NAME, sha256)
    assert served.gets == 4


def test_redirects_are_followed(server):
    sha256 = server.add(NAME, Served(data=DATA, redirect=True))
    assert index.download("engine", NAME, sha256).read_bytes() == DATA
    assert f"/files/moved/engine/{NAME}" in server.requests


def test_a_server_slower_than_pips_timeout_is_given_up(server, monkeypatch):
    monkeypatch.setenv("PIP_DEFAULT_TIMEOUT", "0.1")
    sha256 = server.add(NAME, Served(data=DATA, pause=0.4, ranges=False))
    with pytest.raises(DownloadError, match="cut short"):
        index.download("engine", NAME, sha256)


def test_the_next_mirror_serves_when_the_first_has_wrong_bytes(server, monkeypatch):
    wanted = hashlib.sha256(DATA).hexdigest()
    server.add(NAME, Served(data=DATA[::-1], sha256=wanted))
    with serve() as second:
        second.add(NAME, Served(data=DATA))
        monkeypatch.setenv("PIP_EXTRA_INDEX_URL", second.simple)
        assert index.download("engine", NAME, wanted).read_bytes() == DATA


def test_too_small_a_disk_is_seen_before_the_first_byte(server, monkeypatch):
    sha256 = server.add(NAME, Served(data=DATA))
    usage = namedtuple("usage", "total used free")(10, 9, 1)
    monkeypatch.setattr(shutil, "disk_usage", lambda path: usage)
    with pytest.raises(DiskFullError, match="no room for engine-1"):
        index.download("engine", NAME, sha256)
    assert server.files["engine"][NAME].gets == 0


def test_a_disk_that_fills_up_is_an_error_and_the_part_is_removed(server):
    sha256 = server.add(NAME, Served(data=DATA))
    part = fetch_folder(sha256) / f"{NAME}.part"
    part.parent.mkdir(parents=True)
    part.symlink_to("/dev/full")  # the kernel's own full disk
    with pytest.raises(DiskFullError, match="No space left"):
        index.download("engine", NAME, sha256)
    assert not part.is_symlink()


def _download(sha256, barrier, results):
    barrier.wait()
    results.put(index.download("engine", NAME, sha256).read_bytes() == DATA)


def test_two_processes_fetch_once(server):
    sha256 = server.add(NAME, Served(data=DATA, pause=0.3))
    context = multiprocessing.get_context("spawn")
    barrier, results = context.Barrier(2), context.Queue()
    both = [context.Process(target=_download, args=(sha256, barrier, results)) for _ in range(2)]
    for process in both:
        process.start()
    assert [results.get(timeout=60), results.get(timeout=60)] == [True, True]
    for process in both:
        process.join()
    assert server.files["engine"][NAME].gets == 1


def test_a_killed_download_leaves_no_file_and_no_lock(server):
    sha256 = server.add(NAME, Served(data=DATA, pause=5.0))
    context = multiprocessing.get_context("spawn")
    barrier, results = context.Barrier(1), context.Queue()
    killed = context.Process(target=_download, args=(sha256, barrier, results))
    killed.start()
    part = fetch_folder(sha256) / f"{NAME}.part"
    while not part.exists() or part.stat().st_size == 0:
        time.sleep(0.01)
    killed.kill()
    killed.join()
    assert not part.with_suffix("").exists()
    server.files["engine"][NAME].pause = 0.0
    assert index.download("engine", NAME, sha256).read_bytes() == DATA
    assert server.ranges[-1].startswith("bytes=")  # it went on where the killed one stopped


def test_a_lock_that_is_never_given_back_is_an_error(server, monkeypatch):
    monkeypatch.setattr(index, "LOCK_SECONDS", 0.2)
    sha256 = server.add(NAME, Served(data=DATA, pause=1.0))
    first = threading.Thread(target=index.download, args=("engine", NAME, sha256))
    first.start()
    while server.files["engine"][NAME].gets == 0:
        pass
    with pytest.raises(LockedError, match="has been fetching"):
        index.download("engine", NAME, sha256)
    first.join()


def test_the_client_hides_credentials_in_addresses():
    assert pipconfig.redact("https://me:secret@host/x#sha256=1") == "https://***@host/x"
