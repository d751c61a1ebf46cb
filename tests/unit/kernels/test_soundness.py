"""What must be true after rows for them to have been learned."""

import numpy as np
import pytest

from streammoe.kernels.soundness import LARGEST_LOSS, LARGEST_PREDICTION, is_sound_after
from tests.unit.estimators.models import trained


@pytest.fixture(scope="module")
def state():
    return trained().learner.state


@pytest.mark.parametrize("wrong", [np.nan, np.inf, -np.inf, 2.0 * LARGEST_PREDICTION])
def test_predictions_are_numbers_that_can_be_averaged(state, wrong):
    Y, losses, predictions = np.zeros((2, 1)), np.zeros(2), np.zeros((2, 1))
    assert is_sound_after(state, Y, losses, predictions)
    predictions[1] = wrong
    assert not is_sound_after(state, Y, losses, predictions)


@pytest.mark.parametrize("wrong", [np.nan, np.inf, -np.inf, 2.0 * LARGEST_LOSS])
def test_only_a_row_without_target_may_have_no_loss(state, wrong):
    Y, losses = np.array([[0.0], [np.nan]]), np.array([0.0, wrong])
    assert is_sound_after(state, Y, losses, np.zeros((2, 1)))
    assert not is_sound_after(state, Y, losses[::-1].copy(), np.zeros((2, 1)))
