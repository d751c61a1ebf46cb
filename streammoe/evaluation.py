"""Prequential evaluation in Python: each row is predicted before it is learned."""

from __future__ import annotations

import copy
from collections.abc import Sequence
from typing import Any

from streammoe.errors import ConfigError, InvalidEvent
from streammoe.estimators import MixtureOfExperts, problem_of
from streammoe.estimators.frames import beside, table_by_names, targets_by_names
from streammoe.model.learn_array import learn_array
from streammoe.model.learn_rows import Outcome
from streammoe.pipeline.scores import ClassificationScores, PrequentialScores, Scores, Spread

__all__ = ["evaluate"]

ROWS_AT_ONCE = 4096
"""Rows whose predicted distributions are in memory at once."""


def evaluate(
    model: MixtureOfExperts, X: Any, y: Any, *, w: Any = None, feature_names: Sequence[Any] | None = None
) -> dict[str, Any]:
    """Let a model predict and then learn each row, in order, and return how well it has predicted.

    Args:
        model: a regressor or classifier of this package, which has learned the rows afterwards.
        X: rows, as `learn_array` takes them.
        y: targets, likewise.
        w: weights, likewise.
        feature_names: names of the columns of an array.

    Returns:
        Of all rows but those of weight 0, as `streammoe evaluate` has them: ``rmse`` and ``baseline_rmse``, that of the
        mean so far, or ``accuracy`` and ``baseline_accuracy``, that of the most frequent class so far; ``log_loss``;
        and, but for classes, ``intervals``: a dict for each output and level with ``coverage`` and mean ``width``.

    Raises:
        ConfigError: it is no model.
        InvalidEvent: a row is invalid; its index is in ``row``, and the model has learned nothing.

    Examples:
        >>> import numpy as np
        >>> import streammoe
        >>> X = np.random.default_rng(0).normal(size=(2_000, 2))
        >>> y = np.where(X[:, 0] > 0, 1 + X[:, 1], -X[:, 1])
        >>> model = streammoe.MoERegressor(n_experts=2)
        >>> scores = streammoe.evaluate(model, X, y)
        >>> scores["rmse"] < 0.5 * scores["baseline_rmse"], model.n
        (True, 2000)
    """
    if problem := problem_of(model):
        raise ConfigError(f"model: {problem}, or score that by River's progressive_val_score")
    trial = copy.copy(model)
    table = table_by_names(trial.learner.encoder, X, feature_names)
    targets, names = targets_by_names(trial.learner.targets, y)
    targets, w = trial.learner.targets.check_array(targets, len(table.rows)), beside(X, w, "w")
    scores: Scores = ClassificationScores() if model.is_classifier else PrequentialScores(targets.shape[1], every=1)

    def add(found: Outcome) -> None:
        spread = Spread(found.trace, trial.noise) if found.trace.shares.shape[1] else None
        scores.update(found.losses, found.predictions, found.targets, spread)

    for start in range(0, len(table.rows), ROWS_AT_ONCE):
        rows = slice(start, start + ROWS_AT_ONCE)
        try:
            weights = None if w is None else w[rows]
            learn_array(trial.learner, table.part(rows), targets[rows], weights, names, add)
        except InvalidEvent as error:
            if error.row is None or not start:
                raise
            message, row = f"of the rows from {start} on, {error}", start + error.row
            raise InvalidEvent(message, reason=error.reason, feature=error.feature, row=row) from None
    model.learner = trial.learner
    found: dict[str, Any] = dict(scores.summary())
    if isinstance(scores, PrequentialScores):
        found["intervals"] = scores.of_intervals([*map(str, trial.learner.targets.lagged_names)])
    return found
