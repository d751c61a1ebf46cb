"""What a classifier learns of labels: which there are, which come late, and which there may be."""

import numpy as np
import pytest

from streammoe import InvalidEvent, MoEClassifier
from tests.unit.estimators.models import NAMES, QUICK, classes, dicts, same


def test_two_opposite_experts_are_told_apart():
    X, y = classes(3000)
    model = MoEClassifier(2, warmup=300, warmup_restarts=2)
    losses = model.learn_array(X, y)
    one = MoEClassifier(1, warmup=300, warmup_restarts=1).learn_array(X, y)
    assert losses[-1000:].mean() < one[-1000:].mean() - 0.25
    assert np.mean(model.predict_array(X[-1000:]) == y[-1000:]) > 0.75


@pytest.mark.parametrize(
    "labels", [["no", "yes", "maybe"], [7, -1, 3], [False, True], ["one", 2, 3.5]], ids=lambda labels: str(labels[0])
)
def test_labels_come_back_as_they_were_given(labels):
    X, y = classes(100, labels=range(len(labels)))
    given = [labels[at] for at in y]
    models = [MoEClassifier(**QUICK) for _ in range(3)]
    for x, label in zip(dicts(X), given, strict=True):
        models[0].learn_one(x, label)
        models[1].learn_one(x, np.array([label])[0] if len({type(label) for label in labels}) == 1 else label)
    models[2].learn_array(X, given, feature_names=NAMES)
    for model in models:
        assert same(model, models[0])
        assert {(type(label), label) for label in model.class_labels} == {(type(label), label) for label in labels}
    assert type(models[1].predict_one({})) in {type(label) for label in labels}
    assert models[2].predict_array(X).tolist() == [models[0].predict_one(x) for x in dicts(X)]


@pytest.mark.parametrize("warmup", [0, 5])
def test_one_label_is_certain_and_one_expert_enough_for_two(warmup):
    models = [MoEClassifier(n_experts, warmup=warmup, warmup_restarts=1) for n_experts in (1, 2)]
    for model in models:
        for x in dicts(classes(10)[0]):
            model.learn_one(x, "only")
        assert (model.predict_proba_one({"a": 1.0}), model.predict_one({})) == ({"only": 1.0}, "only")
        model.learn_one({"a": 1.0}, "other")
        assert sum(model.predict_proba_one({"a": 2.0}).values()) == pytest.approx(1.0)


def test_probabilities_are_at_most_one():
    X = np.random.default_rng(0).normal(size=(1000, 2))
    model = MoEClassifier(n_experts=3, warmup=100, warmup_restarts=1)
    model.learn_array(X, (X[:, 0] > 0.0).astype(int))
    assert model.predict_proba_array(30.0 * X).max() <= 1.0


def test_fixed_classes_are_there_from_the_beginning_and_no_other_is_learned():
    model = MoEClassifier(**QUICK, classes=["b", "a", "c"])
    assert same(model, MoEClassifier(**QUICK, classes=("b", "a", "c")))
    assert model.predict_proba_one({"x": 1.0}) == {"b": 1 / 3, "a": 1 / 3, "c": 1 / 3}
    assert model.predict_proba_array(np.ones((2, 1))).tolist() == [[1 / 3] * 3] * 2
    model.learn_one({"x": 1.0}, "a")
    digest = model.state_digest()
    for learn in (
        lambda: model.learn_one({"x": 1.0, "new": 1.0}, "e"),
        lambda: model.learn_array(np.ones((3, 1)), ["a", "e", "b"], feature_names=["x"]),
    ):
        with pytest.raises(InvalidEvent) as refused:
            learn()
        assert refused.value.reason == "unknown_class"
        assert (model.class_labels, model.state_digest()) == (["b", "a", "c"], digest)
    assert refused.value.row == 1
    assert (model.clone().classes, model.clone({"classes": [3, 1]}).class_labels) == (("b", "a", "c"), [3, 1])
