"""Suites with very many cases: a sample of them is for every run, and all of them are exhaustive."""

import logging
from collections import Counter

import hypothesis
import pytest

# How long an example takes says more of the machine than of the code.
hypothesis.settings.register_profile("unhurried", deadline=None)
hypothesis.settings.load_profile("unhurried")

FEW = 4
"""Cases of one test for every run; of more, evenly spread ones."""


@pytest.fixture
def logging_as_before():
    """Commands set up logging for their process, which here is pytest's."""
    root, ours = logging.getLogger(), logging.getLogger("streammoe")
    before = root.handlers[:], root.level, ours.level
    yield
    root.handlers[:] = before[0]
    root.setLevel(before[1])
    ours.setLevel(before[2])


@pytest.hookimpl(tryfirst=True)  # before -m looks at the marks
def pytest_collection_modifyitems(items):
    cases = Counter(map(_test, items))
    seen = Counter()
    for item in items:
        test = _test(item)
        marker = item.get_closest_marker("sampled")
        one_in = marker.kwargs["one_in"] if marker else -(-cases[test] // FEW)
        if seen[test] % one_in:
            item.add_marker(pytest.mark.exhaustive)
        seen[test] += 1


def _test(item):
    return item.nodeid.partition("[")[0]
