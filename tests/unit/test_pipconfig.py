import os
import subprocess
import sys
from pathlib import Path

import pytest

from dspatch import pipconfig
from dspatch.errors import DownloadError


@pytest.fixture
def home(tmp_path, monkeypatch):
    """An environment of its own: the machine's configuration stays out."""
    monkeypatch.setattr(pipconfig, "MACHINE", tmp_path / "etc/pip.conf")
    monkeypatch.setattr(sys, "prefix", str(tmp_path / "prefix"))
    return {"HOME": str(tmp_path), "XDG_CONFIG_DIRS": str(tmp_path / "xdg")}


def write(path: Path, text: str) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text)
    return path


def test_without_any_configuration_the_index_is_pypi(home):
    config = pipconfig.load(home)
    assert config.indexes == (pipconfig.default_index(),)
    assert config.find_links == ()
    assert config.cert is None


def test_the_stronger_place_wins(home, tmp_path):
    write(tmp_path / "xdg/pip/pip.conf", "[global]\nindex-url = https://a.invalid\nproxy = p:1\n")
    write(tmp_path / ".pip/pip.conf", "[global]\nindex-url = https://b.invalid\ntimeout = 7\n")
    write(tmp_path / ".config/pip/pip.conf", "[global]\nindex-url = https://c.invalid\n")
    assert pipconfig.load(home).indexes == ("https://c.invalid",)
    assert pipconfig.load(home).proxy == "p:1"
    assert pipconfig.load(home).timeout == 7.0
    assert pipconfig.load(home | {"PIP_INDEX_URL": "https://d.invalid"}).indexes == (
        "https://d.invalid",
    )


def test_the_download_section_is_stronger_than_global_and_install_is_not_read(home, tmp_path):
    text = "[download]\ncert = /d.pem\n[global]\ncert = /g.pem\n[install]\ncert = /i.pem\n"
    write(tmp_path / ".config/pip/pip.conf", text)
    assert pipconfig.load(home).cert == "/d.pem"


def test_lists_are_split_at_blanks_and_lines(home, tmp_path):
    text = "[global]\nextra_index_url =\n  https://a.invalid\n  https://b.invalid\n"
    write(tmp_path / ".config/pip/pip.conf", text + "find-links = /x /y\ntrusted-host = h:8\n")
    config = pipconfig.load(home)
    assert config.indexes == (pipconfig.default_index(), "https://a.invalid", "https://b.invalid")
    assert config.find_links == ("/x", "/y")
    assert config.trusted_hosts == ("h:8",)


def test_pip_config_file_replaces_the_users_file(home, tmp_path):
    write(tmp_path / ".config/pip/pip.conf", "[global]\nproxy = user:1\ntimeout = 5\n")
    named = write(tmp_path / "named.conf", "[global]\nproxy = named:1\n")
    config = pipconfig.load(home | {"PIP_CONFIG_FILE": str(named)})
    assert config.proxy == "named:1"
    assert config.timeout == pipconfig.DEFAULT_TIMEOUT
    assert pipconfig.load(home | {"PIP_CONFIG_FILE": os.devnull}).proxy is None


def test_no_index_leaves_only_find_links(home):
    config = pipconfig.load(home | {"PIP_NO_INDEX": "1", "PIP_FIND_LINKS": "/wheels"})
    assert config.indexes == ()
    assert config.find_links == ("/wheels",)


def test_requests_bundle_serves_when_pip_names_none(home):
    assert pipconfig.load(home | {"REQUESTS_CA_BUNDLE": "/ca.pem"}).cert == "/ca.pem"


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("no section\n", "cannot be read"),
        ("[global]\ntimeout = soon\n", "'soon' is not a number"),
    ],
)
def test_a_malformed_configuration_is_refused(home, tmp_path, text, said):
    write(tmp_path / ".config/pip/pip.conf", text)
    with pytest.raises(DownloadError, match=said):
        pipconfig.load(home)


def test_pip_reads_the_same_files_and_values(home, tmp_path):
    write(tmp_path / "xdg/pip/pip.conf", "[global]\nfind-links = /a\n")
    write(tmp_path / ".config/pip/pip.conf", "[global]\nextra-index-url = https://b.invalid\n")
    env = home | {"PATH": os.environ["PATH"], "PIP_CERT": "/c.pem"}
    said = subprocess.run(
        [sys.executable, "-m", "pip", "config", "list"], env=env, capture_output=True, text=True
    ).stdout
    config = pipconfig.load(env)
    assert "find-links='/a'" in said
    assert config.find_links == ("/a",)
    assert "extra-index-url='https://b.invalid'" in said
    assert "https://b.invalid" in config.indexes
    assert "cert='/c.pem'" in said
    assert config.cert == "/c.pem"
