"""Options are written once: signatures, ranges, docstrings, flags and files agree with them."""

import inspect

import pytest
from annotated_types import Ge, Gt, Le, Lt

from scripts import reference
from streammoe import ConfigError, MoEClassifier, MoEMultiTargetRegressor, MoERegressor
from streammoe.commands.evaluate import command as evaluate
from streammoe.commands.fit import command as fit
from streammoe.options import MODELS, FeatureOptions, facts_of
from streammoe.settings import MODELS as TABLES
from streammoe.settings import Schema

ESTIMATORS = (MoERegressor, MoEMultiTargetRegressor, MoEClassifier)


@pytest.mark.parametrize("estimator", ESTIMATORS)
def test_signatures_and_docstrings_are_those_of_the_options(estimator):
    fields = {**estimator.options_type.model_fields, **FeatureOptions.model_fields}
    del fields["kind"]
    parameters = inspect.signature(estimator).parameters
    assert parameters.keys() == fields.keys()
    for name, field in fields.items():
        in_python = facts_of(field).in_python
        assert parameters[name].default == (field.default if in_python is ... else in_python), name
        assert f"\n    {name}\n        {field.description[:40]}" in estimator.__doc__
        assert field.description.endswith("."), name


def bounds(table):
    """Yield each option of a table that is a number with a value at each end, and one beyond it."""
    for name, field in table.model_fields.items():
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
    found = list(bounds(MODELS[kind]))
    assert len(found) > 20
    for name, inside, outside in found:
        more = {"standardize": False} if name == "warmup" else {}
        for make, error in ((estimator, ConfigError), (TABLES[kind], ValueError)):
            assert getattr(make(**more, **{name: inside}), name) == inside
            with pytest.raises(error):
                make(**more, **{name: outside})


def test_columns_are_bounded():
    for name, inside, outside in bounds(Schema):
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
