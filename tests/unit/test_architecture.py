"""Composition instead of reaching into each other, as the sources show it; import contracts say who may know whom."""

import re
import subprocess
import sys
from pathlib import Path

import pytest

from streammoe import MoEClassifier, MoEMultiTargetRegressor, MoERegressor

ROOT = Path(__file__).parents[2]
PATHS = [path for folder in ("streammoe", "connectors/streammoe_connectors") for path in (ROOT / folder).rglob("*.py")]
ESTIMATORS = {"MixtureOfExperts", "MoERegressor", "MoEMultiTargetRegressor", "MoEClassifier"}


@pytest.mark.parametrize("estimator", [MoERegressor, MoEMultiTargetRegressor, MoEClassifier])
def test_an_estimator_is_a_face_of_at_most_three_classes(estimator):
    assert len([kind for kind in estimator.__mro__ if kind.__module__.startswith("streammoe")]) <= 3


def test_no_code_asks_which_estimator_a_model_is():
    """Except for `problem_of`, for functions that are handed anything."""
    asks = re.compile(rf"\bis(instance|subclass)\(.*\b({'|'.join(ESTIMATORS)})\b")
    asked = {path.relative_to(ROOT).as_posix() for path in PATHS if asks.search(path.read_text(encoding="utf-8"))}
    assert asked == {"streammoe/estimators/__init__.py"}


@pytest.mark.process
def test_settings_are_read_without_what_only_models_need():
    """Noise that settings name is defined with its mathematics, but SciPy and numba take seconds to import."""
    program = "import sys, streammoe.configuration, streammoe.options; print(*sys.modules)"
    done = subprocess.run([sys.executable, "-c", program], cwd=ROOT, capture_output=True, check=True, text=True)
    assert not set(done.stdout.split()) & {"scipy", "numba", "river"}


@pytest.mark.process
@pytest.mark.parametrize("program", ["import streammoe", "from streammoe.__main__ import main; main()"])
def test_nothing_large_is_imported_before_a_model_or_a_command_needs_it(program):
    program = f"import atexit, sys; atexit.register(lambda: print(*sys.modules)); {program}"
    done = subprocess.run(
        [sys.executable, "-c", program, "--help"], cwd=ROOT, capture_output=True, check=True, text=True
    )
    assert not set(done.stdout.split()) & {"numpy", "scipy", "numba", "pandas", "pydantic", "river"}
