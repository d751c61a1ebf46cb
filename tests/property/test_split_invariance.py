"""Where an array is cut, or whether events come as rows or as dicts, leaves no trace: not in one bit."""

import numpy as np
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from streammoe import MoERegressor, schedules

N = 130
MODELS = [
    {"n_experts": 2, "warmup": 40, "warmup_restarts": 1},
    {"n_experts": 3, "warmup": 50, "warmup_restarts": 1, "standardize": True, "degree": 2, "averaging": "decay"},
    {"n_experts": 2, "warmup": 0, "gate_degree": 2, "averaging": None, "schedule": schedules.power(0.5)},
    {"n_experts": 1, "warmup": 64, "schedule": schedules.constant(0.05)},
    {"n_experts": 2, "warmup": 40, "warmup_restarts": 1, "prior_strength": 0.0, "bound": "paper"},
]
# Twelve columns: their order by name, x0, x1, x10, x11, x2, …, is not the array's.
RNG = np.random.default_rng(7)
X = RNG.normal(size=(N, 12)) * np.array([1.0, 1e-3, 50.0] * 4)
Y = np.where(X[:, 0] > 0, X[:, 1] * 1e3, -X[:, 3]) + 0.1 * RNG.normal(size=N)
NAMES = [f"x{j}" for j in range(12)]


def one_by_one(arguments):
    model = MoERegressor(**arguments)
    losses = []
    for row, target in zip(X, Y.tolist(), strict=True):
        x = dict(zip(NAMES, row.tolist(), strict=True))
        if model.n:
            losses.append(-model.log_likelihood_array(row[None], np.array([target]))[0])
        model.learn_one(x, target)
    return model, losses


REFERENCE = {}


def reference(at):
    """The loop over `learn_one` (digest and losses before each event but the first), once for each model."""
    if at not in REFERENCE:
        model, losses = one_by_one(MODELS[at])
        REFERENCE[at] = model.state_digest(), np.array(losses), model.predict_array(X)
    return REFERENCE[at]


@pytest.mark.parametrize("at", range(len(MODELS)))
@settings(max_examples=25, deadline=None)
@given(cuts=st.lists(st.integers(1, N - 1), max_size=12, unique=True))
@example(cuts=[])
@example(cuts=[39, 40, 41])
@example(cuts=list(range(1, N)))
def test_an_array_cut_anywhere_equals_the_loop(at, cuts):
    digest, losses, predictions = reference(at)
    model = MoERegressor(**MODELS[at])
    parts = np.split(np.arange(N), sorted(cuts))
    found = np.concatenate([model.learn_array(X[part], Y[part]) for part in parts])
    assert model.state_digest() == digest
    assert found[1:].tobytes() == losses.tobytes()
    assert model.predict_array(X).tobytes() == predictions.tobytes()


@settings(max_examples=25, deadline=None)
@given(chosen=st.lists(st.booleans(), min_size=N, max_size=N))
def test_rows_and_dicts_may_alternate(chosen):
    digest, _, _ = reference(0)
    model = MoERegressor(**MODELS[0])
    for as_dict, row, target in zip(chosen, X, Y, strict=True):
        if as_dict:
            model.learn_one(dict(zip(NAMES, row.tolist(), strict=True)), target)
        else:
            model.learn_array(row[None], target[None])
    assert model.state_digest() == digest


@settings(max_examples=25, deadline=None)
@given(order=st.permutations(range(12)), seed=st.integers(0, 2**32 - 1))
def test_the_order_of_columns_and_of_keys_leaves_no_trace(order, seed):
    digest, _, _ = reference(0)
    model = MoERegressor(**MODELS[0])
    model.learn_array(X[:70][:, order], Y[:70], feature_names=[NAMES[j] for j in order])
    shuffled = np.random.default_rng(seed)
    for row, target in zip(X[70:], Y[70:], strict=True):
        keys = shuffled.permutation(12)
        model.learn_one({NAMES[j]: row[j] for j in keys}, target)
    assert model.state_digest() == digest


@settings(max_examples=25, deadline=None)
@given(late=st.integers(1, N - 1), cuts=st.lists(st.integers(1, N - 1), max_size=5, unique=True))
def test_columns_that_appear_late_leave_no_trace_of_cuts_either(late, cuts):
    loop, arrays = MoERegressor(**MODELS[0]), MoERegressor(**MODELS[0])
    for i in range(N):
        width = 2 if i < late else 4
        loop.learn_one(dict(zip(NAMES[:width], X[i].tolist(), strict=False)), Y[i])
    for part in np.split(np.arange(N), sorted({*cuts, late})):
        width = 2 if part[0] < late else 4
        arrays.learn_array(X[part, :width], Y[part], feature_names=NAMES[:width])
    assert arrays.state_digest() == loop.state_digest()
