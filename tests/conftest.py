"""Suite-wide rules: no network for git, nothing outside the test's own folder, the same answers everywhere."""

from __future__ import annotations

from pathlib import Path

import pytest
from hypothesis import HealthCheck, settings

from tests import support

# A machine under load is slow, not wrong: no test is about time.
settings.register_profile(
    "dspatch", deadline=None, suppress_health_check=[HealthCheck.too_slow], print_blob=True
)
settings.load_profile("dspatch")


@pytest.fixture(autouse=True)
def _isolated(
    request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """Every test gets a cache and a work folder of its own; e2e tests share one cache of downloads."""
    monkeypatch.setenv("GIT_ALLOW_PROTOCOL", "file")
    for name in ("GIT_DIR", "GIT_WORK_TREE", "GIT_INDEX_FILE", "XDG_CACHE_HOME"):
        monkeypatch.delenv(name, raising=False)
    if request.node.get_closest_marker("e2e") is None:
        monkeypatch.setenv("DSPATCH_CACHE", str(tmp_path / "cache"))
    else:
        monkeypatch.setenv("DSPATCH_CACHE", str(support.shared_cache()))
    monkeypatch.setenv("DSPATCH_WORK", str(tmp_path / "work"))


@pytest.fixture
def upstream() -> support.Upstream:
    """A generated mini engine."""
    return support.Upstream()


LEFT_OUT = "left_out"


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Leave tests that need a GPU out unless -m asks for them; pytest prints how many."""
    if "gpu" in str(config.option.markexpr):
        return
    left_out = [item for item in items if item.get_closest_marker("gpu")]
    if left_out:
        config.hook.pytest_deselected(items=left_out)
        items[:] = [item for item in items if not item.get_closest_marker("gpu")]
        if hasattr(config, "workeroutput"):
            config.workeroutput[LEFT_OUT] = len(left_out)


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_make_scheduler(config: pytest.Config, log: object) -> object:
    """Files stay whole, since their tests share engines, and are taken in order, the longest folder first."""
    from xdist.scheduler import LoadFileScheduling

    config.option.loadscopereorder = False
    return LoadFileScheduling(config, log)


class Counts:
    """What a worker of pytest-xdist left out, which its own terminal would have said."""

    left_out = 0

    def pytest_testnodedown(self, node: object) -> None:
        """Every worker collects the same tests; one that died says nothing."""
        self.left_out = max(self.left_out, getattr(node, "workeroutput", {}).get(LEFT_OUT, 0))

    def pytest_terminal_summary(self, terminalreporter: pytest.TerminalReporter) -> None:
        if self.left_out:
            terminalreporter.write_line(
                f"{self.left_out} deselected: they need a GPU (pytest -m gpu)"
            )


@pytest.hookimpl(trylast=True)  # after pytest-xdist has
def pytest_configure(config: pytest.Config) -> None:
    if config.pluginmanager.hasplugin("dsession"):
        config.pluginmanager.register(Counts())
