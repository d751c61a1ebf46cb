"""What all tests share."""

import logging
import os
import re
import types

# Before NumPy is loaded. Tests run in as many processes as there are cores, and threads of OpenBLAS that wait for each
# other on busy cores take seconds for what one does in milliseconds.
os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")

import hypothesis
import pytest

# How long an example takes says more of the machine than of the code.
hypothesis.settings.register_profile("unhurried", deadline=None)
hypothesis.settings.load_profile("unhurried")


MARK_OF_WHOLE_FILE = re.compile(
    r"^(pytestmark = pytest\.mark|\s+item\.add_marker\(pytest\.mark)\.(slow|exhaustive)\b", re.MULTILINE
)


LONGEST = {"test_kafka_outages", "test_kafka_source", "test_kafka_failover", "test_distributed"}


class OnlyWhatCanBeSelected:
    """Leaves files out from which the markers that are asked for select nothing, which saves their imports.

    For `-m "slow and not exhaustive"` those in which, and in whose folder's conftest, the word "slow" does not occur;
    for `-m "not slow and not exhaustive"` those that are marked as a whole, by themselves or by that conftest.
    """

    def __init__(self, expression):
        self.leaves_slow_out = expression.startswith("not slow")
        self.marker = expression.partition(" ")[0]

    def pytest_ignore_collect(self, collection_path):
        if collection_path.is_dir() or collection_path.suffix != ".py":
            return None
        paths = [path for path in (collection_path, collection_path.with_name("conftest.py")) if path.exists()]
        sources = [path.read_text(encoding="utf-8") for path in paths]
        if self.leaves_slow_out:
            return True if any(map(MARK_OF_WHOLE_FILE.search, sources)) else None
        return None if any(self.marker in source for source in sources) else True


def pytest_collection_modifyitems(items):
    """Start the files that take longest first, so that no process is left alone with one of them."""
    items.sort(key=lambda item: item.path.stem not in LONGEST)


def pytest_configure(config):
    expression = config.getoption("markexpr")
    if expression.startswith(("slow", "exhaustive", "not slow")):
        config.pluginmanager.register(OnlyWhatCanBeSelected(expression))


def pytest_ignore_collect(collection_path):
    """Import no helpers of tests just to find that they have no doctests."""
    is_helper = collection_path.suffix == ".py" and not collection_path.name.startswith("test_")
    return True if is_helper and ">>>" not in collection_path.read_text(encoding="utf-8") else None


@pytest.fixture
def logging_as_before():
    """Commands set up logging for their process, which here is pytest's."""
    root, ours = logging.getLogger(), logging.getLogger("streammoe")
    before = root.handlers[:], root.level, ours.level
    yield
    root.handlers[:] = before[0]
    root.setLevel(before[1])
    ours.setLevel(before[2])


@pytest.fixture(scope="session", autouse=True)
def no_collection_at_a_start():
    """`streammoe run` collects garbage once before it learns; after many tests that takes half a second."""
    from streammoe.commands import run

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(run, "gc", types.SimpleNamespace(unfreeze=int, collect=int, freeze=int))
        yield
