"""What steps of all families share: sparse routing."""

import numba
import numpy as np
import pytest

from streammoe import MoERegressor
from streammoe.errors import ConfigError
from streammoe.kernels.shared import route


@numba.njit
def routed(tau, top_k):
    route(tau, top_k)


@pytest.mark.parametrize(
    ("given", "top_k", "expected"),
    [
        ([0.1, 0.4, 0.05, 0.25, 0.2], 1, [0.0, 1.0, 0.0, 0.0, 0.0]),
        ([0.1, 0.4, 0.05, 0.25, 0.2], 3, [0.0, 0.4 / 0.85, 0.0, 0.25 / 0.85, 0.2 / 0.85]),
        ([0.1, 0.4, 0.05, 0.25, 0.2], 0, [0.1, 0.4, 0.05, 0.25, 0.2]),  # without a limit, or with one too large
        ([0.1, 0.4, 0.05, 0.25, 0.2], 9, [0.1, 0.4, 0.05, 0.25, 0.2]),
        ([0.25, 0.25, 0.25, 0.25], 2, [0.5, 0.5, 0.0, 0.0]),  # of equals the first stays
        ([1.0, 0.0, 0.0], 2, [1.0, 0.0, 0.0]),
        ([np.nan] * 3, 1, [np.nan] * 3),  # what is no number does not become one
    ],
)
def test_the_largest_responsibilities_share_what_there_is(given, top_k, expected):
    tau = np.array(given)
    routed(tau, top_k)
    np.testing.assert_allclose(tau, expected, rtol=1e-15)


def test_experts_that_do_not_learn_stay_as_they_are():
    X = np.random.default_rng(0).normal(size=(300, 2))
    model = MoERegressor(4, top_k=1, warmup=200, warmup_restarts=1, averaging=None)
    model.learn_array(X[:200], np.abs(X[:200, 0]))
    before = model.parameters()
    model.learn_array(X[200:201], np.abs(X[200:201, 0]))
    after = model.parameters()
    moved = [k for k in range(4) if (before["experts"][k] != after["experts"][k]).any()]
    assert moved == [int(np.argmax(after["masses"] / before["masses"]))]
    assert after["masses"].sum() == pytest.approx(1.0, rel=1e-9)


def test_top_k_is_a_number_of_experts():
    for top_k in (0, -1, 1.5, True, "2"):
        with pytest.raises(ConfigError):
            MoERegressor(3, top_k=top_k)
