"""The fit of a mixture to the events since a drift, from the mixture as it was before and as it is now.

Regions of experts often outlast a change of what is true in them, so EM begins at the averaged parameters, which
the few events since the drift have hardly moved: as they are, and with what one expert makes of their errors added to
each expert, by which all levels and slopes may have moved together. Steps begin at the result if it explains the events
so much better than the steps so far that its parameters cannot be the reason.
"""

from __future__ import annotations

import numpy as np

from streammoe.engine.cost import Shape, row_cost
from streammoe.engine.em import Buffer, Em, one_expert_prior, statistics_at
from streammoe.engine.jobs import run_job
from streammoe.engine.mixture import score, served_parameters
from streammoe.engine.model_selection import Candidate
from streammoe.engine.state import MMState, is_sound
from streammoe.engine.warmup import as_streamed, with_own_prior
from streammoe.experts import Family, Parameters

ROUNDS = 40
WORK = 1e8
"""Multiply-adds of a refit, roughly; models for which these are too few for `FEWEST_ROUNDS` are not refitted."""
FEWEST_ROUNDS = 8
STARTS = 3
NATS_PER_PARAMETER = 1.0


def rounds(family: Family, shape: Shape, n: int) -> int:
    """Return how many rounds of EM from the best start a refit to n rows may have; 0 if these are too few.

    From the others there are `FEWEST_ROUNDS`.
    """
    affordable = int(WORK / (max(n, 1) * row_cost(family, shape))) - (STARTS - 1) * FEWEST_ROUNDS
    return min(affordable, ROUNDS) if affordable >= FEWEST_ROUNDS else 0


def refit(family: Family, candidate: Candidate, buffer: Buffer, n_outputs: int) -> MMState | None:
    """Return the state at a fit to the rows since a drift; None if the mixture explains them about as well.

    Args:
        family: family of the experts.
        candidate: the mixture, which has learned these rows by steps.
        buffer: the rows, in the coordinates of the mixture.
        n_outputs: Q, or the number of classes.
    """
    state, _, options = candidate
    n, p_v = buffer.R.shape
    K, n_rows, _ = state.experts.shape
    n_free = (K - 1) * buffer.W.shape[1] + state.experts.size + state.variances.size
    most = rounds(family, Shape(K, n_rows, buffer.W.shape[1], p_v), n)
    if n < n_free or not most:
        return None
    with np.errstate(all="ignore"):  # the result is judged instead
        # The prior does not fade, so it must not draw towards what was true before.
        em = run_job(with_own_prior(family, buffer, n_outputs, options))
        now = em.e_step(_latest(state))[0]
        fits = []
        for theta in _starts(em, state, n_outputs):
            score = em.run(theta, FEWEST_ROUNDS)
            if np.isfinite(score):
                fits.append((score, theta))
        if not fits:
            return None
        _, theta = max(fits, key=lambda fit: fit[0])
        best = em.run(theta, most - FEWEST_ROUNDS) if most > FEWEST_ROUNDS else em.e_step(theta)[0]
        if not n * (best - now) > NATS_PER_PARAMETER * n_free:
            return None
        found = statistics_at(as_streamed(em), theta)
    return found._replace(n=state.n.copy()) if is_sound(found) else None


def _latest(state: MMState) -> Parameters:
    return Parameters(state.gate, state.experts, state.variances)


def _starts(em: Em, state: MMState, n_outputs: int) -> list[Parameters]:
    latest = _latest(state).copied()
    before = served_parameters(state).copied()
    if not em.family.is_metric:
        return [before, latest]
    said, _ = score(em.family, before, em.buffer.W, em.buffer.R, n_outputs=n_outputs)
    errors = em.buffer._replace(Y=em.buffer.Y - said.predictions)
    common = run_job(one_expert_prior(em.family, errors, n_outputs, em.options)).experts
    moved = before.copied()._replace(experts=before.experts + common)
    return [moved, before, latest]
