"""Numbers, categories and times in one event: what holds for numbers alone holds for them too."""

import math
from datetime import UTC, datetime

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st

from streammoe import InvalidEvent, MoERegressor

KINDS = {"categorical": ("c", "d"), "timestamps": ("t",), "max_levels": 4}
QUICK = {"n_experts": 2, "warmup_restarts": 1, **KINDS}
NAMES = ["c", "d", "t", "x"]
NEW_YEAR = datetime(2026, 1, 1, tzinfo=UTC).timestamp()


def table(n, seed=0, levels=6):
    """Codes as numbers, so that an array can hold what events hold; some levels come late."""
    rng = np.random.default_rng(seed)
    c = rng.integers(0, 1 + np.minimum(np.arange(n) * levels // max(n - 5, 1), levels)).astype(float)
    d = np.where(rng.random(n) < 0.5, 0.5, 2.0)
    t = NEW_YEAR + 3600.0 * np.arange(n)
    x = rng.normal(size=n)
    y = x * np.where(c == 1, 3.0, 1.0) + c + np.sin(2 * math.pi * t / 86_400) + 0.1 * rng.normal(size=n)
    return np.column_stack([c, d, t, x]), y


def events(X):
    return [dict(zip(NAMES, row, strict=True)) for row in X.tolist()]


def looped(model, X, y):
    for x, target in zip(events(X), y.tolist(), strict=True):
        model.learn_one(x, target)
    return model


arguments = st.fixed_dictionaries(
    {
        "warmup": st.sampled_from([0, 7, 40, 500]),
        "degree": st.integers(1, 2),
        "gate_degree": st.integers(1, 2),
        "standardize": st.booleans(),
    }
).map(lambda drawn: drawn | {"standardize": drawn["standardize"] and drawn["warmup"] > 0})


poison = st.sampled_from([math.nan, math.inf, None, [], b"c", 1e300, 1j, "yesterday"])
anything = {
    "c": st.one_of(st.text(max_size=3), st.booleans(), st.integers(), poison),
    "d": st.one_of(st.sampled_from("ab"), poison),
    "t": st.one_of(st.datetimes(), st.dates(), st.floats(-1e9, 1e10), poison),
    "x": st.one_of(st.floats(-100, 100).map(lambda v: round(v, 6)), poison),
    "z": st.one_of(st.floats(-100, 100).map(lambda v: round(v, 6)), poison),
}
event = st.fixed_dictionaries({}, optional=anything).filter(bool)


@settings(max_examples=30, deadline=None)
@given(
    warmup=st.sampled_from([0, 5, 200]),
    stream=st.lists(st.tuples(event, st.sampled_from([0.0, 1.0, -2.0, 3.0, math.nan, 1e60])), min_size=5, max_size=30),
)
def test_an_event_is_learned_whole_or_leaves_no_trace(warmup, stream):
    model, clean = MoERegressor(**QUICK, warmup=warmup), MoERegressor(**QUICK, warmup=warmup)
    for x, y in stream:
        before, names = model.state_digest(), model.feature_names
        try:
            model.learn_one(x, y)
        except InvalidEvent:
            assert model.state_digest() == before
            assert model.feature_names == names
        else:
            clean.learn_one(x, y)
            assert math.isfinite(model.predict_one(x))
        assert model.is_finite()
    assert model.state_digest() == clean.state_digest()


def test_clone_and_repr_keep_the_kinds():
    model = looped(MoERegressor(**QUICK, warmup=5), *table(20))
    clone = model.clone()
    assert clone.n == 0
    assert looped(clone, *table(20)).state_digest() == model.state_digest()
    assert "categorical=('c', 'd')" in repr(model)
    assert MoERegressor(categorical=(), timestamps=()).clone().categorical is None


def test_levels_that_come_late_and_times_of_day_are_learned():
    warmup = 30
    rng = np.random.default_rng(0)
    # The raw iterate: an average over all of the past holds the zeros from before the level came.
    model = MoERegressor(1, warmup=warmup, averaging=None, categorical=("c",), timestamps=("t",))
    errors = []
    for i in range(3000):
        color = rng.choice(["red", "blue"]) if i < 1000 else rng.choice(["red", "blue", "green"])
        t = NEW_YEAR + 1000.0 * i
        y = {"red": 0.0, "blue": 2.0, "green": -3.0}[color] + 2.0 * math.sin(2 * math.pi * t / 86_400)
        errors.append(model.predict_one({"c": color, "t": t}) - y)
        model.learn_one({"c": color, "t": t}, y)
    assert np.sqrt(np.mean(np.square(errors[-300:]))) < 0.1
    assert model.feature_names[-1] == "c=green"
    assert model.fields == ["c", "t"]


def test_texts_and_times_of_every_form_are_the_same_model():
    forms = [
        [{"c": str(i % 3), "d": "true", "t": 3600 * i, "x": 1.0 * i} for i in range(40)],
        [{"c": i % 3, "d": True, "t": datetime.fromtimestamp(3600 * i, UTC), "x": i} for i in range(40)],
        [
            {"c": float(i % 3), "d": np.True_, "t": datetime.fromtimestamp(3600 * i, UTC).isoformat(), "x": i}
            for i in range(40)
        ],
    ]
    digests = set()
    for form in forms:
        model = MoERegressor(**QUICK, warmup=20)
        for i, x in enumerate(form):
            model.learn_one(x, float(i % 7))
        digests.add(model.state_digest())
    assert len(digests) == 1


def test_from_parameters_finds_fields_and_levels_by_their_names():
    X, y = table(120)
    model = looped(MoERegressor(**QUICK, warmup=50, standardize=True, degree=2), X, y)
    again = MoERegressor.from_parameters(
        model.parameters(), feature_names=model.feature_names, **KINDS, standardize=True, degree=2
    )
    assert again.feature_names == model.feature_names
    looped(model, *table(60, seed=1, levels=3))
    looped(again, *table(60, seed=1, levels=3))
    for name, found in again.parameters().items():
        if name in {"gate", "experts", "variances", "masses", "gate_gram"}:
            np.testing.assert_allclose(found, model.parameters()[name], rtol=1e-8, atol=1e-9)
