"""Names and labels that no checkpoint could hold are rejected when they come; all others are saved."""

import numpy as np
import pandas as pd
import polars as pl
import pyarrow as pa
import pytest

from streammoe import MoEClassifier, MoEMultiTargetRegressor, MoERegressor, load
from streammoe.errors import InvalidEvent

UNSTORABLE = [("a", "b"), 0.5, None, b"a", True, 2**63]
QUICK = {"n_experts": 2, "warmup": 30}
STORABLE = ["", "\ud800", -(2**63)]


@pytest.mark.parametrize("name", UNSTORABLE, ids=repr)
def test_the_name_of_a_feature_or_an_output_that_no_checkpoint_could_hold_is_rejected(name):
    regressor, outputs = MoERegressor(2), MoEMultiTargetRegressor(2)
    two = pd.DataFrame({"x": [1.0], "y": [1.0]}).set_axis(["x", name], axis=1)
    calls = [
        (regressor, lambda: regressor.learn_one({"x": 1.0, name: 1.0}, 1.0)),
        (regressor, lambda: regressor.predict_one({"x": 1.0, name: 1.0})),
        (regressor, lambda: regressor.learn_array(np.ones((2, 2)), np.ones(2), feature_names=["x", name])),
        (regressor, lambda: regressor.learn_many(two, pd.Series([1.0]))),
        (regressor, lambda: regressor.set_columns(["x", name])),
        (outputs, lambda: outputs.learn_one({"x": 1.0}, {"u": 1.0, name: 1.0})),
        (outputs, lambda: outputs.set_targets(["u", name])),
    ]
    for model, call in calls:
        before = model.n, model.fields, model.output_names, model.state_digest()
        with pytest.raises(InvalidEvent) as rejected:
            call()
        assert rejected.value.reason == "wrong_type"
        assert (model.n, model.fields, model.output_names, model.state_digest()) == before


@pytest.mark.parametrize("name", STORABLE, ids=repr)
def test_what_is_accepted_is_saved(name, tmp_path):
    for kind, y in {MoERegressor: 1.0, MoEClassifier: name, MoEMultiTargetRegressor: {name: 1.0}}.items():
        model = kind(2)
        model.learn_one({name: 1.0}, y)
        model.save(tmp_path / "model")
        again = load(tmp_path / "model")
        assert (again.fields, again.output_names) == ([name], model.output_names)
        assert again.state_digest() == model.state_digest()


# --- frames ---------------------------------------------------------------------------------------------------------

FRAMES = {"pandas": lambda frame: frame, "polars": pl.from_pandas, "Arrow": pa.Table.from_pandas}


@pytest.mark.parametrize("kind", FRAMES)
def test_columns_of_a_frame_are_found_by_their_names_wherever_an_array_may_be_given(kind):
    rng = np.random.default_rng(0)
    frame = pd.DataFrame(rng.normal(size=(200, 3)), columns=["c", "a", "b"])
    y = 3.0 * frame["a"] - frame["b"]
    outputs = pd.DataFrame({"q": y, "p": -y})
    made, moved = FRAMES[kind], frame[["b", "c", "a"]].assign(more=1.0)
    expected, model = (MoERegressor(**QUICK) for _ in range(2))
    for x, target in zip(frame.to_dict("records"), y, strict=True):
        expected.learn_one(x, target)
    model.learn_array(made(frame), y)
    assert model.state_digest() == expected.state_digest()
    assert model.predict_array(made(moved)).tolist() == expected.predict_many(frame).tolist()
    assert (model.log_likelihood_array(made(moved), y) == model.log_likelihood_array(made(frame), y)).all()
    for wrong in (frame[["a", "b"]], frame.rename(columns={"a": "A"})):
        for call in (model.predict_array, lambda X: model.learn_array(X, y)):
            with pytest.raises(InvalidEvent, match="which the model has"):
                call(made(wrong))
    several = MoEMultiTargetRegressor(**QUICK)
    several.learn_array(made(frame), made(outputs))
    other = MoEMultiTargetRegressor(**QUICK)
    other.learn_many(frame, outputs[["p", "q"]])
    assert several.state_digest() == other.state_digest()


def test_a_row_of_a_frame_is_an_event():
    frame = pd.DataFrame({"b": [1, 2, 3], "a": [0.5, 1.5, 2.5], "c": ["x", "y", None]})
    rows, dicts = MoERegressor(**QUICK), MoERegressor(**QUICK)
    for i, x in enumerate(frame.to_dict("records")):
        rows.learn_one(frame.iloc[i], 1.0 * i)
        dicts.learn_one(x, 1.0 * i)
        assert rows.predict_one(frame.iloc[i]) == dicts.predict_one(x)
    assert rows.state_digest() == dicts.state_digest()
