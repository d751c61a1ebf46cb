"""What a refit finds after a change, and where it leaves the mixture as it is."""

import numpy as np
import pytest

from streammoe import MoEClassifier, MoERegressor
from streammoe.engine import refit
from streammoe.engine.cost import Shape
from streammoe.engine.em import Buffer
from streammoe.engine.mixture import served_parameters
from streammoe.experts import families
from tests.unit.estimators.models import LABELS, STREAMS, trained

SHIFT = np.array([4.0, 1.5, 0.0, -2.0])
"""Of the level, and of the slopes of the three inputs."""


def rows(model, n, *, shift=SHIFT, seed=9):
    """New rows in the coordinates of a model; numbers are shifted alike for all experts."""
    X, y = STREAMS[type(model)](n, seed)
    if isinstance(model, MoERegressor):
        targets = (y + shift[0] + X @ shift[1:])[:, None]
    else:
        targets = np.array([[LABELS.index(label)] for label in y.tolist()], dtype=np.float64)
    return Buffer(*model.learner.encoder.design(X), targets, np.ones(n))


def refitted(model, buffer):
    context, leader = model.learner.context, model.learner.phase.leader
    return refit.refit(context.family, leader, buffer, context.targets.n_outputs)


def test_experts_that_moved_together_are_found_from_as_many_rows_as_determine_the_move():
    model = trained(MoERegressor, 600)
    before = served_parameters(model.learner.state).experts
    state = refitted(model, rows(model, 120))
    assert state.n[0] == model.n
    for expert, old in zip(state.average_experts[:, 0, :4], before[:, 0, :4], strict=True):
        np.testing.assert_allclose(expert, old + SHIFT, atol=0.2)
    # Far from what was true before, so that the prior must have moved as well.
    assert np.sqrt(state.average_variances).max() < 0.3


@pytest.mark.parametrize("kind", [MoERegressor, MoEClassifier])
def test_a_mixture_that_explains_the_rows_is_left_as_it_is(kind):
    model = trained(kind, 600, **({"classes": LABELS} if kind is MoEClassifier else {}))
    phase = model.learner.phase
    theta = served_parameters(model.learner.state)
    state = phase.leader.state._replace(gate=theta.gate, experts=theta.experts, variances=theta.variances)
    phase.leader = phase.leader._replace(state=state)
    assert refitted(model, rows(model, 200, shift=0.0 * SHIFT)) is None


def test_too_few_rows_and_too_wide_models_are_not_fitted():
    model = trained(MoERegressor, 600)
    assert refitted(model, rows(model, 10)) is None
    family = families()["gaussian"]
    assert refit.rounds(family, Shape(4, 1, 11, 11), 512) == refit.ROUNDS
    assert refit.rounds(family, Shape(4, 1, 101, 101), 512) == 0
