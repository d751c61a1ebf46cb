"""Names and labels that no checkpoint could hold are rejected when they come; all others are saved."""

import numpy as np
import pandas as pd
import pytest

from streammoe import MoEClassifier, MoEMultiTargetRegressor, MoERegressor, load
from streammoe.errors import InvalidEvent

UNSTORABLE = [("a", "b"), 0.5, None, b"a", True, 2**63]
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
