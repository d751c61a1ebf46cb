"""Lags: the last targets and inputs as features, as if they had been written into each event by hand."""

import numpy as np
import pandas as pd
import pytest

from streammoe import Lags, MoEClassifier, MoEMultiTargetRegressor, MoERegressor
from streammoe.engine.members import MOST_SERIES
from tests.pairs import pairwise_cases
from tests.unit.estimators.models import QUICK

N = 150
NOT_JUDGED = ("encoder.largest", "lags.")
"""Arrays that differ: lags are not judged by ranges of their own, and a memory has no place without them."""


def stream(n=N, outputs=1):
    """A second-order process that an input drives; the input is missing now and then."""
    rng = np.random.default_rng(0)
    X = rng.normal(size=(n, 2))
    Y = np.zeros((n, outputs))
    for t in range(n):
        last, before = (Y[t - i] if t >= i else 0.0 for i in (1, 2))
        Y[t] = 0.9 * last - 0.4 * before + X[t, 0] + 0.2 * rng.normal(size=outputs)
    events = [{"a": a, "b": b} for a, b in X.tolist()]
    for t in range(7, n, 10):
        del events[t]["b"]
    targets = Y[:, 0].tolist() if outputs == 1 else [dict(zip("uv", row, strict=True)) for row in Y.tolist()]
    return events, targets


def by_hand(events, targets, learned, size, inputs):
    """Write the lags into each event, one event and one lag at a time."""
    past, found = [], []
    for x, y, counts in zip(events, targets, learned, strict=True):
        lagged = {}
        values = y if isinstance(y, dict) else {"y": y}
        for i in range(1, size + 1):
            then = past[-i] if len(past) >= i else {}
            lagged |= {f"{name}:lag{i}": then.get(name) for name in (*values, *inputs)}
        found.append({**lagged, **x})
        if counts:
            past.append({**values, **{name: x.get(name) for name in inputs}})
    order = [f"{name}:lag{i}" for name in (*values, *inputs) for i in range(1, size + 1)]
    return found, order


def same_arrays(model, plain):
    mine, theirs = model.arrays(), plain.arrays()
    for name in mine.keys() | theirs.keys():
        if not name.startswith(NOT_JUDGED):
            np.testing.assert_array_equal(mine[name], theirs[name], err_msg=name)


CASES = pairwise_cases(
    outputs=[1, 2],
    lags=[1, 3, Lags(2, ("b",)), Lags(2, ("b", "late"))],
    degree=[1, 2],
    n_experts=[2, 1],
    weights=[True, False],
)


@pytest.mark.parametrize("case", CASES)
def test_a_model_with_lags_is_the_model_whose_events_hold_them(case):
    outputs, lags, degree, n_experts, weights = case.values()
    kind = MoERegressor if outputs == 1 else MoEMultiTargetRegressor
    events, targets = stream(outputs=outputs)
    for t in range(40, N):
        events[t]["late"] = float(t % 7)
    w = [float(t % 5) if weights else 1.0 for t in range(N)]
    arguments = {**QUICK, "n_experts": n_experts, "degree": degree}
    model = kind(**arguments, lags=lags)
    size, inputs = (lags, ()) if isinstance(lags, int) else (lags.size, lags.inputs)
    written, order = by_hand(events, targets, w, size, inputs)
    plain = kind(**arguments, lags="off")
    if outputs == 2:
        plain.set_targets(["u", "v"])
    plain.set_columns([*order, "a", "b"])
    for x, with_lags, y, weight in zip(events, written, targets, w, strict=True):
        if outputs == 1 or model.n:
            assert model.predict_one(x) == plain.predict_one(with_lags)
        model.learn_one(x, y, w=weight)
        plain.learn_one(with_lags, y, w=weight)
    assert model.feature_names == plain.feature_names
    assert model.fields == ["a", "b", "late"]
    same_arrays(model, plain)


@pytest.mark.parametrize("delay", [1, 4, 100])
def test_an_event_is_learned_late_with_the_lags_that_its_prediction_saw(delay):
    """So the lags are those of the last targets that were known, whatever was learned in between."""
    events, targets = stream()
    late, frames = (MoERegressor(**QUICK, lags=Lags(2, ("b",))) for _ in range(2))
    seen = []
    for t in range(N + delay):
        if t < N:
            seen.append({**events[t], **late.lags_of_next()})
            assert late.predict_one(seen[t]) == late.predict_one(events[t])
        if t >= delay:
            late.learn_one(seen[t - delay], targets[t - delay])
    for t, x in enumerate(seen):
        known = t - delay - 1
        assert [x["y:lag1"], x["y:lag2"]] == [targets[i] if i >= 0 else None for i in (known, known - 1)]
    frames.learn_many(pd.DataFrame(seen), pd.Series(targets))
    assert frames.state_digest() == late.state_digest()
    plain = MoERegressor(**QUICK, lags="off")
    plain.set_columns(late.feature_names)
    for x, y in zip(seen, targets, strict=True):
        plain.learn_one(x, y)
    same_arrays(late, plain)


def test_a_series_that_walks_away_takes_the_range_of_its_lags_along():
    """Other inputs follow by a ten-thousandth; with lags like that, predictions would stay behind the series."""
    series = np.cumsum(np.random.default_rng(0).normal(size=1500))
    model = MoERegressor(lags=1, **QUICK)
    predictions = model.learn_rows(np.empty((1500, 0)), series[:, None]).predictions[:, 0]
    late = slice(500, None)
    last = np.sqrt(np.mean(np.diff(series)[499:] ** 2))
    assert np.sqrt(np.mean((series - predictions)[late] ** 2)) < 1.15 * last


# --- the member that sees them by itself ----------------------------------------------------------------------------

WALK = np.cumsum(np.random.default_rng(3).normal(size=700)).tolist()
STATES = (np.arange(700) // 25 % 3).tolist()
"""Labels that stay for a while."""


def learned(model, targets):
    """Predict each event, then learn it; return the model and the predictions."""
    said = []
    for t, y in enumerate(targets):
        x = {"a": float(t % 7)}
        said.append(model.predict_one(x))
        model.learn_one(x, y)
    return model, said


def test_predictions_see_the_last_targets_where_events_are_learned_right_after_they_are_predicted():
    model, said = learned(MoERegressor(), WALK)
    errors = np.abs(np.subtract(said, WALK))[400:]
    assert errors.mean() < 1.2
    arrays = MoERegressor()
    losses = arrays.learn_array(np.array([[float(t % 7)] for t in range(700)]), WALK, feature_names=["a"])
    assert arrays.state_digest() == model.state_digest(), "predictions leave no trace"
    assert np.mean(losses[400:]) < 1.7
    _, named = learned(MoEClassifier(), STATES)
    assert np.mean(np.equal(named, STATES)[400:]) > 0.9


def test_predictions_do_not_see_them_where_targets_come_late_nor_of_rows():
    model, _ = learned(MoERegressor(), WALK)
    x = {"a": 3.0}
    with_last = model.predict_one(x)
    rows = model.predict_many(pd.DataFrame([x]))
    assert abs(with_last - WALK[-1]) < 1.0 < abs(rows.iloc[0] - with_last)
    late = MoERegressor()
    waiting = []
    for t, y in enumerate(WALK):
        x = {"a": float(t % 7)}
        late.predict_one(x)
        waiting.append((x, y))
        if len(waiting) > 3:
            late.learn_one(*waiting.pop(0))
    assert late.predict_one({"a": 3.0}) == late.predict_array(np.array([[3.0]]), feature_names=["a"])[0]
    without, _ = learned(MoERegressor(lags="off"), WALK[:-3])
    assert late.predict_one({"a": 3.0}) == pytest.approx(without.predict_one({"a": 3.0}), abs=0.05)


def test_a_wrong_target_spoils_no_prediction_that_sees_it_as_the_last_one():
    wrong = list(WALK)
    wrong[500] = 1e6
    _, clean = learned(MoERegressor(), WALK)
    _, said = learned(MoERegressor(), wrong)
    assert np.abs(np.subtract(said[501:], clean[501:])).max() < 2.0 * (max(WALK) - min(WALK))
    assert np.abs(np.subtract(said[510:], WALK[510:])).mean() < 1.3


def test_of_many_classes_the_first_have_their_last_ones():
    labels = (np.arange(2_000) // 20 % 20).tolist()
    model, said = learned(MoEClassifier(1), labels)
    (member,) = (one for one in model.learner.phase.portfolio.known if one.name == "series")
    assert member.n_series == 3 * MOST_SERIES
    assert np.mean(np.equal(said, labels)[1_000:]) > 0.7


@pytest.mark.parametrize("outputs", [1, 2])
@pytest.mark.parametrize("weight", [1.0, 2.0])
def test_what_is_predicted_right_before_it_is_learned_counts_the_last_targets(outputs, weight):
    """Whatever the event is like: with missing inputs, several outputs, or a weight."""
    events, targets = stream(outputs=outputs)
    kind = MoERegressor if outputs == 1 else MoEMultiTargetRegressor
    asked, scored = kind(**QUICK), kind(**QUICK)
    for model in (asked, scored):
        model.set_columns(["a", "b"])
    if outputs == 2:
        asked.set_targets(["u", "v"])
        scored.set_targets(["u", "v"])
    predictions = []
    for x, y in zip(events, targets, strict=True):
        predictions.append(asked.predict_one(x))
        asked.learn_one(x, y, w=weight)
    rows = np.array([[x["a"], x.get("b", np.nan)] for x in events])
    values = np.array([list(y.values()) if outputs == 2 else [y] for y in targets])
    expected = scored.learn_rows(rows, values, np.full(N, weight)).predictions
    found = np.array([list(p.values()) if outputs == 2 else [p] for p in predictions])
    np.testing.assert_array_equal(found[1:], expected[1:])
