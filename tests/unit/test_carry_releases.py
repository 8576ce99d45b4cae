"""Which releases an engine has, and which wheel stands for each."""

import pytest

from dspatch.carry.remote import releases
from dspatch.errors import DownloadError, OfflineError, UnknownEngineError
from tests.unit.index_server import Served

LINUX = "cp38-abi3-manylinux_2_28_x86_64.whl"
ARM = "cp38-abi3-manylinux_2_28_aarch64.whl"


def offer(server, *names, project="vllm", **facts):
    for name in names:
        server.add(name, Served(data=name.encode(), **facts), project)


def versions(**wanted):
    return [each.version for each in releases.published("vllm", **wanted).releases]


def test_releases_come_oldest_first_from_the_oldest_of_interest(server):
    offer(
        server,
        *(f"vllm-{v}-{LINUX}" for v in ("0.4.1", "0.4.2", "0.10.0", "0.9.0", "0.9.0.1")),
        "vllm-0.6.6.post1.tar.gz",
    )
    assert versions() == ["0.4.2", "0.6.6.post1", "0.9.0", "0.9.0.1", "0.10.0"]
    assert releases.published("vllm").release("v0.9.0").rev == "v0.9.0"
    assert releases.published("vllm").release("1.0") is None


def test_a_newest_of_interest_ends_the_list(server, monkeypatch):
    from dataclasses import replace

    facts = replace(releases.engine("vllm"), newest="0.9.0")
    monkeypatch.setattr(releases, "engine", lambda name: facts)
    offer(server, f"vllm-0.9.0-{LINUX}", f"vllm-0.9.1-{LINUX}")
    assert versions() == ["0.9.0"]


def test_prereleases_and_yanked_ones_come_only_when_asked_for(server):
    offer(server, f"vllm-0.9.0-{LINUX}", f"vllm-0.9.1rc1-{LINUX}")
    offer(server, f"vllm-0.9.1-{LINUX}", yanked=True)
    assert versions() == ["0.9.0"]
    assert versions(prereleases=True) == ["0.9.0", "0.9.1rc1"]
    assert versions(yanked=True) == ["0.9.0", "0.9.1"]


def test_a_yanked_file_beside_a_standing_one_is_not_taken(server):
    offer(server, f"vllm-0.9.0-1-{LINUX}", yanked=True)
    offer(server, f"vllm-0.9.0-{LINUX}")
    (only,) = releases.published("vllm").releases
    assert (only.yanked, only.wheel.filename) == (False, f"vllm-0.9.0-{LINUX}")


def test_the_wheel_for_linux_on_x86_of_the_newest_build_stands_for_a_release(server):
    # Measured: the second builds of vLLM 0.20.1 and 0.21.0 hold other Python than the first.
    offer(server, *(f"vllm-0.20.1-{LINUX}", f"vllm-0.20.1-1-{LINUX}", f"vllm-0.20.1-2-{ARM}"))
    offer(server, "vllm-0.20.1-10-cp38-abi3-win_amd64.whl", "vllm-0.20.1.tar.gz")
    (only,) = releases.published("vllm").releases
    assert only.wheel.filename == f"vllm-0.20.1-1-{LINUX}"
    assert only.sdist.filename == "vllm-0.20.1.tar.gz"


def test_a_release_without_a_wheel_or_without_an_sdist(server):
    offer(server, "vllm-0.9.0.tar.gz", f"vllm-0.15.0-{ARM}")
    first, second = releases.published("vllm").releases
    assert (first.wheel, second.sdist) == (None, None)
    assert second.wheel.filename == f"vllm-0.15.0-{ARM}"


def test_the_inputs_of_a_release_are_its_hashes(server):
    digest = server.add(f"vllm-0.9.0-{LINUX}", Served(data=b"one"), "vllm")
    assert releases.published("vllm").releases[0].inputs == digest


def test_files_that_are_no_release_are_passed_over(server):
    offer(server, f"vllm-0.9.0-{LINUX}", "vllm-0.9.0.exe", "notes.txt", "vllm-x-y.whl")
    assert versions() == ["0.9.0"]


def test_lmdeploy_is_known_and_publishes_wheels_only(server):
    names = [f"lmdeploy-0.6.4-cp{v}-cp{v}-manylinux2014_x86_64.whl" for v in (39, 310)]
    offer(server, *names, "lmdeploy-0.6.3-cp39-cp39-win_amd64.whl", project="lmdeploy")
    (only,) = releases.published("lmdeploy").releases
    assert (only.version, only.sdist) == ("0.6.4", None)


def test_an_index_that_cannot_be_asked(server, monkeypatch):
    server.status = 500
    offer(server, f"vllm-0.9.0-{LINUX}")
    with pytest.raises(DownloadError, match="cannot be listed"):
        releases.published("vllm")
    monkeypatch.setenv("PIP_INDEX_URL", "http://127.0.0.1:9/simple")
    with pytest.raises(OfflineError):
        releases.published("vllm")


def test_an_unknown_engine_is_named(server):
    with pytest.raises(UnknownEngineError):
        releases.published("vlm")
