"""The buffer, and the one-expert fit that predicts while it fills."""

import numpy as np
import pytest

from streammoe.engine.state import is_finite
from streammoe.engine.warming import WarmUp
from tests.unit.cases import Case, draw, same_bits

P = 3


def learn(warm_up, R, Y, weights=None):
    return warm_up.learn(R[:, 1:], R, Y, np.ones(len(R)) if weights is None else weights, traced=False)


def new(case, p=P):
    return WarmUp(case.family, case.n_outputs, p)


def restored(case, arrays):
    return WarmUp.from_arrays(case.family, arrays, n_outputs=case.n_outputs, n_fields=P - 1, p_v=P)


@pytest.mark.parametrize("name", ["gaussian", "gaussian_full"])
def test_predicts_by_recursive_least_squares(name):
    case = Case(name, 2)
    R, Y = draw(case, 250, P, 3)
    scores = learn(new(case), R, Y)
    # Running means from a prior of one pseudo-event, which the first event, of step 1, replaces.
    prefix = np.linalg.lstsq(R[:200], Y[:200], rcond=None)[0]
    np.testing.assert_allclose(scores.predictions[200], R[200] @ prefix, rtol=0.05, atol=0.02)
    assert np.isfinite(scores.losses).all()


@pytest.mark.parametrize("case", [Case("categorical", 3)], ids=str)
def test_predicts_classes_better_than_their_shares_do(case):
    R, Y = draw(case, 600, P, 1)
    losses = learn(new(case), R, Y).losses
    shares = np.bincount(Y[:, 0].astype(int), minlength=case.n_outputs) / 600
    assert losses[300:].mean() < -np.sum(shares * np.log(np.maximum(shares, 1e-9))) - 0.1


@pytest.mark.parametrize("case", [Case("gaussian_full", 3), Case("laplace", 1), Case("categorical", 3)], ids=str)
class TestBuffer:
    def test_keeps_rows_with_a_target_and_predicts_the_others(self, case):
        R, Y = draw(case, 30, P, 2)
        Y[5] = np.nan
        warm_up = new(case)
        scores = learn(warm_up, R, Y, np.arange(1.0, 31.0))
        X, kept, weights = warm_up.rows()
        assert len(X) == len(kept) == len(weights) == warm_up.count == 29
        assert weights.tolist() == [w for w in range(1, 31) if w != 6]
        assert kept.tobytes() == np.delete(Y, 5, axis=0).tobytes()
        assert X.tobytes() == np.delete(R[:, 1:], 5, axis=0).tobytes()
        assert np.isnan(scores.losses).tolist() == [i == 5 for i in range(30)]
        assert np.isfinite(scores.predictions).all()

    def test_where_the_rows_were_cut_leaves_no_trace(self, case):
        """Also where the buffer has to grow, after 64 rows."""
        R, Y = draw(case, 100, P, 2)
        weights = np.random.default_rng(0).uniform(0.1, 4.0, 100)
        whole, parts = new(case), new(case)
        losses = learn(whole, R, Y, weights).losses
        cuts = [(0, 1), (1, 64), (64, 65), (65, 100)]
        cut = [learn(parts, R[a:b], Y[a:b], weights[a:b]).losses for a, b in cuts]
        assert np.concatenate(cut).tobytes() == losses.tobytes()
        assert same_bits(whole.arrays().values(), parts.arrays().values())

    def test_arrays_and_back(self, case):
        R, Y = draw(case, 15, P, 2)
        warm_up = new(case)
        learn(warm_up, R[:10], Y[:10], np.arange(1.0, 11.0))
        arrays = {name: array.copy() for name, array in warm_up.arrays().items()}
        again = restored(case, arrays)
        assert learn(again, R[10:], Y[10:]).losses.tobytes() == learn(warm_up, R[10:], Y[10:]).losses.tobytes()
        assert same_bits(again.arrays().values(), warm_up.arrays().values())
        # Version 0.1 knew no weights.
        arrays = {name: array for name, array in arrays.items() if name != "warmup.weights"}
        assert restored(case, arrays).rows()[2].tolist() == [1.0] * 10

    def test_late_columns_are_missing_in_what_is_buffered(self, case):
        R, Y = draw(case, 40, 4, 2)
        warm_up = new(case)
        learn(warm_up, np.ascontiguousarray(R[:20, :3]), Y[:20])
        warm_up.widen(3, np.arange(3), 4)
        scores = learn(warm_up, R[20:], Y[20:])
        X, _, _ = warm_up.rows()
        assert np.isnan(X[:20, 2]).all()
        assert X[20:].tobytes() == R[20:, 1:].tobytes()
        assert np.isfinite(scores.losses).all()
        assert is_finite(warm_up.recursive)


def test_classes_join_one_by_one():
    case = Case("categorical", 1)
    R, Y = draw(Case("categorical", 4), 200, P, 1)
    warm_up = new(case)
    for i in range(200):
        label = int(Y[i, 0])
        while warm_up.n_outputs <= label:
            warm_up.add_class(np.random.default_rng(warm_up.n_outputs), P)
        scores = learn(warm_up, R[i : i + 1], Y[i : i + 1])
        assert scores.predictions.shape == (1, warm_up.n_outputs)
        assert scores.predictions.sum() == pytest.approx(1.0)
    assert warm_up.recursive.experts.shape == (1, 3, P)
    assert is_finite(warm_up.recursive)
