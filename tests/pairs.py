"""Pairwise lists: each two options together in some case; the full product belongs to `make test-exhaustive`."""

from collections.abc import Collection
from typing import Any

import pytest
from allpairspy import AllPairs


def pairwise(**options: Collection[Any]) -> list[dict[str, Any]]:
    """Return a short list of cases in which any two values of different options meet.

    >>> len(pairwise(bound=["tight", "paper"], degree=[1, 2], K=[1, 2])), 2 * 2 * 2
    (4, 8)
    """
    if len(options) == 1:
        return [{name: value} for name, values in options.items() for value in values]
    return [dict(zip(options, row, strict=True)) for row in AllPairs([list(values) for values in options.values()])]


def pairwise_cases(**options: Collection[Any]) -> list[Any]:
    """Return the pairwise list as `pytest.param`s of one dict each, with readable ids."""
    return [pytest.param(case, id="-".join(map(str, case.values()))) for case in pairwise(**options)]
