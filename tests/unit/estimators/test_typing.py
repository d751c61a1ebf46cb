"""What type checkers and editors see of the estimators; calls that they reject are in `typed_calls.py`."""

import inspect

import streammoe


def test_every_argument_has_a_type_that_a_type_checker_sees():
    for kind in (streammoe.MoERegressor, streammoe.MoEMultiTargetRegressor, streammoe.MoEClassifier):
        for argument in inspect.signature(kind).parameters.values():
            assert argument.annotation not in {inspect.Parameter.empty, "Any"}, argument


def test_the_package_lists_its_public_names_before_they_are_used():
    assert {*streammoe.__all__, "__version__"} == set(dir(streammoe))
    assert all(hasattr(streammoe, name) for name in dir(streammoe))
