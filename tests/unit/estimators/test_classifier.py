import copy
import math
import pickle

import numpy as np
import pandas as pd
import pytest

from streammoe import ConfigError, InvalidEvent, MoEClassifier, load, schedules

WARM = 60
QUICK = {"n_experts": 2, "warmup": WARM, "warmup_restarts": 1}
NAMES = ["a", "b", "c"]
KINDS = {
    "words": ["no", "yes", "maybe"],
    "integers": [7, -1, 3],
    "booleans": [False, True],
    "of several kinds": ["one", 2, 3.5],
}


def stream(n, M=3, seed=0):
    """Inputs, and indexes of classes drawn from two experts with opposite weights under a steep gate."""
    rng = np.random.default_rng(seed)
    X = rng.uniform(-1.0, 1.0, (n, 3))
    slopes = 5.0 * np.random.default_rng(M).normal(size=(3, M))
    sign = np.where(rng.random(n) < 1.0 / (1.0 + np.exp(-8.0 * X[:, 0])), 1.0, -1.0)
    return X, (sign[:, None] * (X @ slopes) + rng.gumbel(size=(n, M))).argmax(axis=1)


def named(labels, indexes):
    return [labels[at] for at in indexes]


def events(X):
    return [dict(zip(NAMES, row.tolist(), strict=True)) for row in X]


def letters(n, seed=0):
    """Labels of which further ones appear in the middle: a and b first, c from a third on, d in the last quarter."""
    X, indexes = stream(n, 4, seed)
    at = np.arange(n)
    indexes = np.where((indexes == 3) & (at < 3 * n // 4), 0, indexes)
    return X, np.array(list("abcd"))[np.where((indexes == 2) & (at < n // 3), 1, indexes)]


def trained(n=150, **arguments):
    model = MoEClassifier(**{**QUICK, **arguments})
    if n:
        model.learn_array(*letters(n), feature_names=NAMES)
    return model


def same(one, other):
    return one.state_digest() == other.state_digest()


def log_loss(model, X, labels):
    return -model.log_likelihood_array(X, labels, feature_names=NAMES).mean()


class TestLearning:
    @pytest.mark.parametrize("bound", ["adaptive", "tight", "paper"])
    def test_two_opposite_experts_are_told_apart(self, bound):
        X, y = stream(5000)
        model = MoEClassifier(2, warmup=500, bound=bound, warmup_restarts=2)
        losses = model.learn_array(X, y, feature_names=NAMES)
        one = MoEClassifier(1, warmup=500, bound=bound).learn_array(X, y, feature_names=NAMES)
        assert losses[-1500:].mean() < one[-1500:].mean() - 0.25
        accuracy = np.mean(model.predict_array(X[-1500:]) == y[-1500:])
        assert accuracy > 0.75

    @pytest.mark.parametrize("kind", KINDS)
    def test_labels_come_back_as_they_were_given(self, kind):
        labels = KINDS[kind]
        X, y = stream(300, len(labels))
        given = named(labels, y)
        model = MoEClassifier(**QUICK)
        for x, label in zip(events(X), given, strict=True):
            model.learn_one(x, label)
        assert set(model.class_labels) == set(labels)
        predictions = [model.predict_one(x) for x in events(X)]
        assert {type(label) for label in predictions} <= {type(label) for label in labels}
        assert np.mean([a == b for a, b in zip(predictions, given, strict=True)]) > 0.6
        arrays = MoEClassifier(**QUICK)
        arrays.learn_array(X, given, feature_names=NAMES)
        assert same(arrays, model)
        assert arrays.predict_array(X).tolist() == predictions

    def test_numpys_labels_are_pythons(self):
        X, y = stream(200, 2)
        plain, numpys = MoEClassifier(**QUICK), MoEClassifier(**QUICK)
        for x, label in zip(events(X), y, strict=True):
            plain.learn_one(x, bool(label))
            numpys.learn_one(x, np.bool_(label))
        assert same(plain, numpys)
        assert {type(label) for label in numpys.class_labels} == {bool}
        assert type(numpys.predict_one({})) is bool
        assert numpys.predict_array(X).dtype == bool

    def test_losses_are_those_of_the_served_model_before_each_event(self):
        X, y = letters(200)
        model, losses, novel = MoEClassifier(**QUICK), [], []
        for i in range(200):
            novel.append(y[i] not in model.class_labels)
            losses.append(-model.log_likelihood_array(X[i : i + 1], y[i : i + 1], feature_names=NAMES)[0])
            model.learn_array(X[i : i + 1], y[i : i + 1], feature_names=NAMES)
        found = MoEClassifier(**QUICK).learn_array(X, y, feature_names=NAMES)
        known = ~np.array(novel)
        assert found[known].tolist() == np.array(losses)[known].tolist()
        # A label nobody has heard of has no probability; learned, it is rare but possible.
        assert np.isinf(np.array(losses)[~known]).all()
        assert np.isfinite(found).all()
        assert known.sum() == 196


class TestLateLabels:
    @pytest.mark.parametrize("warmup", [0, 30, WARM, 1000])
    @pytest.mark.parametrize("bound", ["adaptive", "paper"])
    def test_an_array_with_new_labels_in_the_middle_equals_the_loop(self, warmup, bound):
        X, y = letters(200)
        loop = MoEClassifier(2, warmup=warmup, warmup_restarts=1, bound=bound)
        for x, label in zip(events(X), y.tolist(), strict=True):
            loop.learn_one(x, label)
        assert loop.class_labels == list(dict.fromkeys(y.tolist()))
        for cuts in ([], [1, 2, 66, 67, 199], range(1, 200)):
            arrays = loop.clone()
            for part in np.split(np.arange(200), cuts):
                arrays.learn_array(X[part], y[part], feature_names=NAMES)
            assert same(arrays, loop)
            assert arrays.predict_proba_array(X).tobytes() == loop.predict_proba_array(X).tobytes()

    @pytest.mark.parametrize("n", [20, 150])
    def test_a_new_label_begins_rare_and_the_others_stay_as_they_were(self, n):
        model = trained(n, averaging=None)
        X, _ = letters(100, seed=3)
        before, M = model.predict_proba_array(X), len(model.class_labels)
        model.learn_one({"a": 0.0, "b": 0.0, "c": 0.0}, "new")
        after = model.predict_proba_array(X)
        assert after.shape == (100, M + 1)
        assert after[:, -1].max() < 0.3
        assert np.abs(after[:, :M] - before).max() < 0.3
        assert model.class_labels[-1] == "new"

    def test_it_is_learned_in_time(self):
        X, y = stream(3000)
        losses = [
            MoEClassifier(2, warmup=300, warmup_restarts=2, averaging="decay").learn_array(X, labels)[2000:].mean()
            for labels in (y, np.where((y == 2) & (np.arange(3000) < 1000), 0, y))
        ]
        assert losses[1] < losses[0] + 0.05

    @pytest.mark.parametrize("n", [0, 20, 150])
    def test_max_classes_is_the_end_of_it(self, n):
        model = trained(n, max_classes=4)
        while len(model.class_labels) < 4:
            model.learn_one({"a": 0.5}, f"more {len(model.class_labels)}")
        before = model.state_digest()
        with pytest.raises(InvalidEvent, match="max_classes") as refused:
            model.learn_one({"a": 0.5, "new": 1.0}, "one too many")
        assert (refused.value.reason, refused.value.feature) == ("unknown_class", "target")
        assert model.state_digest() == before

    @pytest.mark.parametrize("n", [0, 20, 150])
    def test_an_array_with_too_many_labels_is_refused_whole(self, n):
        model = trained(n, max_classes=6)
        before = model.state_digest()
        X, _ = letters(20)
        labels = [f"label {i // 2}" for i in range(20)]
        with pytest.raises(InvalidEvent, match="max_classes") as refused:
            model.learn_array(X, labels, feature_names=NAMES)
        assert refused.value.row == 2 * (6 - len(model.class_labels))
        assert model.state_digest() == before


class TestFixedClasses:
    def test_all_of_them_are_there_from_the_beginning(self):
        model = MoEClassifier(**QUICK, classes=("a", "b", "c"))
        assert model.predict_proba_one({"x": 1.0}) == {"a": 1 / 3, "b": 1 / 3, "c": 1 / 3}
        assert model.predict_proba_array(np.ones((2, 1))).tolist() == [[1 / 3] * 3] * 2
        model.learn_one({"x": 1.0}, "b")
        assert list(model.predict_proba_one({"x": 1.0})) == ["a", "b", "c"]

    def test_a_list_of_them_is_as_good_as_a_tuple(self):
        model = MoEClassifier(**QUICK, classes=["b", "a"])
        assert model.class_labels == ["b", "a"]
        clone = model.clone()
        assert (clone.classes, clone.class_labels) == (("b", "a"), ["b", "a"])
        assert model.clone({"classes": [3, 1, 2]}).class_labels == [3, 1, 2]
        assert model.state_digest() == MoEClassifier(**QUICK, classes=("b", "a")).state_digest()

    @pytest.mark.parametrize("n", [0, 20, 150])
    def test_another_one_is_refused(self, n):
        model = trained(n, classes=tuple("abcd"))
        before = model.state_digest()
        X, y = letters(30, seed=5)
        with pytest.raises(InvalidEvent, match="'e'") as refused:
            model.learn_one({"a": 1.0, "new": 1.0}, "e")
        assert refused.value.reason == "unknown_class"
        y[17] = "e"
        with pytest.raises(InvalidEvent, match="row 17") as refused:
            model.learn_array(X, y, feature_names=NAMES)
        assert (refused.value.row, refused.value.reason) == (17, "unknown_class")
        assert model.state_digest() == before

    def test_order_of_appearance_does_not_matter_then(self):
        X, y = letters(150)
        model = MoEClassifier(**QUICK, classes=tuple("dcba"))
        model.learn_array(X, y, feature_names=NAMES)
        assert model.class_labels == list("dcba")
        assert model.parameters()["experts"].shape == (2, 3, 4)


BAD_LABELS = [
    (None, "wrong_type"),
    (math.nan, "not_finite"),
    (math.inf, "not_finite"),
    (np.float64("nan"), "not_finite"),
    ([1], "wrong_type"),
    ({"a": 1}, "wrong_type"),
    (1j, "wrong_type"),
    (b"a", "wrong_type"),
]


@pytest.mark.parametrize("n", [0, 20, 150], ids=["fresh", "warming up", "streaming"])
class TestPoison:
    @pytest.mark.parametrize(("label", "reason"), BAD_LABELS, ids=lambda v: str(v)[:12])
    def test_what_is_no_label_changes_nothing(self, n, label, reason):
        model = trained(n)
        before = model.state_digest()
        with pytest.raises(InvalidEvent, match="target") as refused:
            model.learn_one({"a": 1.0, "new": 1.0}, label)
        assert (refused.value.reason, refused.value.feature) == (reason, "target")
        X, y = letters(30)
        labels = y.tolist()
        labels[21] = label
        with pytest.raises(InvalidEvent, match="row 21") as refused:
            model.learn_array(X, labels, feature_names=NAMES)
        assert (refused.value.row, refused.value.reason) == (21, reason)
        assert model.state_digest() == before

    @pytest.mark.parametrize("value", [math.nan, math.inf, "1.0", None, 1e300, 1e12])
    def test_a_bad_feature_does_not_let_its_label_in(self, n, value):
        model = trained(n)
        before = model.state_digest()
        with pytest.raises(InvalidEvent) as refused:
            model.learn_one({"a": value, "b": 1.0}, "a new label")
        assert refused.value.feature == "a"
        assert model.state_digest() == before
        assert "a new label" not in model.class_labels

    @pytest.mark.parametrize("value", [math.nan, 1e300, 1e12])
    def test_one_bad_row_and_nothing_is_learned(self, n, value):
        model = trained(n)
        before = model.state_digest()
        X, y = letters(30, seed=2)
        X[20, 1] = value
        with pytest.raises(InvalidEvent, match="row 20") as refused:
            model.learn_array(X, np.where(np.arange(30) == 10, "novel", y), feature_names=NAMES)
        assert (refused.value.row, refused.value.feature) == (20, "b")
        assert model.state_digest() == before

    @pytest.mark.parametrize("y", [np.ones((3, 2)), ["a"], np.empty(0), np.array("a"), [["a"], ["b"], ["c"]]])
    def test_as_many_labels_as_rows(self, n, y):
        model = trained(n)
        before = model.state_digest()
        with pytest.raises(InvalidEvent):
            model.learn_array(np.zeros((3, 3)), y, feature_names=NAMES)
        assert model.state_digest() == before


class TestPredicting:
    def test_before_any_label_there_is_nothing_to_say(self):
        model = MoEClassifier()
        assert model.predict_one({"a": 1.0}) is None
        assert model.predict_proba_one({"a": 1.0}) == {}
        assert model.predict_array(np.ones((2, 1))).tolist() == [None, None]
        assert model.predict_proba_array(np.ones((2, 1))).shape == (2, 0)
        assert (model.n, model.class_labels, model.is_finite()) == (0, [], True)

    @pytest.mark.parametrize("warmup", [0, 5, WARM])
    def test_one_label_is_certain(self, warmup):
        model = MoEClassifier(2, warmup=warmup, warmup_restarts=1)
        for x in events(stream(10)[0]):
            model.learn_one(x, "only")
        assert model.predict_proba_one({"a": 1.0}) == {"only": 1.0}
        assert model.predict_one({}) == "only"

    @pytest.mark.parametrize("n", [1, 20, 150])
    def test_probabilities_sum_to_1_and_all_ways_agree(self, n):
        model = trained(n)
        X, _ = letters(30, seed=9)
        rows = model.predict_proba_array(X)
        np.testing.assert_allclose(rows.sum(axis=1), 1.0, rtol=1e-12)
        assert (rows >= 0.0).all()
        loop = [model.predict_proba_one(x) for x in events(X)]
        assert [list(each.values()) for each in loop] == rows.tolist()
        assert all(list(each) == model.class_labels for each in loop)
        assert [model.predict_one(x) for x in events(X)] == model.predict_array(X).tolist()
        frame = pd.DataFrame(X, columns=NAMES, index=np.arange(100, 130))
        many = model.predict_proba_many(frame)
        assert many.to_numpy().tobytes() == rows.tobytes()
        assert (many.index.tolist(), many.columns.tolist()) == (frame.index.tolist(), model.class_labels)
        assert model.predict_many(frame).tolist() == model.predict_array(X).tolist()

    @pytest.mark.parametrize("n", [0, 20, 150])
    def test_leaves_no_trace(self, n):
        model = trained(n)
        before = model.state_digest()
        X, y = letters(5, seed=3)
        model.predict_one({"a": 1.0, "new": 3.0})
        model.predict_proba_array(X)
        model.log_likelihood_array(X, ["never seen"] * 5)
        model.gate_one({"a": 1.0})
        if n:
            model.responsibilities_one({"a": 1.0}, y[0])
        assert model.state_digest() == before

    def test_is_the_gates_mixture_of_the_served_experts(self):
        model = trained()
        X, y = letters(20, seed=5)
        theta = model.parameters(averaged=True)
        R = np.column_stack([np.ones(20), X])

        def softmax(logits):
            return np.exp(logits) / np.exp(logits).sum(axis=-1, keepdims=True)

        shares = softmax(np.column_stack([R @ theta["gate"].T, np.zeros(20)]))
        zeros = np.zeros((20, 2, 1))
        classes = softmax(np.concatenate([zeros, np.einsum("kmj,nj->nkm", theta["experts"], R)], axis=2))
        expected = np.einsum("nk,nkm->nm", shares, classes)
        np.testing.assert_allclose(model.predict_proba_array(X), expected, rtol=1e-10)
        at = [model.class_labels.index(label) for label in y.tolist()]
        likelihoods = expected[np.arange(20), at]
        np.testing.assert_allclose(model.log_likelihood_array(X, y), np.log(likelihoods), rtol=1e-9)
        tau = shares[0] * classes[0, :, at[0]] / likelihoods[0]
        np.testing.assert_allclose(model.responsibilities_one(events(X)[0], y[0]), tau, rtol=1e-9)
        np.testing.assert_allclose(model.gate_one(events(X)[0]), shares[0], rtol=1e-10)

    def test_responsibilities_of_an_unknown_label(self):
        with pytest.raises(InvalidEvent, match="not known"):
            trained().responsibilities_one({"a": 1.0}, "never seen")
        assert np.isnan(trained(10).responsibilities_one({"a": 1.0}, "a")).all()


class TestWeights:
    @pytest.mark.parametrize("n", [0, 20, 150])
    def test_0_is_no_event_and_lets_no_label_in(self, n):
        model = trained(n)
        before = model.state_digest()
        model.learn_one({"a": 1.0, "new": 1.0}, "novel", w=0.0)
        losses = model.learn_array(*letters(10), weights=np.zeros(10), feature_names=NAMES)
        assert np.isnan(losses).all()
        assert model.state_digest() == before

    @pytest.mark.parametrize("warmup", [0, WARM])
    def test_one_by_one_equals_the_array(self, warmup):
        X, y = letters(150)
        weights = np.random.default_rng(0).choice([0.0, 0.5, 2.0, 10.0], size=150)
        loop, arrays = (MoEClassifier(2, warmup=warmup, warmup_restarts=1) for _ in range(2))
        for x, label, w in zip(events(X), y.tolist(), weights.tolist(), strict=True):
            loop.learn_one(x, label, w=w)
        losses = arrays.learn_array(X, y, weights=weights, feature_names=NAMES)
        assert same(loop, arrays)
        assert loop.n == np.count_nonzero(weights)
        assert np.isnan(losses).tolist() == (weights == 0.0).tolist()
        frames = loop.clone()
        frames.learn_many(pd.DataFrame(X, columns=NAMES), pd.Series(y), w=weights)
        assert same(frames, loop)

    @pytest.mark.parametrize("w", [-1.0, math.nan, math.inf, 1e7, "1", None])
    def test_bad_ones_are_refused(self, w):
        model = trained()
        before = model.state_digest()
        with pytest.raises(InvalidEvent, match="w: got"):
            model.learn_one({"a": 1.0}, "a", w=w)
        assert model.state_digest() == before


COPIES = {
    "pickle": lambda model, path: pickle.loads(pickle.dumps(model)),
    "deepcopy": lambda model, path: copy.deepcopy(model),
    "save and load": lambda model, path: (model.save(path), load(path))[1],
    "river clone with state": lambda model, path: model.clone(include_attributes=True),
}


class TestKeeping:
    @pytest.mark.parametrize("how", COPIES)
    @pytest.mark.parametrize("n", [0, 1, WARM - 2, WARM, 173])
    @pytest.mark.parametrize(
        "arguments",
        [{}, {"standardize": True, "degree": 2, "classes": tuple("dabc"), "schedule": schedules.power(0.7)}],
        ids=["labels as they come", "fixed classes"],
    )
    @pytest.mark.sampled(one_in=4)
    def test_a_copy_goes_on_bit_for_bit_and_by_itself(self, tmp_path, how, n, arguments):
        model = trained(n, **arguments)
        twin = COPIES[how](model, tmp_path / "model")
        assert same(model, twin)
        assert (twin.n, twin.class_labels) == (n, model.class_labels)
        X, y = letters(200, seed=8)
        before = model.state_digest()
        losses = twin.learn_array(X, y, feature_names=NAMES)
        assert model.state_digest() == before
        assert model.learn_array(X, y, feature_names=NAMES).tobytes() == losses.tobytes()
        assert same(model, twin)
        assert model.predict_proba_array(X).tobytes() == twin.predict_proba_array(X).tobytes()
        assert model.convergence_residual == twin.convergence_residual

    @pytest.mark.parametrize("kind", KINDS)
    def test_labels_keep_their_type(self, tmp_path, kind):
        labels = KINDS[kind]
        X, y = stream(30, len(labels))
        model = MoEClassifier(**QUICK)
        model.learn_array(X, named(labels, y), feature_names=NAMES)
        again = COPIES["save and load"](model, tmp_path / "m")
        assert list(map(type, again.class_labels)) == list(map(type, model.class_labels))
        assert again.class_labels == model.class_labels

    @pytest.mark.parametrize("n", [0, 20, 150])
    def test_clone_begins_anew(self, n):
        fresh = trained(n).clone()
        assert (fresh.n, fresh.class_labels) == (0, [])
        assert same(fresh, MoEClassifier(**QUICK))


class TestFromParameters:
    @pytest.mark.parametrize(
        "arguments",
        [
            {},
            {"n_experts": 1},
            {"n_experts": 3, "bound": "paper", "degree": 2},
            {"bound": "tight", "gate_degree": 2},
            {"prior_strength": 0.0},
            {"standardize": True},
            {"schedule": schedules.constant(0.03)},
        ],
        ids=str,
    )
    @pytest.mark.parametrize("n", [WARM, 137])
    def test_continues_the_raw_iterate_within_1e_9(self, n, arguments):
        X, y = stream(n + 300)
        model = MoEClassifier(**{**QUICK, **arguments})
        model.learn_array(X[:n], y[:n], feature_names=NAMES)
        given = {**QUICK, **arguments}
        twin = MoEClassifier.from_parameters(
            model.parameters(), feature_names=NAMES, classes=model.class_labels, **given
        )
        for each in (model, twin):
            each.learn_array(X[n:], y[n:], feature_names=NAMES)
        ours, theirs = model.parameters(), twin.parameters()
        assert theirs["n"] == ours["n"] == n + 300
        for name in ("gate", "experts", "masses", "gate_gram", "expert_grams"):
            if ours[name].size:
                difference = np.abs(ours[name] - theirs[name]).max() / np.abs(ours[name]).max()
                assert difference <= 1e-9, name

    def test_a_given_average_serves(self):
        model = trained()
        twin = MoEClassifier.from_parameters(
            model.parameters(),
            feature_names=NAMES,
            classes=model.class_labels,
            average=model.parameters(averaged=True),
            n_average=91,
            **QUICK,
        )
        X, _ = letters(20, seed=6)
        np.testing.assert_allclose(twin.predict_proba_array(X), model.predict_proba_array(X), rtol=1e-12)

    def test_classes_are_numbers_unless_named_and_must_fit(self):
        parameters = trained().parameters()
        assert MoEClassifier.from_parameters(parameters, feature_names=NAMES).class_labels == [0, 1, 2, 3]
        with pytest.raises(ConfigError, match="classes"):
            MoEClassifier.from_parameters(parameters, feature_names=NAMES, classes=["a", "b"])
        assert "variances" not in parameters


class TestRowsForTheDaemon:
    """`learn_rows` refuses single rows and goes on; None is an event without label."""

    @pytest.mark.parametrize("warmup", [0, 10, WARM])
    def test_good_rows_are_learned_as_if_the_others_were_not_there(self, warmup):
        X, y = letters(150)
        clean, mixed = (MoEClassifier(2, warmup=warmup, warmup_restarts=1, max_classes=4) for _ in range(2))
        mixed.set_columns(NAMES)
        clean.learn_array(X, y, feature_names=NAMES)
        spoilt = {3: math.nan, 40: [1], 90: None, 145: "a fifth"}
        rows, labels, weights = X.copy(), y.tolist(), np.ones(150)
        for at, label in sorted(spoilt.items(), reverse=True):
            rows, weights = np.insert(rows, at, 0.5, axis=0), np.insert(weights, at, 1.0)
            labels.insert(at, label)
        rows, weights = np.vstack([rows, [1e60, 0.0, 0.0], [0.0, 0.0, 0.0]]), np.append(weights, [1.0, 0.0])
        labels += ["a", "novel without weight"]
        outcome = mixed.learn_rows(rows, labels, weights)
        assert same(mixed, clean)
        assert {row: error.reason for row, error in outcome.refused.items() if row < 155} == {
            3: "not_finite",
            41: "wrong_type",
            148: "unknown_class",
            154: "out_of_range",
        }
        assert np.flatnonzero(~outcome.learned).tolist() == [3, 41, 92, 148, 154, 155]
        assert np.isnan(outcome.losses).tolist() == (~outcome.learned).tolist()
        assert outcome.predictions.shape == (156, 4)
        np.testing.assert_allclose(outcome.predictions[92].sum(), 1.0)
        assert np.isnan(outcome.predictions[[3, 41, 148, 154]]).all()

    @pytest.mark.parametrize("n", [0, 20, 150])
    def test_a_refused_row_does_not_let_its_label_in(self, n):
        model = trained(n)
        if not n:
            model.set_columns(NAMES)
        before = model.state_digest()
        outcome = model.learn_rows(np.array([[1e60, 0.0, 0.0]]), ["novel"])
        assert outcome.refused[0].feature == "a"
        assert model.state_digest() == before

    def test_equals_learn_array_where_all_is_well_and_however_cut(self):
        X, y = letters(150)
        arrays = MoEClassifier(**QUICK)
        losses = arrays.learn_array(X, y, feature_names=NAMES)
        for cuts in ([], [1, 50, 51, 60]):
            model = MoEClassifier(**QUICK)
            model.set_columns(NAMES)
            parts = np.split(np.arange(150), cuts)
            found = [model.learn_rows(X[part], y[part].tolist(), traced=True) for part in parts]
            assert np.concatenate([outcome.losses for outcome in found]).tobytes() == losses.tobytes()
            assert same(model, arrays)

    def test_before_any_label_there_is_nothing_to_predict(self):
        model = MoEClassifier(**QUICK)
        model.set_columns(NAMES)
        outcome = model.learn_rows(np.zeros((2, 3)), [None, None])
        assert not outcome.learned.any()
        assert outcome.predictions.shape == (2, 0)
        assert model.n == 0


class TestArguments:
    @pytest.mark.parametrize(
        ("name", "value"),
        [
            ("classes", ("a",)),
            ("classes", ("a", "a")),
            ("classes", "ab"),
            ("classes", (None, "a")),
            ("classes", (True, 1)),
            ("max_classes", 0),
            ("max_classes", 2.5),
            ("bound", "loose"),
            ("n_experts", 0),
        ],
    )
    def test_a_value_that_cannot_be_is_named(self, name, value):
        with pytest.raises(ConfigError, match=name) as refused:
            MoEClassifier(**{name: value})
        assert str(value) in str(refused.value)
