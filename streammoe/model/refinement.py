"""Refinement of a reduced mixture by the events in the reservoirs of the models.

The mean of M estimates is off by as much as each of them: what is lost by fitting a mixture to n/M events, chiefly the
length of a gate that is nearly hard, does not average out. The reservoirs show how much that is: EM on all of their r
events together, next to the reduction of models that were each fitted to its own reservoir only. The same events are in
both, so that their difference is nearly all due to the parts, and with parts of n/M instead of r/M events it is about
r/n as large.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence

import numpy as np

from streammoe.engine.batch import descend
from streammoe.engine.em import TOLERANCE, Em
from streammoe.engine.methods import point_at
from streammoe.engine.model_selection import n_parameters
from streammoe.engine.reservoir import Sample
from streammoe.experts import Parameters
from streammoe.model import fitting
from streammoe.model.common_rows import reservoir_events, row_numbers
from streammoe.model.learner import Learner
from streammoe.types import FloatArray, IntArray

ROUNDS = 40
LEAST_GAIN = 1.5
"""Nats for each free parameter that a fit to a small part of the events has to gain there: three times of what it gains
by chance on average, since it loses as much elsewhere, and since chance varies. The larger the part that is there, the
less of both."""
LEAST_LOSS = 0.1
"""Nats for each free parameter that parameters without the effect of parts have to lose before they are given up; the
others were fitted to these events, too, and so are a little likelier there than they should be."""


def refined(
    new: Learner,
    learners: Sequence[Learner],
    weights: FloatArray,
    thetas: Sequence[Parameters],
    theta: Parameters,
    reduced_again: Callable[[Sequence[Parameters | None], int], Parameters],
) -> Parameters:
    """Return better parameters than those to which models have been reduced; the same if there are no reservoirs.

    The difference described above is taken off, unless the events in the reservoirs speak against it; the fit to them
    is taken instead if it gains more than it would by chance.

    Args:
        new: the learner that starts at `theta`.
        learners: whose models were reduced.
        weights, thetas: (M,) of the models, and their parameters.
        theta: what they were reduced to.
        reduced_again: reduces mixtures with other parameters, None where there are none, of so many events, with the
            experts in the order of `theta`.
    """
    (X, Y, given), counts, owners = reservoir_events(new, learners, weights)
    if not len(X):
        return theta
    amounts = given * (counts / counts.mean())
    em = _em_on(new, Sample(X, Y, amounts))
    together = _fitted(em, theta)
    if together is None:
        return theta
    rows = [learner.reservoir_rows() for learner in learners]
    n, n_rows = np.array([learner.n for learner in learners]), np.array([len(each.X) for each in rows])
    # Of rows that count differently, as many of equal weights would say as much.
    of_events = _amounts_of_events(np.column_stack((X, Y)), owners, amounts)
    n_equal = float(amounts.sum() ** 2 / (amounts @ of_events))
    n_free = n_parameters(new.context.family, len(theta.experts), *_sizes(new))
    if n_equal <= n_free:  # which they would fit perfectly, whatever is true
        return theta
    # As in Akaike's criterion with its correction for few events.
    per_event = n_free / (n_equal - n_free) * float(amounts.mean())
    objective, part = _objective(em, theta), _part(weights, n, n_rows)
    if part > 0.0:
        own = [
            _fitted(_em_on(learner, Sample(*given)), start) if len(given[0]) else None
            for learner, (_, *given), start in zip(learners, rows, thetas, strict=True)
        ]
        if any(each is not None for each in own):
            apart = reduced_again(own, int(n_rows.sum()))
            without = theta._replace(
                gate=theta.gate - part * (apart.gate - together.gate),
                experts=theta.experts - part * (apart.experts - together.experts),
            )
            found = _objective(em, without)
            if found > objective - LEAST_LOSS * per_event:
                theta, objective = without, found
    covered = min(n_equal * float(((weights / weights.sum()) ** 2 / n).sum()), 1.0)
    is_better = _objective(em, together) - objective > LEAST_GAIN * (1.0 - covered) * per_event
    return together if is_better else theta


def _em_on(learner: Learner, sample: Sample) -> Em:
    """Return EM on raw rows of a learner, with its prior."""
    context, leader = learner.context, learner.phase.leader
    assert leader is not None  # noqa: S101 - models in a warm-up are not reduced
    problem, _ = fitting.at_the_model(context, leader, context.buffer(context.encoder, *sample))
    return problem


def _fitted(em: Em, theta: Parameters) -> Parameters | None:
    """Return what a few rounds lead to; None if the start is not finite."""
    with np.errstate(all="ignore"):
        done = descend(em, theta, "em", rounds=ROUNDS, tolerance=TOLERANCE)
    return None if done is None else done.theta


def _objective(em: Em, theta: Parameters) -> float:
    """Return the penalized log-likelihood of an event; −∞ where it is not finite."""
    with np.errstate(all="ignore"):
        found = point_at(em, theta).objective
    return found if math.isfinite(found) else -math.inf


def _sizes(learner: Learner) -> tuple[int, int, int]:
    encoder = learner.encoder
    return learner.targets.n_outputs, encoder.n_gate_features, encoder.n_expert_features


def _amounts_of_events(rows: FloatArray, owners: IntArray, amounts: FloatArray) -> FloatArray:
    """Return how much the event of each row counts in all rows, (m,), which come from several models.

    Equal rows of different models are one event that they all have learned; unless one of them has it several times,
    as happens without numbers in it.

    >>> rows = np.array([[0.1], [0.7], [0.1], [0.7], [0.7]])
    >>> _amounts_of_events(rows, np.array([0, 0, 1, 1, 1]), np.ones(5)).tolist()
    [2.0, 1.0, 2.0, 1.0, 1.0]
    """
    events = row_numbers(rows)
    n_owners = int(owners.max()) + 1
    of_models, times = np.unique(events * n_owners + owners, return_counts=True)
    is_single = np.ones(len(rows), dtype=np.bool_)
    is_single[of_models[times > 1] // n_owners] = False
    return np.where(is_single[events], np.bincount(events, weights=amounts)[events], amounts)


def _part(weights: FloatArray, n: IntArray, r: IntArray) -> float:
    """Return how large the effect of parts with n events each is next to that of parts with r, some of which may be 0.

    Each is in proportion to 1 / events of a part, less the same of all events together, which are as many as of equal
    weights would say as much.

    >>> _part(np.ones(4), np.full(4, 5000), np.full(4, 1000))
    0.2
    """

    def effect(weights: FloatArray, events: IntArray) -> float:
        if not len(events):
            return 0.0
        parts = weights / weights.sum()
        return float((parts / events).sum() - (parts**2 / events).sum())

    has = r > 0
    of_sample = effect(weights[has], r[has])
    return min(effect(weights, n) / of_sample, 1.0) if of_sample > 0.0 else 0.0
