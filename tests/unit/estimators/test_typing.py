"""What type checkers and editors see of the estimators."""

import inspect
import re

import pytest
from mypy import api

import streammoe

CALLS = """\
from typing_extensions import assert_type
from streammoe import MoEClassifier, MoEMultiTargetRegressor, MoERegressor, WarmUp
assert_type(MoERegressor(3, warmup=WarmUp(60), serve="polyak").predict_one({"a": 1.0}), float)
MoEMultiTargetRegressor("auto", categorical=("zip",), lags=2)
MoEClassifier(classes=["a", "b"])
MoERegressor(n_experts=3.5)
MoERegressor(n_expert=3)
MoERegressor(serve="portfolo")
MoEClassifier(lags=2)
MoERegressor(4, 2)
"""
WRONG = {6: "arg-type", 7: "call-arg", 8: "arg-type", 9: "call-arg", 10: "call-arg"}


@pytest.mark.slow
def test_arguments_of_constructors_are_checked(tmp_path):
    (tmp_path / "calls.py").write_text(CALLS)
    said, problems, _ = api.run(["--strict", "--no-error-summary", str(tmp_path / "calls.py")])
    assert not problems
    found = re.findall(r"calls\.py:(\d+): error: .*\[([\w-]+)\]$", said, re.MULTILINE)
    assert {int(line): code for line, code in found} == WRONG, said


def test_every_argument_has_a_type_that_a_type_checker_sees():
    for kind in (streammoe.MoERegressor, streammoe.MoEMultiTargetRegressor, streammoe.MoEClassifier):
        for argument in inspect.signature(kind).parameters.values():
            assert argument.annotation not in {inspect.Parameter.empty, "Any"}, argument


def test_the_package_lists_its_public_names_before_they_are_used():
    assert {*streammoe.__all__, "__version__"} == set(dir(streammoe))
    assert all(hasattr(streammoe, name) for name in dir(streammoe))
