"""What a classifier learns of labels: which there are, which come late, and which there may be."""

import numpy as np
import pytest

from streammoe import InvalidEvent, MoEClassifier
from tests.unit.estimators.models import QUICK, classes, dicts, same


@pytest.mark.parametrize(
    "labels", [["no", "yes", "maybe"], [7, -1, 3], [False, True]], ids=lambda labels: str(labels[0])
)
def test_labels_come_back_as_they_were_given(labels):
    X, y = classes(100, labels=range(len(labels)))
    given = [labels[at] for at in y]
    plain, numpys = MoEClassifier(**QUICK), MoEClassifier(**QUICK)
    for x, label in zip(dicts(X), given, strict=True):
        plain.learn_one(x, label)
        numpys.learn_one(x, np.array([label])[0])
    for model in (plain, numpys):
        assert same(model, plain)
        assert {(type(label), label) for label in model.output_names} == {(type(label), label) for label in labels}
        assert type(model.predict_one({})) is type(labels[0])
    assert plain.predict_array(X).tolist() == [plain.predict_one(x) for x in dicts(X)]


@pytest.mark.parametrize("warmup", [0, 5])
def test_one_label_is_certain_and_one_expert_enough_for_two(warmup):
    models = [MoEClassifier(n_experts, warmup=warmup) for n_experts in (1, 2)]
    for model in models:
        for x in dicts(classes(10)[0]):
            model.learn_one(x, "only")
        assert (model.predict_proba_one({"a": 1.0}), model.predict_one({})) == ({"only": pytest.approx(1.0)}, "only")
        model.learn_one({"a": 1.0}, "other")
        assert sum(model.predict_proba_one({"a": 2.0}).values()) == pytest.approx(1.0)


def test_fixed_classes_are_there_from_the_beginning_and_no_other_is_learned():
    model = MoEClassifier(**QUICK, classes=["b", "a", "c"])
    assert same(model, MoEClassifier(**QUICK, classes=("b", "a", "c")))
    assert model.predict_proba_one({"x": 1.0}) == {"b": 1 / 3, "a": 1 / 3, "c": 1 / 3}
    model.learn_one({"x": 1.0}, "a")
    digest = model.state_digest()
    with pytest.raises(InvalidEvent) as rejected:
        model.learn_array(np.ones((3, 1)), ["a", "e", "b"], feature_names=["x"])
    assert (rejected.value.reason, rejected.value.row) == ("unknown_class", 1)
    assert (model.output_names, model.state_digest()) == (["b", "a", "c"], digest)
