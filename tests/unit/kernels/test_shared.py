"""What steps of all families share."""

import numba
import numpy as np
import pytest

from streammoe import MoEClassifier, MoERegressor
from streammoe.errors import ConfigError
from streammoe.kernels.shared import route


@numba.njit
def routed(tau, top_k):
    route(tau, top_k)


TAU = np.array([0.1, 0.4, 0.05, 0.25, 0.2])


class TestRoute:
    @pytest.mark.parametrize("top_k", [1, 2, 3, 4])
    def test_the_largest_share_what_there_is(self, top_k):
        tau = TAU.copy()
        routed(tau, top_k)
        kept = np.argsort(-TAU)[:top_k]
        assert np.flatnonzero(tau).tolist() == sorted(kept)
        np.testing.assert_allclose(tau[kept], TAU[kept] / TAU[kept].sum(), rtol=1e-15)

    @pytest.mark.parametrize("top_k", [0, 5, 9])
    def test_all_are_left_alone_where_none_is_to_go(self, top_k):
        tau = TAU.copy()
        routed(tau, top_k)
        assert tau.tobytes() == TAU.tobytes()

    def test_of_equals_the_first_stays(self):
        tau = np.array([0.25, 0.25, 0.25, 0.25])
        routed(tau, 2)
        assert tau.tolist() == [0.5, 0.5, 0.0, 0.0]

    def test_nothing_has_a_share_of_nothing(self):
        tau = np.array([1.0, 0.0, 0.0])
        routed(tau, 2)
        assert tau.tolist() == [1.0, 0.0, 0.0]

    def test_what_is_no_number_does_not_become_one(self):
        tau = np.full(3, np.nan)
        routed(tau, 1)
        assert np.isnan(tau).all()


class TestTopK:
    """The argument of the estimators."""

    def test_experts_that_do_not_learn_stay_as_they_are(self):
        rng = np.random.default_rng(0)
        X = rng.normal(size=(300, 2))
        model = MoERegressor(4, top_k=1, warmup=200, warmup_restarts=1, averaging=None)
        model.learn_array(X[:200], np.abs(X[:200, 0]))
        before = model.parameters()
        model.learn_array(X[200:201], np.abs(X[200:201, 0]))
        after = model.parameters()
        moved = [k for k in range(4) if (before["experts"][k] != after["experts"][k]).any()]
        assert moved == [int(np.argmax(after["masses"] / before["masses"]))]
        assert after["masses"].sum() == pytest.approx(1.0, rel=1e-9)

    @pytest.mark.parametrize("estimator", [MoERegressor, MoEClassifier])
    def test_as_many_as_there_are_is_no_restriction(self, estimator):
        rng = np.random.default_rng(1)
        X = rng.normal(size=(400, 2))
        y = X[:, 0] > 0.0 if estimator is MoEClassifier else np.abs(X[:, 0])
        digests = set()
        for top_k in (None, 3, 7):
            model = estimator(3, top_k=top_k, warmup=200, warmup_restarts=1)
            model.learn_array(X, y)
            digests.add(model.parameters()["experts"].tobytes())
        assert len(digests) == 1

    @pytest.mark.parametrize("top_k", [0, -1, 1.5, True, "2"])
    def test_it_is_a_number_of_experts(self, top_k):
        with pytest.raises(ConfigError, match=r"top_k: got .*; it must be a whole number ≥ 1"):
            MoERegressor(3, top_k=top_k)
