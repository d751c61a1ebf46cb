"""Identifiers: a model is the one whose events hold the means of their levels, worked out from all targets so far."""

from itertools import pairwise

import numpy as np
import pandas as pd
import pytest

from streammoe import MoEClassifier, MoEMultiTargetRegressor, MoERegressor, load, reduce
from streammoe.columns.kinds import GivenKinds
from streammoe.columns.layout import Additions, Columns, unplaced
from streammoe.errors import InvalidEvent
from streammoe.kernels import level_means as kernels
from streammoe.model.level_means import LevelMeans

N, LEVELS, ROOM = 260, 30, 8
LABELS = ["no", "yes", "maybe"]
KINDS = {"one": MoERegressor, "two": MoEMultiTargetRegressor, "classes": MoEClassifier}
QUICK = {"n_experts": 2, "warmup": 120, "max_levels": ROOM}


def values_of(target):
    """Targets, or whether it is each class but the first by name, that levels have means of."""
    if isinstance(target, dict):
        return {f"mean of {name}": value for name, value in target.items()}
    if isinstance(target, str):
        return {f"share of {label}": float(target == label) for label in sorted(LABELS)[1:]}
    return {"mean": target}


def by_hand(events, targets, fields, kept=()):
    """Write into each event how far the targets of its levels were from those of all before it, shrunk by five."""
    past, found = [], []
    for x, target in zip(events, targets, strict=True):
        written = {}
        for field in fields:
            mine = [values for earlier, values in past if earlier.get(field) == x.get(field) is not None]
            for name in values_of(target):
                apart = 0.0
                if mine:
                    overall = np.mean([values[name] for _, values in past])
                    apart = np.mean([values[name] for values in mine]) - overall
                written[f"{field}:{name}"] = len(mine) * apart / (len(mine) + 5.0)
        found.append({**written, **{name: x[name] for name in x if name not in fields or x[name] in kept}})
        past.append((x, values_of(target)))
    return found


def stream(of="one", n=N, seed=0):
    """Users and shops with an effect each; the shop is missing now and then, and a column comes late."""
    rng = np.random.default_rng(seed)
    user, shop, x = rng.integers(LEVELS, size=n), rng.integers(LEVELS, size=n), rng.normal(size=n)
    effects = np.random.default_rng(1).normal(size=(2, LEVELS))
    y = x + effects[0, user] - effects[1, shop] + 0.2 * rng.normal(size=n)
    events = [
        {"shop": f"s{s}", "user": f"u{u}", "x": value} for s, u, value in zip(shop, user, x.tolist(), strict=True)
    ]
    for t in range(5, n, 9):
        del events[t]["shop"]
    for t in range(150, n):
        events[t]["z"] = float(t % 4)
    if of == "classes":
        return events, [LABELS[int(value > -0.5) + int(value > 0.8)] for value in y]
    return events, [{"a": value, "b": -2.0 * value} for value in y.tolist()] if of == "two" else y.tolist()


def learn(model, events, targets, stops=(), how="one"):
    """Learn events one by one, or in frames that end at `stops`."""
    if how == "one":
        for x, y in zip(events, targets, strict=True):
            model.learn_one(x, y)
        return model
    for start, stop in pairwise([0, *stops, len(events)]):
        y = targets[start:stop]
        frame = pd.DataFrame(events[start:stop])
        model.learn_many(frame.astype({"shop": object}), pd.DataFrame(y) if isinstance(y[0], dict) else pd.Series(y))
    return model


@pytest.mark.parametrize("weighed", [False, True])
@pytest.mark.parametrize("of", KINDS)
def test_a_model_with_identifiers_is_the_model_whose_events_hold_the_means_of_their_levels(of, weighed):
    """So are the weights in the sample that it keeps; a frequent level keeps its column, and a class comes late."""
    events, targets = stream(of)
    if of == "classes":
        targets[:100] = ["no" if y == "no" else "yes" for y in targets[:100]]
    for t in range(0, N, 3):
        events[t]["user"] = "u0"
    settings = {**QUICK, "reservoir": 50}
    model, plain = KINDS[of](**settings), KINDS[of](**settings, categorical=("user",))
    written = by_hand(events, targets, ["shop", "user"], ["u0"])
    names = [name for name in written[0] if ":" in name]
    if of == "two":
        model.set_targets(["a", "b"])
        plain.set_targets(["a", "b"])
    plain.set_columns([*names, "user", "x"])
    plain.learner.add_levels({"user": ["u0"]})
    if of == "classes":
        for label in dict.fromkeys(targets):
            plain.learner.admit(label)
    weights = np.random.default_rng(2).choice([0.5, 1.0, 3.0], size=N).tolist() if weighed else [1.0] * N
    for t, (x, by_level, y, w) in enumerate(zip(events, written, targets, weights, strict=True)):
        if t > 110:
            mine = model.predict_proba_one(x) if of == "classes" else model.predict_one(x)
            theirs = plain.predict_proba_one(by_level) if of == "classes" else plain.predict_one(by_level)
            assert mine == pytest.approx(theirs, abs=1e-6)
        model.learn_one(x, y, w=w)
        plain.learn_one(by_level, y, w=w)
    assert {*model.feature_names} == {*names, "user=u0", "x", "z"}
    assert model.fields == ["shop", "user", "x", "z"]
    mine, theirs = (each.learner.reservoir_rows() for each in (model, plain))
    np.testing.assert_array_equal(mine.weights, theirs.weights)
    np.testing.assert_array_equal(mine.X[:, -2:], theirs.X[:, -2:])


@pytest.mark.parametrize("of", KINDS)
def test_one_by_one_in_frames_and_over_a_restart_the_same_is_learned(of, tmp_path):
    events, targets = stream(of)
    settings = {**QUICK, "lags": 2} if of == "two" else QUICK
    alone = KINDS[of](**settings)
    if of == "two":
        alone.set_targets(["a", "b"])
    learn(alone, events, targets)
    for stops in [(), (1, 20, 21, 22, 150)]:
        other = KINDS[of](**settings)
        assert learn(other, events, targets, stops, "frames").state_digest() == alone.state_digest()
    for stop in (12, 100, 200):
        other = KINDS[of](**settings)
        if of == "two":
            other.set_targets(["a", "b"])
        learn(other, events[:stop], targets[:stop]).save(tmp_path / f"{stop}")
        resumed = load(tmp_path / f"{stop}")
        assert learn(resumed, events[stop:], targets[stop:]).state_digest() == alone.state_digest()


def test_a_level_beyond_the_columns_comes_too_late_once_the_first_events_are_gone(caplog, monkeypatch):
    monkeypatch.setattr("streammoe.model.streaming.MOST_REPLAYED", 0)
    monkeypatch.setattr("streammoe.engine.recent.LEAST_CAPACITY", 50)
    monkeypatch.setattr("streammoe.engine.recent.MOST_ROWS", 50)
    events, targets = stream(n=800)
    few = [{**x, "user": f"u{t % ROOM}", "shop": f"s{t % ROOM}"} for t, x in enumerate(events[:700])]
    model = learn(MoERegressor(**{**QUICK, "warmup": 20}), [*few, *events[700:]], targets)
    assert len(model.feature_names) == 2 + 2 * ROOM
    assert "user: has 8 levels" in caplog.text
    assert "first events" in caplog.text


def test_what_is_rejected_makes_no_identifier():
    events, targets = stream()
    for x in events:
        x["user"] = f"u{int(x['user'][1:]) % ROOM}"
        x["shop"] = "s0"
    model = learn(MoERegressor(**QUICK), events, targets)
    before = model.state_digest()
    for x, y in [({**events[0], "user": "new", "x": 1e60}, 1.0), ({**events[0], "user": "new"}, float("nan"))]:
        with pytest.raises(InvalidEvent):
            model.learn_one(x, y)
    model.learn_one({**events[0], "user": "new"}, 1.0, w=0.0)
    assert model.predict_one({**events[0], "user": "new"}) == pytest.approx(0.0, abs=10.0)
    assert model.state_digest() == before
    model.learn_one({**events[0], "user": "new"}, 1.0)
    assert "user:mean" in model.feature_names


@pytest.mark.parametrize("is_metric", [True, False])
def test_levels_that_are_kept_are_exact_and_the_rest_give_way_to_those_seen_more(is_metric):
    """Many more levels than there are slots: the means of those that come often are those of all their targets."""
    n_often, n_rare = 500, 40_000
    rng = np.random.default_rng(0)
    often = [f"o{i}" for i in range(n_often)]
    texts = np.array([*often * 10, *(f"r{i}" for i in range(n_rare))], dtype=object)
    rng.shuffle(texts)
    texts = [*often * 3, *texts.tolist()]
    Y = rng.integers(3, size=(len(texts), 1)).astype(float)
    codes = np.array([unplaced(text) for text in texts])
    columns = Columns(GivenKinds(("user",), (), (), ()), (), 64, 1e50, {}, ())
    known = LevelMeans(["user"], ["y"] if is_metric else [0, 1], is_metric=is_metric)
    columns = columns.extended(Additions(("user",))).with_identifiers(["user"], known.names, {})
    known.taken(columns.with_lags(codes[:, None]), Y, columns)
    values = Y[:, 0] if is_metric else (Y[:, 0] == 1.0).astype(float)
    slots = {key: slot for slot, key in enumerate(known.keys[0].tolist())}
    kept = 0
    for text in often:
        mine = values[[i for i, each in enumerate(texts) if each == text]] if kept < 50 else []
        slot = slots.get(-2.0 - unplaced(text))
        if slot is not None and known.counts[0, slot] == 13.0 and kept < 50:
            assert known.means[0, slot, 0] == pytest.approx(np.mean(mine), abs=1e-12)
            kept += 1
    assert kept == 50
    assert (known.keys != kernels.EMPTY).all()


def test_models_that_know_different_levels_become_one_that_knows_all():
    """Each knows some users, and for the last one they are so few that they have columns."""
    events, targets = stream(n=3_000)
    users = [(0, 15), (10, 22), (22, 29)]
    parts = [[t for t in range(3_000) if least <= int(events[t]["user"][1:]) < most] for least, most in users]
    models = [
        learn(MoERegressor(**QUICK, reservoir=400), [events[t] for t in of], [targets[t] for t in of]) for of in parts
    ]
    assert "user:mean" in {*models[0].feature_names} & {*models[1].feature_names} - {*models[2].feature_names}
    one = reduce(models)
    fresh, wanted = stream(n=600, seed=5)
    for least, most in users:
        mine = [t for t in range(600) if least <= int(fresh[t]["user"][1:]) < most]
        errors = [[model.predict_one(fresh[t]) - wanted[t] for t in mine] for model in (one, *models)]
        rmse = np.sqrt(np.mean(np.square(errors), axis=1))
        assert rmse[0] < 1.3 * rmse[1:].min()
        assert rmse[0] < 0.8 * rmse[1:].max()


def test_classes_that_came_in_another_order_are_the_same_in_one_model():
    events, targets = stream("classes", n=1_500)
    turned = sorted(range(1_500), key=lambda t: -LABELS.index(targets[t]) if t < 30 else 0)
    orders = [range(1_500), turned]
    models = [
        learn(MoEClassifier(**QUICK, reservoir=400), [events[t] for t in of], [targets[t] for t in of]) for of in orders
    ]
    assert models[0].output_names != models[1].output_names
    one = reduce(models)
    fresh, wanted = stream("classes", n=500, seed=5)
    hits = [np.mean([each.predict_one(x) == y for x, y in zip(fresh, wanted, strict=True)]) for each in (one, *models)]
    assert hits[0] > min(hits[1:]) - 0.05


def test_means_have_names_of_their_own():
    """Not those of the users' columns, nor of other means, where names differ by their types alone."""
    model = MoEClassifier(2, max_levels=4)
    for t in range(60):
        model.learn_one({"5": f"a{t % 9}", 5: f"b{t % 11}", "5:share of b": float(t % 2)}, ["a", "b"][t % 2])
    assert model.feature_names == ["5:share of b'", "5:share of b''", "5:share of b"]


def test_an_event_with_a_new_class_is_predicted_by_the_means_of_its_levels():
    events, targets = stream("classes", n=400)
    model = learn(MoEClassifier(**QUICK, lags="off"), events[:-1], targets[:-1])
    x = events[-1]
    texts = {name: [x.get(name)] for name in ("shop", "user")}
    said = model.predict_proba_one(x)
    outcome = model.learn_rows(
        np.array([[np.nan, np.nan, x["x"], x["z"]]]), ["new"], np.ones(1), texts=texts, traced=False
    )
    assert said == dict(zip(said, outcome.predictions[0].tolist(), strict=False))
