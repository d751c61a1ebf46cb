"""Composition instead of reaching into each other, as the sources show it; import contracts say who may know whom."""

import ast
import re
import subprocess
import sys
from collections import defaultdict
from pathlib import Path

import pytest

from streammoe import MoEClassifier, MoEMultiTargetRegressor, MoERegressor

ROOT = Path(__file__).parents[2]
PATHS = [path for folder in ("streammoe", "connectors/streammoe_connectors") for path in (ROOT / folder).rglob("*.py")]
NAMED_TUPLES = {"_replace", "_asdict", "_fields", "_field_defaults", "_make"}
OF_LIBRARIES = {
    "os._exit",
    "learner(**given)._multiclass",  # River's
    # kafka-python, whose version is pinned
    "codegen._module_pass_manager",
    "codegen._tm",  # numba's
    "found._getvalue",
    "self._consumer._cluster",
    "self._consumer._fetcher",
    "self._consumer._subscription",
    "self._producer._sender",
}
"""Private names of others, where they offer no public one."""
ERROR_CODES = "KafkaError._"
"""What the names of librdkafka's own error codes begin with, which are public."""
ESTIMATORS = {"MixtureOfExperts", "MoERegressor", "MoEMultiTargetRegressor", "MoEClassifier"}


def trees(pattern):
    """Yield paths and syntax trees of the files in whose text the pattern occurs; none is kept, as they are large."""
    for path in PATHS:
        source = path.read_text(encoding="utf-8")
        if re.search(pattern, source):
            yield path.relative_to(ROOT).as_posix(), ast.parse(source)


def defined_in(tree):
    names = set()
    for node in ast.walk(tree):
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
            names.add(node.name)
        elif isinstance(node, ast.Attribute) and isinstance(node.ctx, ast.Store):
            names.add(node.attr)
        elif isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store):
            names.add(node.id)
    return names


def foreign_names(tree):
    """Return the private names that a file reads of objects of other files."""
    known = defined_in(tree) | NAMED_TUPLES
    for node in ast.walk(tree):
        if not isinstance(node, ast.Attribute) or not node.attr.startswith("_") or node.attr.startswith("__"):
            continue
        is_own = isinstance(node.value, ast.Name) and node.value.id in {"self", "cls"}
        if not is_own and node.attr not in known:
            yield ast.unparse(node)


def test_no_file_reads_private_names_of_another():
    found = defaultdict(set)
    for path, tree in trees(r"(?<!\bself)(?<!\bcls)\._[a-zA-Z]"):
        for name in foreign_names(tree):
            if not name.startswith(ERROR_CODES):
                found[name].add(path)
    assert found.keys() == OF_LIBRARIES, {name: found[name] for name in found.keys() - OF_LIBRARIES}


@pytest.mark.parametrize("estimator", [MoERegressor, MoEMultiTargetRegressor, MoEClassifier])
def test_an_estimator_is_a_face_of_at_most_three_classes(estimator):
    assert len([kind for kind in estimator.__mro__ if kind.__module__.startswith("streammoe")]) <= 3


def test_no_code_asks_which_estimator_a_model_is():
    """Except for `problem_of`, for functions that are handed anything."""
    asked = {
        path
        for path, tree in trees("|".join(ESTIMATORS))
        for node in ast.walk(tree)
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Name)
        if node.func.id in {"isinstance", "issubclass"}
        if ESTIMATORS & {each.id for each in ast.walk(node.args[1]) if isinstance(each, ast.Name)}
    }
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
