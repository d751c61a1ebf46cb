"""Options are written once: signatures, ranges, docstrings, flags and files agree with them."""

import copy
import inspect

import numpy as np
import pytest
from annotated_types import Ge, Gt, Le, Lt

from scripts import reference
from streammoe import (
    Auto,
    ConfigError,
    Exponential,
    Gaussian,
    MoEClassifier,
    MoEMultiTargetRegressor,
    MoERegressor,
    WarmUp,
    load,
)
from streammoe.commands.evaluate import command as evaluate
from streammoe.commands.fit import command as fit
from streammoe.options import CHOICES, MODELS, FeatureOptions
from streammoe.schedules import Power
from streammoe.settings import MODELS as SECTIONS
from streammoe.settings import Schema

ESTIMATORS = (MoERegressor, MoEMultiTargetRegressor, MoEClassifier)


@pytest.mark.parametrize("estimator", ESTIMATORS)
def test_signatures_and_docstrings_are_those_of_the_options(estimator):
    fields = {**estimator.options_type.model_fields, **FeatureOptions.model_fields}
    del fields["kind"]
    parameters = inspect.signature(estimator).parameters
    assert parameters.keys() == fields.keys()
    assert estimator().options == estimator.options_type()
    for name, field in fields.items():
        assert f"\n    {name}\n        {field.description[:40]}" in estimator.__doc__
        assert field.description.endswith("."), name


def bounds(fields):
    """Yield each field that is a number with a value at each end, and one beyond it."""
    for name, field in fields.items():
        of_number = [*field.metadata, Ge(1), Le(1_000)] if name == "n_experts" else field.metadata
        for end in of_number:
            match end:
                case Ge(least):
                    yield name, least, least - 1
                case Le(most):
                    yield name, most, most + 1
                case Gt(least):
                    yield name, least + 1e-6, least
                case Lt(most):
                    yield name, most - 1e-6, most


@pytest.mark.parametrize("kind", MODELS)
def test_arguments_and_settings_have_the_same_ranges(kind):
    estimator = MoEClassifier if kind == "classifier" else MoERegressor
    found = list(bounds(MODELS[kind].model_fields))
    assert len(found) > 15
    for name, inside, outside in found:
        for make, error in ((estimator, ConfigError), (SECTIONS[kind], ValueError)):
            assert getattr(make(**{name: inside}), name) == inside
            with pytest.raises(error):
                make(**{name: outside})


def test_objects_have_ranges_and_are_what_their_tables_say():
    numbers = 0
    for name, choice in CHOICES.items():
        for word, kind in choice.kinds.items():
            fields = getattr(kind, "__pydantic_fields__", {})
            for field, inside, outside in bounds(fields):
                made = kind(**{field: inside})
                table = {"kind": word, field: inside} if word else {field: inside}
                assert choice.read(table, None) == choice.read(choice.table(made), None) == made
                assert copy.deepcopy(made) == made
                with pytest.raises(ConfigError):
                    kind(**{field: outside})
                with pytest.raises(ValueError, match=field):
                    choice.read({**table, field: outside}, None)
                numbers += 1
            if word and name != "schedule":
                assert choice.read(word, None) == kind()
    assert numbers > 10


def test_words_and_numbers_are_short_for_options():
    given = {"n_experts": "auto", "warmup": np.int64(30), "averaging": None, "drift": "off", "schedule": None}
    options = MoERegressor(**given).options
    assert (options.n_experts, options.warmup, options.averaging) == (Auto(6), WarmUp(30), None)
    assert (options.drift, options.schedule, options.expert) == (None, Power(0.6), Gaussian())
    assert MoEClassifier(averaging="exponential", drift="page_hinkley").options.averaging == Exponential(0.01)


@pytest.mark.parametrize(
    "arguments",
    [
        {"prior_strength": 1e4},  # in its own steps the prior weighs more than 1
        {"expert": {"kind": "student_t", "df": np.float32(3.3)}, "schedule": Power(np.float32(0.75))},
        {"warmup": {"size": np.int64(50)}, "averaging": {"rate": np.float64(0.25)}},
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


def test_columns_are_bounded():
    for name, inside, outside in bounds(Schema.model_fields):
        assert getattr(Schema(target="y", **{name: inside}), name) == inside
        with pytest.raises(ValueError, match=name):
            Schema(target="y", **{name: outside})


@pytest.mark.parametrize("command", [evaluate, fit])
def test_commands_have_a_flag_for_each_option_of_a_model(command):
    names = {name for table in MODELS.values() for name in table.model_fields} - {"kind"}
    assert names <= {parameter.name for parameter in command.params}


def test_the_reference_is_current():
    """If not: `make reference`, and read the difference."""
    for path, text in reference.files().items():
        assert path.read_text(encoding="utf-8") == text, path
