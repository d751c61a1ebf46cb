import numpy as np
import pandas as pd
import pytest

from streammoe import ConfigError, InvalidEvent, MoEClassifier, schedules

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


class TestLearning:
    @pytest.mark.parametrize("bound", ["adaptive", "paper"])
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


class TestLateLabels:
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

    @pytest.mark.parametrize("n", [0, 150])
    def test_another_one_is_rejected(self, n):
        model = trained(n, classes=tuple("abcd"))
        before = model.state_digest()
        X, y = letters(30, seed=5)
        with pytest.raises(InvalidEvent) as refused:
            model.learn_one({"a": 1.0, "new": 1.0}, "e")
        assert refused.value.reason == "unknown_class"
        y[17] = "e"
        with pytest.raises(InvalidEvent) as refused:
            model.learn_array(X, y, feature_names=NAMES)
        assert (refused.value.row, refused.value.reason) == (17, "unknown_class")
        assert model.state_digest() == before


class TestPredicting:
    def test_before_any_label_there_is_nothing_to_say(self):
        model = MoEClassifier()
        assert model.predict_one({"a": 1.0}) is None
        assert model.predict_proba_one({"a": 1.0}) == {}
        assert model.predict_array(np.ones((2, 1))).tolist() == [None, None]
        assert model.predict_proba_array(np.ones((2, 1))).shape == (2, 0)
        assert (model.n, model.class_labels, model.is_finite()) == (0, [], True)

    @pytest.mark.parametrize("warmup", [0, 5])
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


class TestFromParameters:
    @pytest.mark.parametrize(
        "arguments",
        [
            {"n_experts": 1, "standardize": True},
            {"n_experts": 3, "bound": "paper", "degree": 2, "prior_strength": 0.0},
            {"bound": "tight", "gate_degree": 2, "schedule": schedules.constant(0.03)},
        ],
        ids=str,
    )
    def test_continues_the_raw_iterate_within_1e_9(self, arguments):
        n = 137
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

    def test_classes_are_numbers_unless_named_and_must_fit(self):
        parameters = trained().parameters()
        assert MoEClassifier.from_parameters(parameters, feature_names=NAMES).class_labels == [0, 1, 2, 3]
        with pytest.raises(ConfigError):
            MoEClassifier.from_parameters(parameters, feature_names=NAMES, classes=["a", "b"])
        assert "variances" not in parameters
