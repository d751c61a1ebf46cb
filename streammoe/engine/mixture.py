"""Start and score the state of a mixture: the incremental stochastic MM scheme ([MM] Algorithms 1 and 2)."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

from streammoe.engine.state import state_at
from streammoe.experts import Family, Parameters
from streammoe.kernels.state import LearningOptions, MMState, Prior, Trace
from streammoe.schedules import Schedule
from streammoe.types import FloatArray

SHARP = 0.1
"""Least part of the adaptive bound that a gate's curvature below it is."""
TORN = (
    "the model was changed by another thread while it was read or copied; let the thread that learns make the copies "
    "by which others predict"
)
"""The error of a model that was read while it changed."""
AVERAGING = {None: 0, "polyak": 1, "decay": 3, "exponential": 1}


class Candidate(NamedTuple):
    """A mixture with everything that its steps need."""

    state: MMState
    residual: FloatArray
    options: LearningOptions


class Scores(NamedTuple):
    """Scores of rows by the model that served before each of them was learned."""

    losses: FloatArray
    """(n,) −log s(y|x); NaN where there is no target."""
    predictions: FloatArray
    """(n, Q) the regression function, or (n, M) class probabilities."""
    trace: Trace
    """Each expert's part, if requested."""
    gate: FloatArray | None = None
    """(n, K) the mixture's gate, if requested; None where it is the shares of the trace."""

    @property
    def gates(self) -> FloatArray:
        """The mixture's gate, (n, K) if a trace was requested."""
        return self.trace.shares if self.gate is None else self.gate


def concatenated(runs: Sequence[Scores]) -> Scores:
    """Concatenate the scores of consecutive rows; a class that a run did not know yet has probability 0 in it."""
    if len(runs) == 1:
        return runs[0]
    return Scores(
        np.concatenate([run.losses for run in runs]),
        _stacked([run.predictions for run in runs]),
        Trace(*(_stacked([run.trace[i] for run in runs]) for i in range(len(Trace._fields)))),
        None if all(run.gate is None for run in runs) else _stacked([run.gates for run in runs]),
    )


def _stacked(arrays: Sequence[FloatArray]) -> FloatArray:
    """Concatenate arrays of n_i rows, padding shorter rows with zeros."""
    shape = np.max([array.shape[1:] for array in arrays], axis=0)
    whole = np.zeros((sum(map(len, arrays)), *shape))
    start = 0
    for array in arrays:
        whole[(slice(start, start + len(array)), *(slice(size) for size in array.shape[1:]))] = array
        start += len(array)
    return whole


def blank_trace(n: int) -> Trace:
    """Return the trace of n rows without experts."""
    none = np.empty((n, 0, 0))
    return Trace(np.empty((n, 0)), none, none, none, np.empty((n, 0, 2, 0)))


NO_TRACE = blank_trace(0)
"""The trace where none is requested."""


def curvature(bound: str, free: int) -> tuple[float, float]:
    """Return (a, b) with A⁻¹ d = a (d + b Σd), for the bound A on the curvature of log-sum-exp of `free` free logits.

    ``tight`` is Böhning's bound with the full class count, ``paper`` is [MM] Prop. 5; they agree for one free logit.
    ``adaptive`` is the tight one times a weight that depends on the event, and ``sharp`` lowers that in the gate.

    >>> curvature("tight", 1), curvature("paper", 3)[1]
    ((2.0, 1.0), 0.6666666666666666)
    """
    if bound == "paper" and free >= 1:
        return 4.0 / 3.0, 2.0 / free
    return 2.0, 1.0


def learning_options(
    *,
    bound: str,
    n_experts: int,
    n_rows: int,
    prior_strength: float,
    averaging: str | None,
    schedule: Schedule,
    least_weight: float = 0.0,
    recent_variances: bool = False,
    top_k: int | None = None,
    span: float = 0.0,
) -> LearningOptions:
    """Convert the hyper-parameters of a step to the form that kernels take.

    Args:
        n_rows: rows of coefficients per expert.
        least_weight: smallest weight of an iterate in an exponential average.
        recent_variances: whether the average of the variances is one of recent iterates.
        top_k: how many experts learn from an event; by default all.
        span: events of the rarest expert that a step has to span, unless steps are constant.
    """
    return LearningOptions(
        prior_strength=float(prior_strength),
        curvature=curvature(bound, n_experts - 1),
        expert_curvature=curvature(bound, n_rows),
        adaptive=bound in {"adaptive", "sharp"},
        averaging=AVERAGING[averaging],
        forgetting=schedule.forgets and averaging != "exponential",
        least_weight=least_weight,
        recent_variances=recent_variances,
        bound_share=SHARP if bound == "sharp" else 1.0,
        span=0.0 if schedule.forgets else float(span),
        top_k=top_k or 0,
    )


def random_start(family: Family, prior: Prior, n_experts: int, n_features: int, seed: int) -> MMState:
    """Return a state without warm-up: the prior's statistics, with random coefficients so that experts can differ.

    These are of so many expert features, which are not padding.
    """
    rng = np.random.default_rng(seed)
    (n_rows, p_v), p_w = prior.experts.shape, len(prior.gate_gram)
    experts = np.zeros((n_experts, n_rows, p_v))
    if n_experts > 1:
        experts[:, :, :n_features] = rng.normal(size=(n_experts, n_rows, n_features))
    return state_at(
        gate=np.zeros((n_experts - 1, p_w)),
        experts=experts,
        variances=family.variances_of(prior.variances, n_experts),
        masses=np.full(n_experts, 1.0 / n_experts),
        gate_gram=np.eye(p_w),
        expert_grams=np.stack([np.eye(p_v) / n_experts] * n_experts),
        prior=prior,
        n=0,
        prior_weight=1.0,
    )


def new_residual(state: MMState) -> FloatArray:
    """Return the running means behind `convergence_residual`, with nothing in them yet."""
    (K, N, p_v), p_w = state.experts.shape, state.gate_gram.shape[0]
    return np.zeros(p_w * p_w + (K - 1) * p_w + K * (p_v * p_v + N * p_v + 1) + state.variances.size + 2)


def served_parameters(state: MMState) -> Parameters:
    """Return the averaged parameters."""
    return Parameters(state.average_gate, state.average_experts, state.average_variances)


def latest_parameters(state: MMState) -> Parameters:
    """Return the parameters of the latest iterate."""
    return Parameters(state.gate, state.experts, state.variances)


def score(
    family: Family,
    theta: Parameters,
    W: FloatArray,
    R: FloatArray,
    Y: FloatArray | None = None,
    *,
    n_outputs: int,
    traced: bool = False,
) -> tuple[Scores, FloatArray]:
    """Score rows with these parameters.

    Returns:
        The scores, and (n, K) responsibilities, or gate probabilities where there is no target.
    """
    K, N, p_v = theta.experts.shape
    if (N, p_v) != (family.n_rows(n_outputs), R.shape[1]) or (K > 1 and theta.gate.shape[1] != W.shape[1]):
        raise RuntimeError(TORN)  # compiled code would read past the ends of arrays
    targets = np.full((len(W), family.n_targets(n_outputs)), np.nan) if Y is None else Y
    losses = np.empty(len(W))
    predictions = np.empty((len(W), n_outputs))
    responsibilities = np.empty((len(W), len(theta.experts)))
    n, trace = len(W), NO_TRACE
    if traced:
        own = np.empty((n, K)), np.empty((n, K, n_outputs)), np.empty((n, K, theta.variances.shape[1]))
        trace = Trace(*own, *blank_trace(n)[3:])
    family.score_rows(*theta, W, R, targets, losses, predictions, responsibilities, trace)
    return Scores(losses, predictions, trace), responsibilities


def convergence_residual(residual: FloatArray) -> float:
    """Return ‖E(S̄ − s)‖ / E‖S̄ − s‖, exponentially weighted: 0 at a stationary point ([MM] Prop. 1), 1 far from one.

    NaN before the first event.
    """
    mean_norm = float(residual[-2])
    return float(np.sqrt(np.sum(residual[:-2] ** 2)) / mean_norm) if mean_norm > 0.0 else float("nan")
