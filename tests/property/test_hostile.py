"""Checkpoints and configurations by an enemy: rejected with a sentence, or harmless."""

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from streammoe.errors import CheckpointError, ConfigError, StreammoeError
from tests.fuzz.checkpoints import Enemy
from tests.fuzz.configs import attack_config, config
from tests.fuzz.victims import attack_model, models, quiet, victims

randoms = st.randoms(use_true_random=False)
some, many = (settings(max_examples=count, suppress_health_check=list(HealthCheck)) for count in (10, 300))


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    return tmp_path_factory.mktemp("hostile")


@pytest.fixture(scope="module")
def sound():
    """Arrays and metadata of a model of each kind."""
    with quiet():
        return {name: (model.arrays(), model.describe()) for name, model in models()}


@pytest.fixture(scope="module")
def daemons(folder):
    return list(victims(folder))


@pytest.mark.parametrize("name", ["regressor", "mixed-warming-up", "full", "classifier", "untouched"])
@some
@given(pick=randoms)
def test_a_rewritten_model_is_rejected_or_harmless(sound, folder, name, pick):
    rejected = attack_model(Enemy(*sound[name], pick).bytes(), folder)
    assert rejected is None or (isinstance(rejected, CheckpointError) and str(rejected).isprintable())


@some
@given(pick=randoms)
def test_a_damaged_configuration_is_rejected_with_every_problem(folder, pick):
    rejected = attack_config(config(pick), folder)
    assert rejected is None or isinstance(rejected, ConfigError)


@pytest.mark.exhaustive
@many
@given(pick=randoms)
def test_many_attacks_on_models_daemons_and_configurations(sound, folder, daemons, pick):
    found = [attack_config(config(pick), folder)]
    found += [attack_model(Enemy(*each, pick).bytes(), folder) for each in sound.values()]
    found += [daemon.attack(Enemy(*daemon.checkpoint, pick).bytes()) for daemon in daemons]
    assert all(each is None or (isinstance(each, StreammoeError) and str(each).isprintable()) for each in found)
