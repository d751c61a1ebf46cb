"""Suites with very many cases: a sample of them is fast, and all of them run with the slow tests."""

from collections import Counter

import pytest


@pytest.hookimpl(tryfirst=True)  # before -m looks at the marks
def pytest_collection_modifyitems(items):
    seen = Counter()
    for item in items:
        marker = item.get_closest_marker("sampled")
        if marker is None:
            continue
        test = item.nodeid.partition("[")[0]
        if seen[test] % marker.kwargs["one_in"]:
            item.add_marker(pytest.mark.slow)
        seen[test] += 1
