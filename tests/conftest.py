"""Suites with very many cases: a sample of them is fast, and all of them run with the slow tests."""

from collections import Counter

import hypothesis
import pytest

# How long an example takes says more of the machine than of the code.
hypothesis.settings.register_profile("unhurried", deadline=None)
hypothesis.settings.load_profile("unhurried")

FEW = 4
"""Cases of one test that are fast; of more, evenly spread ones."""


@pytest.hookimpl(tryfirst=True)  # before -m looks at the marks
def pytest_collection_modifyitems(items):
    cases = Counter(map(_test, items))
    seen = Counter()
    for item in items:
        test = _test(item)
        marker = item.get_closest_marker("sampled")
        one_in = marker.kwargs["one_in"] if marker else -(-cases[test] // FEW)
        if seen[test] % one_in:
            item.add_marker(pytest.mark.slow)
        seen[test] += 1


def _test(item):
    return item.nodeid.partition("[")[0]
