"""Options are written once: signatures, ranges, docstrings, flags and files agree with them."""

import inspect

import numpy as np
import pytest

from scripts import reference
from streammoe import (
    Auto,
    Exponential,
    Gaussian,
    MoEClassifier,
    MoEMultiTargetRegressor,
    MoERegressor,
    load,
)
from streammoe.options import FeatureOptions
from streammoe.schedules import Power

ESTIMATORS = (MoERegressor, MoEMultiTargetRegressor, MoEClassifier)


@pytest.mark.parametrize("estimator", ESTIMATORS)
def test_signatures_and_docstrings_are_those_of_the_options(estimator):
    fields = {**estimator.options_type.model_fields, **FeatureOptions.model_fields}
    del fields["kind"]
    parameters = inspect.signature(estimator).parameters
    assert parameters.keys() == fields.keys()
    assert estimator().options == estimator.options_type()
    for name, field in fields.items():
        assert f"\n{name}\n    {field.description[:40]}" in inspect.getdoc(estimator)
        assert field.description.endswith("."), name


def test_words_and_numbers_are_short_for_options():
    given = {"n_experts": "auto", "warmup": np.int64(30), "averaging": None, "drift": "off", "schedule": None}
    options = MoERegressor(**given).options
    assert (options.n_experts, options.warmup, options.averaging) == (Auto(6), 30, None)
    assert (options.drift, options.schedule, options.expert) == (None, Power(0.6), Gaussian())
    assert MoEClassifier(averaging="exponential", drift="page_hinkley").options.averaging == Exponential(0.01)


@pytest.mark.parametrize(
    "arguments",
    [
        {"prior_strength": 1e4},  # in its own steps the prior weighs more than 1
        {"expert": {"kind": "student_t", "df": np.float32(3.3)}, "schedule": Power(np.float32(0.75))},
        {"warmup": np.int64(50), "averaging": {"rate": np.float64(0.25)}},
    ],
)
def test_what_a_constructor_accepts_can_be_saved_and_loaded(arguments, tmp_path):
    X = np.random.default_rng(0).normal(size=(120, 2))
    model = MoERegressor(**{"n_experts": 2, "warmup": 50, **arguments})
    model.learn_array(X, X[:, 0])
    model.n_experts = 7  # ignored: the model is what it was made as
    model.save(tmp_path / "model")
    restored = load(tmp_path / "model")
    assert (restored.options, restored.state_digest()) == (model.options, model.state_digest())


def test_the_reference_is_current():
    """If not: `make reference`, and read the difference."""
    for path, text in reference.files().items():
        assert path.read_text(encoding="utf-8") == text, path
