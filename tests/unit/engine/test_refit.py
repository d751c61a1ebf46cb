"""What a refit finds after a change, and where it leaves the mixture as it is."""

import numpy as np

from streammoe import MoEClassifier, MoERegressor
from streammoe.engine import refit
from streammoe.engine.em import Buffer
from streammoe.engine.mixture import score, served_parameters
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


def test_six_experts_that_moved_together_keep_their_regions():
    """From where they were, EM finds a worse optimum: only the experts nearest to the new level would get events."""
    rng = np.random.default_rng(5)
    centers, slopes, levels = 3.0 * rng.normal(size=(6, 3)), rng.normal(size=(6, 3)), 2.0 * rng.normal(size=6)

    def stream(n, seed):
        rng = np.random.default_rng(seed)
        region = rng.integers(0, 6, n)
        X = centers[region] + rng.normal(size=(n, 3))
        return X, levels[region] + np.sum(slopes[region] * X, axis=1) + 0.3 * rng.normal(size=n)

    def loss(state, seed, shift, n=1_000):
        X, y = stream(n, seed)
        rows = *model.learner.encoder.design(X), y[:, None] + shift
        return score(model.learner.context.family, served_parameters(state), *rows, n_outputs=1)[0].losses.mean()

    model = MoERegressor(6, standardize=False, warmup=1_000, seed=1)
    model.learn_array(*stream(3_000, 1))
    for shift in (3.0, 30.0):
        X, y = stream(120, 2)
        state = refitted(model, Buffer(*model.learner.encoder.design(X), y[:, None] + shift, np.ones(len(y))))
        assert loss(state, 3, shift) < loss(model.learner.state, 3, 0.0) + 0.4


def test_a_mixture_that_explains_the_rows_is_left_as_it_is():
    """A fit always explains rows better, but not by as much as it has parameters."""
    model = trained(MoERegressor, 600, standardize=False)
    context, phase = model.learner.context, model.learner.phase
    phase.leader = context.candidate(refitted(model, rows(model, 1_000)))
    assert refitted(model, rows(model, 200, seed=10)) is None


def test_experts_of_classes_are_fitted_from_those_before_and_after():
    model = trained(MoEClassifier, 600, classes=LABELS)
    swapped = rows(model, 300)
    swapped = swapped._replace(Y=(swapped.Y + 1.0) % 3.0)
    state = refitted(model, swapped)
    learner = model.learner
    losses = [
        score(learner.context.family, served_parameters(each), *swapped[:3], n_outputs=3)[0].losses.mean()
        for each in (learner.state, state)
    ]
    assert losses[1] < losses[0] - 1.0
