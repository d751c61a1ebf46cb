"""Checkpoints and configurations by an enemy: rejected with a sentence, or harmless.

For more: ``python -m tests.fuzz.enemies``.
"""

import subprocess
import sys
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from streammoe.errors import CheckpointError, ConfigError
from tests.fuzz.checkpoints import Enemy
from tests.fuzz.configs import attack_config, config
from tests.fuzz.victims import attack_model, models, quiet

ROOT = Path(__file__).parents[2]
randoms = st.randoms(use_true_random=False)


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    return tmp_path_factory.mktemp("hostile")


@pytest.fixture(scope="module")
def sound():
    """Arrays and metadata of a model of each kind."""
    with quiet():
        return {name: (model.arrays(), model.describe()) for name, model in models()}


@pytest.mark.parametrize("name", ["regressor", "mixed-warming-up", "full", "classifier", "untouched"])
@settings(max_examples=10, suppress_health_check=list(HealthCheck))
@given(pick=randoms)
def test_a_rewritten_model_is_rejected_or_harmless(sound, folder, name, pick):
    rejected = attack_model(Enemy(*sound[name], pick).bytes(), folder)
    assert rejected is None or (isinstance(rejected, CheckpointError) and str(rejected).isprintable())


@settings(max_examples=15, suppress_health_check=list(HealthCheck))
@given(pick=randoms)
def test_a_damaged_configuration_is_rejected_with_every_problem(folder, pick):
    rejected = attack_config(config(pick), folder)
    assert rejected is None or isinstance(rejected, ConfigError)


@pytest.mark.exhaustive
@pytest.mark.process
def test_a_minute_of_attacks_on_models_daemons_and_configurations():
    done = subprocess.run(
        [sys.executable, "-m", "tests.fuzz.enemies", "--seconds", "60", "--cases", "100"],
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    rows = [line.split() for line in done.stdout.splitlines() if " cases, " in line]
    assert {row[0] for row in rows} == {"model", "daemon", "config"}, done.stdout
    # Neither is everything rejected, nor does everything pass: the attacks reach what they are aimed at.
    assert all(0 < int(row[-2]) < int(row[-4]) for row in rows), done.stdout
