"""The real package index lists what the pins say, and `pin add` writes the shipped pin again."""

import pytest

from dspatch import index, pins
from dspatch.pins.add import Request, add

pytestmark = pytest.mark.e2e
REVS = ["v0.27.1", "v0.32.0"]


@pytest.mark.parametrize("rev", REVS)
def test_the_index_lists_every_pinned_file_with_its_hash_and_size(rev):
    pin = pins.load("vllm", rev)
    for file in [source for source in pin.sources if source.kind != "git"] + list(pin.bases):
        listed = [each for each in index.files(file.project) if each.filename == file.filename]
        assert file.sha256 in {each.sha256 for each in listed}
        assert {each.size for each in listed} <= {file.size, None}


@pytest.mark.parametrize("rev", REVS)
def test_the_pinned_sdist_can_be_fetched(rev):
    source = pins.load("vllm", rev).source("sdist")
    path = index.download(source.project, source.filename, source.sha256, size=source.size)
    assert path.stat().st_size == source.size


def test_pin_add_writes_the_shipped_pin_again(tmp_path):
    shipped = pins.load("vllm", "v0.27.1")
    added = add(Request(engine="vllm", rev="0.27.1", targets=("cpu",)), tmp_path / "vllm.toml")
    assert added.pin.commit == shipped.commit
    assert added.pin.source("sdist") == shipped.source("sdist")
    assert set(added.pin.bases) <= set(shipped.bases)
    found = {each.path for each in next(iter(added.differences.values()))}
    assert "vllm/platforms/__init__.py" in found
