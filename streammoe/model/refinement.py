"""Refinement of a reduced mixture by the events in the reservoirs of the models.

The mean of M estimates is off by as much as each of them: what is lost by fitting a mixture to n/M events, chiefly the
length of a gate that is nearly hard, does not average out. A fit of all reservoirs together does not lose it, and takes
the place of the reduction if it gains more on these events than chance, since it was fitted to them.

A reservoir holds events of all times. Where models have forgotten what they hold, they explain their own events much
worse than such a fit does, which is refused then.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from streammoe.engine.batch import descend
from streammoe.engine.em import TOLERANCE
from streammoe.engine.model_selection import n_parameters
from streammoe.experts import Parameters
from streammoe.model import fitting
from streammoe.model.common_rows import events_of, reservoir_events
from streammoe.model.learner import Learner
from streammoe.model.predicting import score
from streammoe.types import FloatArray

ROUNDS = 40
LEAST_GAIN = 1.0
"""Nats for each free parameter that a fit to a small part of the events has to gain there: twice what it gains by
chance on average, since it loses as much elsewhere. The larger the part that is there, the less of both."""
MOST_LOSS = 2.0
"""Nats for each free parameter that a model may lose on its own events against a fit of all. One that was fitted to
them loses nothing there; one that has learned them in a single pass about half a nat."""


def refined(new: Learner, learners: Sequence[Learner], weights: FloatArray, theta: Parameters) -> Parameters:
    """Return better parameters than those to which models have been reduced; the same if the reservoirs tell of none.

    Args:
        new: the learner that starts at `theta`.
        learners, weights: those whose models were reduced, and how much each counts, (M,).
        theta: what they were reduced to.
    """
    sample, counts = reservoir_events(new, learners, weights)
    # Of rows that count differently, as many of equal weights would say as much.
    amounts = sample.weights * counts / max(float(counts.mean()), np.finfo(float).tiny) if len(counts) else counts
    n_equal = float(amounts.sum() ** 2 / (amounts @ amounts)) if len(amounts) else 0.0
    n_free = _n_free(new)
    if n_equal <= n_free:  # which they would fit perfectly, whatever is true
        return theta
    context, leader = new.context, new.phase.leader
    assert leader is not None  # noqa: S101 - it has just been started
    em, _ = fitting.at_the_model(context, leader, context.buffer(context.encoder, sample.X, sample.Y, amounts))
    with np.errstate(all="ignore"):
        done = descend(em, theta, rounds=ROUNDS, tolerance=TOLERANCE)
    if done is None:
        return theta
    n = np.array([learner.n for learner in learners])
    covered = min(n_equal * float(((weights / weights.sum()) ** 2 / n).sum()), 1.0)
    # As in Akaike's criterion with its correction for few events.
    by_chance = n_free / (n_equal - n_free) * float(amounts.mean())
    is_better = done.objective - done.trace[0].objective > LEAST_GAIN * (1.0 - covered) * by_chance
    return done.theta if is_better else theta


def have_forgotten(learners: Sequence[Learner], new: Learner) -> bool:
    """Return whether a model explains the events in its own reservoir much worse than a fit of all, `new`, does."""
    n_free = _n_free(new)
    for learner in learners:
        X, Y, weights = learner.reservoir_rows()
        if not len(X):
            continue
        theirs = events_of(new, learner)
        apart = score(learner, X, Y)[0].losses - score(new, theirs.X, theirs.Y)[0].losses
        if np.average(apart, weights=weights) > MOST_LOSS * n_free / learner.n:
            return True
    return False


def _n_free(new: Learner) -> int:
    return n_parameters(new.context.family, new.context.shape._replace(n_experts=new.n_experts))
