"""Where an array is cut, or whether events come as rows or as dicts, leaves no trace: not in one bit."""

from functools import cache

import numpy as np
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from streammoe import MoEClassifier, MoEMultiTargetRegressor, MoERegressor, schedules

N = 130
QUICK = {"n_experts": 2, "warmup": 40, "warmup_restarts": 1}
MODELS = [
    (MoERegressor, QUICK),
    (
        MoERegressor,
        {
            "n_experts": 3,
            "warmup": 50,
            "warmup_restarts": 1,
            "standardize": True,
            "degree": 2,
            "averaging": "decay",
        },
    ),
    (
        MoERegressor,
        {"n_experts": 2, "warmup": 0, "gate_degree": 2, "averaging": None, "schedule": schedules.power(0.5)},
    ),
    (MoERegressor, {"n_experts": 1, "warmup": 64, "schedule": schedules.constant(0.05)}),
    (MoERegressor, {**QUICK, "prior_strength": 0.0, "bound": "paper"}),
    (MoERegressor, {**QUICK, "n_experts": 3, "top_k": 1, "batch_size": 8}),
    (MoERegressor, {**QUICK, "expert": "student_t", "standardize": True}),
    (MoERegressor, {"n_experts": 2, "warmup": 0, "expert": "laplace", "averaging": "decay"}),
    (MoEMultiTargetRegressor, {**QUICK, "expert": "student_t", "degrees_of_freedom": 3.0}),
    (MoEMultiTargetRegressor, QUICK),
    (MoEMultiTargetRegressor, {**QUICK, "covariance": "full", "batch_size": 11, "averaging": None}),
    (MoEMultiTargetRegressor, {**QUICK, "covariance": "full", "standardize": True, "bound": "adaptive"}),
    (MoEMultiTargetRegressor, {"n_experts": 2, "warmup": 0, "covariance": "full", "averaging": "decay"}),
    (MoEClassifier, QUICK),
    (MoEClassifier, {**QUICK, "batch_size": 8}),
    (MoEClassifier, {**QUICK, "standardize": True, "bound": "paper", "averaging": "decay"}),
    (MoEClassifier, {"n_experts": 2, "warmup": 0, "gate_degree": 2, "schedule": schedules.constant(0.05)}),
    (MoEClassifier, {"n_experts": 2, "warmup": 0, "classes": (3, 1, 0, 2), "bound": "tight"}),
]
# Twelve columns: their order by name, x0, x1, x10, x11, x2, …, is not the array's.
RNG = np.random.default_rng(7)
X = RNG.normal(size=(N, 12)) * np.array([1.0, 1e-3, 50.0] * 4)
Y = np.where(X[:, 0] > 0, X[:, 1] * 1e3, -X[:, 3]) + 0.1 * RNG.normal(size=N)
# Some labels appear before the end of any warm-up, one at its very end and one after it.
LABELS = np.select([np.arange(N) == 39, (np.arange(N) > 90) & (Y < -1.0)], [2, 3], np.where(Y > 0, 1, 0))
TARGETS = {
    MoERegressor: Y,
    MoEMultiTargetRegressor: np.column_stack([Y, Y + 0.3 * RNG.normal(size=N), X[:, 4]]),
    MoEClassifier: LABELS,
}
WEIGHTS = RNG.choice([0.0, 0.5, 1.0, 3.0], size=N)
NAMES = [f"x{j}" for j in range(12)]


def as_dicts(kind, i):
    x = dict(zip(NAMES, X[i].tolist(), strict=True))
    target = TARGETS[kind][i].tolist()
    if kind is MoEMultiTargetRegressor:
        return x, {f"y{q}": value for q, value in enumerate(target)}
    return x, target


def likelihoods(kind, model):
    return model.predict_proba_array(X) if kind is MoEClassifier else model.predict_array(X)


def one_by_one(kind, arguments, weights):
    """The loop; and the loss before each event but the first, of a label never met, or of weight 0."""
    model = kind(**arguments)
    losses = np.full(N, np.nan)
    for i in range(N):
        known = kind is not MoEClassifier or TARGETS[kind][i] in model.class_labels
        if model.n and known and weights[i]:
            losses[i] = -model.log_likelihood_array(X[i : i + 1], TARGETS[kind][i : i + 1])[0]
        model.learn_one(*as_dicts(kind, i), w=float(weights[i]))
    return model, losses


@cache
def reference(at, weighted=False):
    """The loop over `learn_one`, once for each model: digest, losses, predictions."""
    kind, arguments = MODELS[at]
    model, losses = one_by_one(kind, arguments, WEIGHTS if weighted else np.ones(N))
    return model.state_digest(), losses, likelihoods(kind, model)


@pytest.mark.sampled(one_in=4)
@pytest.mark.parametrize("at", range(len(MODELS)), ids=lambda at: f"{MODELS[at][0].__name__}-{at}")
@settings(max_examples=10, deadline=None)
@given(cuts=st.lists(st.integers(1, N - 1), max_size=12, unique=True), weighted=st.booleans())
@example(cuts=[], weighted=False)
@example(cuts=[39, 40, 41], weighted=True)
@example(cuts=list(range(1, N)), weighted=False)
def test_an_array_cut_anywhere_equals_the_loop(at, cuts, weighted):
    kind, arguments = MODELS[at]
    digest, losses, predictions = reference(at, weighted)
    model = kind(**arguments)
    parts = np.split(np.arange(N), sorted(cuts))
    weights = WEIGHTS if weighted else np.ones(N)
    found = np.concatenate([model.learn_array(X[part], TARGETS[kind][part], weights=weights[part]) for part in parts])
    assert model.state_digest() == digest
    compared = ~np.isnan(losses)
    assert compared.sum() > 0.6 * N
    assert found[compared].tobytes() == losses[compared].tobytes()
    assert likelihoods(kind, model).tobytes() == predictions.tobytes()


@pytest.mark.parametrize("at", [0, 5, 8])
@settings(max_examples=8, deadline=None)
@given(chosen=st.lists(st.booleans(), min_size=N, max_size=N))
def test_rows_and_dicts_may_alternate(at, chosen):
    digest, _, _ = reference(at)
    kind, arguments = MODELS[at]
    model = kind(**arguments)
    for i, as_dict in enumerate(chosen):
        if as_dict:
            model.learn_one(*as_dicts(kind, i))
        else:
            model.learn_array(X[i : i + 1], TARGETS[kind][i : i + 1])
    assert model.state_digest() == digest


@settings(max_examples=25, deadline=None)
@given(order=st.permutations(range(12)), seed=st.integers(0, 2**32 - 1))
def test_the_order_of_columns_and_of_keys_leaves_no_trace(order, seed):
    digest, _, _ = reference(0)
    model = MoERegressor(**QUICK)
    model.learn_array(X[:70][:, order], Y[:70], feature_names=[NAMES[j] for j in order])
    shuffled = np.random.default_rng(seed)
    for row, target in zip(X[70:], Y[70:], strict=True):
        keys = shuffled.permutation(12)
        model.learn_one({NAMES[j]: row[j] for j in keys}, target)
    assert model.state_digest() == digest


@settings(max_examples=25, deadline=None)
@given(late=st.integers(1, N - 1), cuts=st.lists(st.integers(1, N - 1), max_size=5, unique=True))
def test_columns_that_appear_late_leave_no_trace_of_cuts_either(late, cuts):
    loop, arrays = MoERegressor(**QUICK), MoERegressor(**QUICK)
    for i in range(N):
        width = 2 if i < late else 4
        loop.learn_one(dict(zip(NAMES[:width], X[i].tolist(), strict=False)), Y[i])
    for part in np.split(np.arange(N), sorted({*cuts, late})):
        width = 2 if part[0] < late else 4
        arrays.learn_array(X[part, :width], Y[part], feature_names=NAMES[:width])
    assert arrays.state_digest() == loop.state_digest()
