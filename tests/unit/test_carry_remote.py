"""Wheels read by range: what is fetched, what is kept, what is refused."""

import hashlib
import zipfile
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dspatch import fetch, index, paths, pipconfig, treefiles
from dspatch.carry.remote import memberstore, ranges, remote, wheeldir
from dspatch.carry.remote.rangefile import RangeFile
from dspatch.carry.remote.ranges import FileRanges, Traffic
from dspatch.errors import (
    DownloadError,
    HashMismatchError,
    OfflineError,
    UnsafeArchiveError,
    WheelError,
)
from tests.unit import wheelkit
from tests.unit.index_server import Served

NAME = wheelkit.BASE_NAME
PROJECT = "mini-cpu"
PLATFORM = "mini/platform.py"
BULK = {f"mini/many/{at}.py": b"# %d\n" % at * 50 for at in range(1500)}


@pytest.fixture(autouse=True)
def quick(monkeypatch):
    monkeypatch.setattr(fetch, "PAUSE", 0.0)


@pytest.fixture
def client(server):
    with pipconfig.client(pipconfig.load()) as opened:
        yield opened


def wheel_bytes(folder, members=None) -> bytes:
    return wheelkit.base_wheel(folder, members or {**wheelkit.BASE, **BULK}).read_bytes()


def offer(server, data, name=NAME, **faults):
    """Serve a wheel, as the index then lists it."""
    server.add(name, Served(data=data, **faults), PROJECT)
    return index.find(PROJECT, name)


def opened(file, client, traffic=None):
    return remote.open_wheel(PROJECT, file, client, traffic or Traffic())


def test_only_the_directory_and_the_members_asked_for_are_fetched(server, client, tmp_path):
    data = wheel_bytes(tmp_path)
    traffic = Traffic()
    wheel = opened(offer(server, data), client, traffic)
    assert traffic.requests <= 3
    assert set(wheel.paths()) == {
        path for path in {**wheelkit.BASE, **BULK} if path.startswith("mini/")
    } - {"mini/_C.abi3.so"}
    before = traffic.bytes
    assert wheel.read(PLATFORM) == wheelkit.BASE[PLATFORM]
    assert traffic.bytes - before < 300
    assert traffic.requests <= 4
    assert not list((paths.cache() / "downloads").glob("*"))


def test_what_was_read_is_not_asked_for_again(server, client, tmp_path):
    file = offer(server, wheel_bytes(tmp_path))
    opened(file, client).read(PLATFORM)
    asked = len(server.requests)
    assert opened(file, client).read(PLATFORM) == wheelkit.BASE[PLATFORM]
    assert len(server.requests) == asked


def test_an_equal_member_of_another_release_is_fetched_once(server, client, tmp_path):
    first = offer(server, wheel_bytes(tmp_path / "a"))
    changed = {**wheelkit.BASE, **BULK, "mini/ops.py": b"def op():\n    return 2\n"}
    other = NAME.replace("-1.0-", "-1.1-")
    second = offer(server, wheel_bytes(tmp_path / "b", changed), other)
    opened(first, client).read(PLATFORM)
    wheel = opened(second, client)
    asked = len(server.requests)
    assert wheel.read(PLATFORM) == wheelkit.BASE[PLATFORM]
    assert len(server.requests) == asked
    assert wheel.read("mini/ops.py") == changed["mini/ops.py"]
    assert len(server.requests) == asked + 1


def test_without_the_network_the_cache_serves(server, client, tmp_path):
    file = offer(server, wheel_bytes(tmp_path))
    opened(file, client).read(PLATFORM)
    away = replace(file, url="http://127.0.0.1:9/none.whl")
    wheel = opened(away, client)
    assert wheel.read(PLATFORM) == wheelkit.BASE[PLATFORM]
    with pytest.raises(OfflineError):
        wheel.read("mini/ops.py")


def test_a_path_that_is_not_there_costs_nothing(server, client, tmp_path):
    wheel = opened(offer(server, wheel_bytes(tmp_path)), client)
    asked = len(server.requests)
    assert wheel.read("mini/gone.py") is None
    assert wheel.mode("mini/gone.py") == "100644"
    assert wheel.known_blob(PLATFORM) is None
    assert len(server.requests) == asked


def test_it_is_a_source_of_treefiles(server, client, tmp_path):
    files = treefiles.Files(source=opened(offer(server, wheel_bytes(tmp_path)), client))
    assert files.read(PLATFORM) == wheelkit.BASE[PLATFORM]
    assert PLATFORM in files.paths()


def test_modes_are_those_of_the_wheel(server, client, tmp_path):
    path = tmp_path / NAME
    own = f"{wheelkit.BASE_INFO}/RECORD"
    members = {"mini/run.sh": b"#!/bin/sh\n", "mini/empty.py": b""}
    wheelkit.raw_wheel(path, {**members, own: wheelkit.record_of(members, own)})
    with zipfile.ZipFile(path, "a") as archive:
        archive.getinfo("mini/run.sh").external_attr = 0o100755 << 16
        archive._didModify = True
    wheel = opened(offer(server, path.read_bytes()), client)
    assert (wheel.mode("mini/run.sh"), wheel.mode("mini/empty.py")) == ("100755", "100644")
    assert wheel.read("mini/empty.py") == b""


def test_a_stored_member_is_read_too(server, client, tmp_path):
    path = tmp_path / NAME
    own = f"{wheelkit.BASE_INFO}/RECORD"
    members = {"mini/stored.py": b"X = 1\n" * 40}
    with zipfile.ZipFile(path, "w", zipfile.ZIP_STORED) as archive:
        for name, data in {**members, own: wheelkit.record_of(members, own)}.items():
            archive.writestr(name, data)
    wheel = opened(offer(server, path.read_bytes()), client)
    assert wheel.read("mini/stored.py") == members["mini/stored.py"]


# -- servers that send whole files, and files that are here ------------------------------------------


def test_a_server_without_ranges_is_asked_for_the_whole_file_once(server, client, tmp_path):
    data = wheel_bytes(tmp_path)
    file = offer(server, data, ranges=False)
    traffic = Traffic()
    wheel = opened(file, client, traffic)
    assert wheel.read(PLATFORM) == wheelkit.BASE[PLATFORM]
    assert wheel.read("mini/ops.py") == wheelkit.BASE["mini/ops.py"]
    assert traffic.bytes == len(data)
    assert server.files[PROJECT][NAME].gets == 2  # the question for a part, and the whole
    assert opened(file, client).read("mini/__init__.py") == b""
    assert server.files[PROJECT][NAME].gets == 2


def test_a_whole_copy_in_the_cache_is_read_instead(server, client, tmp_path):
    file = offer(server, wheel_bytes(tmp_path))
    index.download(PROJECT, NAME, file.sha256)
    gets = server.files[PROJECT][NAME].gets
    traffic = Traffic()
    assert opened(file, client, traffic).read(PLATFORM) == wheelkit.BASE[PLATFORM]
    assert (server.files[PROJECT][NAME].gets, traffic.bytes) == (gets, 0)


def test_a_file_of_a_folder_is_read_in_place(client, tmp_path, monkeypatch):
    folder = tmp_path / "größe"
    wheel_bytes(folder)
    monkeypatch.setenv("PIP_NO_INDEX", "1")
    monkeypatch.setenv("PIP_FIND_LINKS", str(folder))
    file = index.find(PROJECT, NAME)
    assert file.url.startswith("file:")
    traffic = Traffic()
    assert opened(file, client, traffic).read(PLATFORM) == wheelkit.BASE[PLATFORM]
    assert traffic.requests == 0


def test_a_wheel_whose_hash_the_index_does_not_state(server, client, tmp_path):
    server.hashes = False
    file = offer(server, wheel_bytes(tmp_path))
    assert file.sha256 is None
    for _ in range(2):
        assert opened(file, client).read(PLATFORM) == wheelkit.BASE[PLATFORM]
    assert not (paths.cache() / "wheel-directories").exists()


# -- planted faults ----------------------------------------------------------------------------------


def test_a_member_that_is_not_what_record_names_is_refused_and_not_kept(server, client, tmp_path):
    path = tmp_path / NAME
    own = f"{wheelkit.BASE_INFO}/RECORD"
    said = {**wheelkit.BASE, PLATFORM: b"something else\n"}
    wheelkit.raw_wheel(path, {**wheelkit.BASE, own: wheelkit.record_of(said, own)})
    wheel = opened(offer(server, path.read_bytes()), client)
    with pytest.raises(HashMismatchError, match=r"mini/platform\.py of mini_cpu-1\.0") as caught:
        wheel.read(PLATFORM)
    assert hashlib.sha256(said[PLATFORM]).hexdigest() in caught.value.why
    assert hashlib.sha256(wheelkit.BASE[PLATFORM]).hexdigest() in caught.value.why
    assert not (paths.cache() / "members").exists()


def test_a_spoilt_member_is_refused(server, client, tmp_path):
    data = bytearray(wheel_bytes(tmp_path))
    at = data.index(PLATFORM.encode()) + len(PLATFORM) + 4
    data[at : at + 8] = bytes(8)
    wheel = opened(offer(server, bytes(data)), client)
    with pytest.raises(HashMismatchError, match="RECORD"):
        wheel.read(PLATFORM)


def test_a_spoilt_member_of_the_cache_is_fetched_again(server, client, tmp_path):
    file = offer(server, wheel_bytes(tmp_path))
    opened(file, client).read(PLATFORM)
    sha256 = hashlib.sha256(wheelkit.BASE[PLATFORM]).hexdigest()
    kept = paths.cache() / "members" / sha256[:2] / sha256
    for spoilt in (b"", kept.read_bytes()[:-3], __import__("zlib").compress(b"other")):
        kept.write_bytes(spoilt)
        assert opened(file, client).read(PLATFORM) == wheelkit.BASE[PLATFORM]
        assert memberstore.read(sha256) == wheelkit.BASE[PLATFORM]


def test_a_spoilt_directory_of_the_cache_is_read_again(server, client, tmp_path):
    file = offer(server, wheel_bytes(tmp_path))
    opened(file, client)
    (paths.cache() / "wheel-directories" / str(file.sha256)).write_bytes(b"not it")
    assert opened(file, client).read(PLATFORM) == wheelkit.BASE[PLATFORM]


@pytest.mark.parametrize("name", ["../out.py", "/abs.py", "mini/.git/hooks/x", "a\\b.py"])
def test_an_unsafe_member_refuses_the_wheel(server, client, tmp_path, name):
    with pytest.raises(UnsafeArchiveError):
        opened(offer(server, wheel_bytes(tmp_path, {**wheelkit.BASE, name: b"x"})), client)


def test_a_source_without_a_hash_in_record_refuses_the_wheel(server, client, tmp_path):
    own = f"{wheelkit.BASE_INFO}/RECORD"
    path = tmp_path / NAME
    record = wheelkit.record_of({"mini/__init__.py": b""}, own)
    wheelkit.raw_wheel(path, {"mini/__init__.py": b"", PLATFORM: b"x", own: record})
    with pytest.raises(WheelError, match="not a readable wheel") as caught:
        opened(offer(server, path.read_bytes()), client)
    assert PLATFORM in caught.value.why


@pytest.mark.parametrize("data", [b"", b"no zip", b"x" * 200_000, b"PK\x05\x06" + bytes(18)])
def test_what_is_no_wheel_is_refused(server, client, data):
    with pytest.raises((WheelError, DownloadError)):
        opened(offer(server, data), client)


def test_a_cut_answer_is_asked_for_again(server, client, tmp_path):
    file = offer(server, wheel_bytes(tmp_path), cuts=[10, 0, 500])
    assert opened(file, client).read(PLATFORM) == wheelkit.BASE[PLATFORM]


def test_a_server_that_fails_is_given_up_with_its_answer(server, client, tmp_path):
    file = offer(server, wheel_bytes(tmp_path), status=503)
    with pytest.raises(DownloadError, match="cannot be read in parts") as caught:
        opened(file, client)
    assert "503" in caught.value.why
    assert server.files[PROJECT][NAME].gets == fetch.RESUMES + 1


def test_a_file_that_is_gone_is_said_at_once(server, client, tmp_path):
    file = offer(server, wheel_bytes(tmp_path), status=404)
    with pytest.raises(DownloadError, match="cannot be read in parts"):
        opened(file, client)
    assert server.files[PROJECT][NAME].gets == 1


# -- reading in pieces -------------------------------------------------------------------------------


@given(st.data())
def test_a_file_read_in_pieces_is_the_file(tmp_path_factory, data):
    content = data.draw(st.binary(max_size=300))
    path = tmp_path_factory.mktemp("pieces") / "file"
    path.write_bytes(content)
    mine, real = RangeFile(FileRanges(path)), path.open("rb")
    with real:
        for _ in range(data.draw(st.integers(0, 8))):
            offset = data.draw(st.integers(0, 320))
            size = data.draw(st.integers(-1, 320))
            assert mine.seek(offset) == real.seek(offset)
            assert mine.read(size) == real.read(size)
            assert mine.tell() == real.tell()
    with pytest.raises(OSError, match="no place"):
        mine.seek(-1)


@given(start=st.integers(0, 199_999), length=st.integers(1, 150_000))
def test_the_kept_end_and_the_rest_join_without_a_seam(start, length):
    content = bytes(at * 7 % 251 for at in range(200_000))
    end = min(start + length, len(content))

    class Answers(ranges.HttpRanges):
        def _ask(self, wanted):
            first, _, last = wanted.removeprefix("bytes=").partition("-")
            part = content[-int(last) :] if not first else content[int(first) : int(last) + 1]
            return part, len(content)

    served = Answers(None, "http://127.0.0.1/x", Traffic())
    assert served.size() == len(content)
    assert served.read(start, end) == content[start:end]


@given(st.binary(max_size=200), st.integers(0, 100))
def test_no_bytes_make_unpacking_raise(raw, size):
    got = wheeldir.unpack(raw, size)
    assert got is None or len(got) == size


def test_a_member_that_unpacks_to_more_than_it_says_is_none():
    import zlib

    packer = zlib.compressobj(9, zlib.DEFLATED, -15)
    bomb = packer.compress(bytes(10_000_000)) + packer.flush()
    head = b"PK\x03\x04" + bytes(4) + b"\x08\x00" + bytes(16) + bytes(4)
    assert wheeldir.unpack(head + bomb, 100) is None
    assert wheeldir.unpack(head + bomb, 10_000_000) == bytes(10_000_000)
