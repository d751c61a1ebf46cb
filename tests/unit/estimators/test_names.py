"""Names and labels that no checkpoint could hold are rejected when they come, and leave no trace."""

import numpy as np
import pandas as pd
import pytest

from streammoe import MoEClassifier, MoEMultiTargetRegressor, MoERegressor, load
from streammoe.errors import InvalidEvent

UNSTORABLE = [("a", "b"), 0.5, None, b"a", True, 2**63, frozenset(), np.datetime64("2020"), float("nan")]
STORABLE = ["a", "", "ü", "\ud800", 3, -(2**63)]


def models():
    return {
        "regressor": (MoERegressor(2), 1.0),
        "classifier": (MoEClassifier(2), "a"),
        "multitarget": (MoEMultiTargetRegressor(2), {"u": 1.0, "v": 2.0}),
    }


@pytest.mark.parametrize("kind", models())
@pytest.mark.parametrize("name", UNSTORABLE, ids=repr)
def test_a_feature_name(kind, name):
    model, y = models()[kind]
    for _ in range(2):
        n, digest = model.n, model.state_digest()
        for call in (
            lambda: model.learn_one({"x": 1.0, name: 1.0}, y),
            lambda: model.predict_one({"x": 1.0, name: 1.0}),
        ):
            with pytest.raises(InvalidEvent) as caught:
                call()
            assert caught.value.reason == "wrong_type"
            assert (model.n, model.state_digest()) == (n, digest)
        model.learn_one({"x": 1.0}, y)


@pytest.mark.parametrize("name", UNSTORABLE[:-1], ids=repr)
def test_a_column_name(name):
    model = MoERegressor(2)
    for call in (
        lambda: model.learn_array(np.ones((2, 2)), np.ones(2), feature_names=["x", name]),
        lambda: model.learn_many(
            pd.DataFrame({"x": [1.0], "y": [1.0]}).set_axis(["x", name], axis=1), pd.Series([1.0])
        ),
        lambda: model.set_columns(["x", name]),
    ):
        with pytest.raises(InvalidEvent):
            call()
    assert model.fields == []


@pytest.mark.parametrize("name", UNSTORABLE, ids=repr)
def test_the_name_of_an_output(name):
    model = MoEMultiTargetRegressor(2)
    for call in (
        lambda: model.learn_one({"x": 1.0}, {"u": 1.0, name: 1.0}),
        lambda: model.set_targets(["u", name]),
    ):
        with pytest.raises(InvalidEvent):
            call()
    assert (model.n, model.output_names) == (0, [])


@pytest.mark.parametrize("name", STORABLE, ids=repr)
def test_what_is_accepted_is_saved(name, tmp_path):
    path = tmp_path / "model"
    for model, y in (
        (MoERegressor(2), 1.0),
        (MoEClassifier(2), name),
        (MoEMultiTargetRegressor(2), {name: 1.0}),
    ):
        model.learn_one({name: 1.0}, y)
        model.save(path)
        again = load(path)
        assert again.fields == [name]
        assert again.output_names == model.output_names
        assert again.state_digest() == model.state_digest()


def test_names_out_of_numpy_arrays_are_plain_ones(tmp_path):
    model = MoERegressor(2)
    model.learn_array(np.ones((2, 2)), np.ones(2), feature_names=np.arange(2))
    model.save(tmp_path / "model")
    assert load(tmp_path / "model").fields == [0, 1]
