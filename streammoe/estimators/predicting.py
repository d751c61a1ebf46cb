"""Predictions and likelihoods of many rows; nothing is learned."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from streammoe.estimators.coding import Coding
from streammoe.model.tables import Table, table_of_array
from streammoe.types import AnyArray, FloatArray


class Predicting(Coding):
    """What is known of the targets of rows."""

    def log_likelihood_array(
        self, X: AnyArray, y: AnyArray, *, feature_names: Sequence[Any] | None = None
    ) -> FloatArray:
        """Log s(y|x) of each row, shape (n,), in the target's own units; learns nothing."""
        table = table_of_array(X, feature_names, self._encoder.fields)
        n = len(table.rows)
        targets, novel, refused = self._read_targets(self._array_targets(y, n), n)
        if refused:
            raise refused[min(refused)]
        targets[novel] = np.nan
        scores, _ = self._score(self._raw(table), targets)
        # A class that the model has never met has no probability.
        return np.where(novel, -np.inf, -scores.losses)

    def _predict_rows(self, X: AnyArray, feature_names: Sequence[Any] | None) -> FloatArray:
        """Predictions for rows of X (n, P), (n, Q) or (n, M); learns nothing."""
        return self._predict_table(table_of_array(X, feature_names, self._encoder.fields))

    def _predict_table(self, table: Table) -> FloatArray:
        """Predictions for the rows of a table."""
        scores, _ = self._score(self._raw(table), None)
        return scores.predictions
