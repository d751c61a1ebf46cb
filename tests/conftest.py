"""What all tests share."""

import logging

import hypothesis
import pytest

# How long an example takes says more of the machine than of the code.
hypothesis.settings.register_profile("unhurried", deadline=None)
hypothesis.settings.load_profile("unhurried")


class OnlyWithMarker:
    """Leaves files out of which nothing can be asked for, which saves their imports in each worker.

    For `-m "slow and not exhaustive"` those in which, and in whose folder's conftest, the word "slow" does not occur.
    """

    def __init__(self, marker):
        self.marker = marker

    def pytest_ignore_collect(self, collection_path):
        if collection_path.is_dir() or collection_path.suffix != ".py":
            return None
        sources = [path for path in (collection_path, collection_path.with_name("conftest.py")) if path.exists()]
        return None if any(self.marker in path.read_text(encoding="utf-8") for path in sources) else True


def pytest_configure(config):
    marker = config.getoption("markexpr").partition(" ")[0]
    if marker in {"slow", "exhaustive"}:
        config.pluginmanager.register(OnlyWithMarker(marker))


@pytest.fixture
def logging_as_before():
    """Commands set up logging for their process, which here is pytest's."""
    root, ours = logging.getLogger(), logging.getLogger("streammoe")
    before = root.handlers[:], root.level, ours.level
    yield
    root.handlers[:] = before[0]
    root.setLevel(before[1])
    ours.setLevel(before[2])
