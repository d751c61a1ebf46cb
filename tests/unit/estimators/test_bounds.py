"""Sizes have the same bounds in estimators and settings, and so has what they come to together."""

import numpy as np
import pytest

from streammoe import MoEClassifier, MoERegressor, settings
from streammoe.bounds import BOUNDS, LARGEST_BUFFER, LARGEST_MODEL, buffer_bytes, model_bytes
from streammoe.errors import ConfigError, InvalidEvent

OF_SCHEMA = {"max_columns"}
NOT_IN_TOML = {"seed"}
"""A whole number in TOML has 64 bits."""


@pytest.mark.parametrize("name", [name for name in BOUNDS if name not in OF_SCHEMA])
def test_arguments_keep_their_bounds(name):
    estimator = MoEClassifier if name == "max_classes" else MoERegressor
    least, most = BOUNDS[name]
    assert getattr(estimator(**{name: most}), name) == most
    for value in (least - 1, most + 1, 10**400):
        with pytest.raises(ConfigError):
            estimator(**{name: value})


@pytest.mark.parametrize("name", BOUNDS)
def test_settings_keep_the_same(name):
    section = settings.Schema if name in OF_SCHEMA else settings.Model
    given = {"target": "y"} if name in OF_SCHEMA else {"kind": "classifier" if name == "max_classes" else "regressor"}
    least, most = BOUNDS[name]
    assert getattr(section(**given, **{name: most}), name) == most
    for value in (least - 1, most + 1):
        with pytest.raises(ValueError, match=name):
            section(**given, **{name: value})


def wide(n):
    return {f"x{j}": 0.5 for j in range(n)}


@pytest.mark.parametrize(
    "arguments",
    [{"n_experts": 1000}, {"degree": 20}, {"gate_degree": 20}, {"warmup": 10_000_000}, {"batch_size": 10**5}],
)
def test_an_event_that_makes_a_model_too_large_is_rejected_and_changes_nothing(arguments):
    model = MoERegressor(**arguments)
    columns = 2_000
    model.learn_one({"a": 1.0}, 1.0)
    digest = model.state_digest()
    with pytest.raises(InvalidEvent) as caught:
        model.learn_one(wide(columns), 1.0)
    assert caught.value.reason == "too_many_columns"
    assert (model.n, model.fields, model.state_digest()) == (1, ["a"], digest)
    model.learn_one({"a": 1.0}, 1.0)


def test_columns_that_make_a_model_too_large_are_rejected_before_any_event():
    model = MoERegressor(degree=20)
    names = list(wide(2_000))
    with pytest.raises(ConfigError):
        model.set_columns(names)
    with pytest.raises(InvalidEvent) as caught:
        model.introduce(names, np.full((1, len(names)), 0.5), np.array([[1.0]]))
    assert caught.value.reason == "too_many_columns"
    with pytest.raises(InvalidEvent):
        model.learn_array(np.ones((2, len(names))), np.ones(2), feature_names=names)
    assert model.fields == []


def test_levels_and_classes_count(monkeypatch):
    monkeypatch.setattr("streammoe.estimators.core.LARGEST_MODEL", model_bytes(4, 99, 10, 10))
    model = MoEClassifier(categorical=("c",))
    for level in range(9):
        model.learn_one({"c": f"level {level}"}, "a")
    with pytest.raises(InvalidEvent) as caught:
        model.learn_one({"c": "one more"}, "a")
    assert caught.value.reason == "too_many_columns"
    assert model.n == 9


def test_ordinary_wide_models_are_within_the_bounds():
    assert model_bytes(4, 1, 2_001, 2_001) < LARGEST_MODEL
    assert buffer_bytes(100_000, 501, 501) < LARGEST_BUFFER
