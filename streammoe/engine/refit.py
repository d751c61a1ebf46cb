"""The fit of a mixture to the events since a drift, from the mixture as it was before and as it is now.

Regions of experts often outlast a change of what is true in them, so EM begins at parameters from before the change: as
they are, and with the same change of levels and slopes added to each expert, by which all may have moved together. Few
events determine such a move, and many more are needed for each expert's own parameters; so the move alone is the result
as long as EM from there gains less than its additional parameters can by chance. Steps begin at the result if it
explains the events so much better than the steps so far that its parameters cannot be the reason.
"""

from __future__ import annotations

import numpy as np

from streammoe.engine.cost import Shape, row_cost
from streammoe.engine.em import Buffer, Em, one_expert_prior, statistics_at
from streammoe.engine.jobs import run_job
from streammoe.engine.mixture import Candidate, latest_parameters, score, served_parameters
from streammoe.engine.search import as_streamed, with_own_prior
from streammoe.experts import Family, Parameters
from streammoe.kernels.soundness import is_sound
from streammoe.kernels.state import MMState

ROUNDS = 40
WORK = 1e8
"""Multiply-adds of a refit, roughly; models for which these are too few for `FEWEST_ROUNDS` are not refitted."""
FEWEST_ROUNDS = 8
STARTS = 3
HALVINGS = 20
"""Most halvings of an expert's variances at a time."""
MOVES = 4
"""Rounds in which the common move of all experts and their variances are fitted by turns."""
NATS_PER_PARAMETER = 1.0


def rounds(family: Family, shape: Shape, n: int) -> int:
    """Return how many rounds of EM from the best start a refit to n rows may have; 0 if these are too few.

    From the others there are `FEWEST_ROUNDS`.
    """
    of_round = max(n, 1) * row_cost(family, shape, has_matrices=True)
    affordable = int(WORK / of_round) - (STARTS - 1) * FEWEST_ROUNDS
    return min(affordable, ROUNDS) if affordable >= FEWEST_ROUNDS else 0


def refit(
    family: Family, candidate: Candidate, buffer: Buffer, n_outputs: int, before: Parameters | None = None
) -> MMState | None:
    """Return the state at a fit to the rows since a drift; None if the mixture explains them about as well.

    Args:
        family: family of the experts.
        candidate: the mixture, which has learned these rows by steps.
        buffer: the rows, in the coordinates of the mixture.
        n_outputs: Q, or the number of classes.
        before: parameters from before the change; by default the average, which these rows have hardly moved.
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
        latest, before = latest_parameters(state), before or served_parameters(state)
        now = em.e_step(latest)[0]
        together = _moved_together(em, before, n_outputs) if family.is_metric else None
        starts = [theta.copied() for theta in (together, before, latest) if theta is not None]
        fits = []
        for theta in starts:
            score = em.run(theta, FEWEST_ROUNDS)
            if np.isfinite(score):
                fits.append((score, theta))
        if not fits:
            return None
        _, theta = max(fits, key=lambda fit: fit[0])
        best = em.run(theta, most - FEWEST_ROUNDS) if most > FEWEST_ROUNDS else em.e_step(theta)[0]
        if together is not None:
            moved, n_moved = em.e_step(together)[0], n_rows * p_v + K
            if n * (best - moved) < NATS_PER_PARAMETER * (n_free - n_moved):
                best, theta, n_free = moved, together, n_moved
        if not n * (best - now) > NATS_PER_PARAMETER * n_free:
            return None
        found = statistics_at(as_streamed(em), theta.copied())
        if theta is together:
            own = theta.copied()._asdict()
            found = found._replace(**own, **{f"average_{name}": array.copy() for name, array in own.items()})
    return found._replace(n=state.n.copy()) if is_sound(found) else None


def _moved_together(em: Em, before: Parameters, n_outputs: int) -> Parameters:
    """Return parameters with the same change of coefficients added to each expert, such that the rows are likely.

    Each expert's variances are halved as long as that makes the rows likelier, since those from before may have grown
    with the first errors after the change.
    """
    W, R, Y, weights = em.buffer
    said, _ = score(em.family, before, W, R, n_outputs=n_outputs)
    errors = em.buffer._replace(Y=Y - said.predictions)
    theta = before.copied()
    for _ in range(MOVES):
        common = run_job(one_expert_prior(em.family, errors, n_outputs, em.options)).experts
        theta = _sharpened(em, theta._replace(experts=theta.experts + common))
        # What is left of each expert's errors, as far as it answers for a row, relative to its variance.
        tau = em.e_step(theta)[1]
        squares = theta.variances if theta.variances.ndim == 2 else np.diagonal(theta.variances, axis1=1, axis2=2)
        left = Y[:, None, :] - np.einsum("ip,knp->ikn", R, theta.experts)
        trust = tau[:, :, None] / squares
        total = trust.sum(axis=1)
        precision = total.mean(axis=1)
        errors = Buffer(W, R, (trust * left).sum(axis=1) / total, weights * (precision / precision.mean()))
    return theta


def _sharpened(em: Em, theta: Parameters) -> Parameters:
    """Return parameters of which each expert's variances are halved as often as that makes the rows likelier."""
    best = em.e_step(theta)[0]
    for k in range(len(theta.variances)):
        for _ in range(HALVINGS):
            variances = theta.variances.copy()
            variances[k] *= 0.5
            found = em.e_step(theta._replace(variances=variances))[0]
            if not found > best:
                break
            best, theta = found, theta._replace(variances=variances)
    return theta
