"""Texts among numbers: levels of categories become codes, and a new one gets its column at its own event."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from streammoe.engine import mm
from streammoe.estimators.stepping import Stepping
from streammoe.model.tables import Events, Table, Texts
from streammoe.types import FloatArray
from streammoe.values import level


class Coding(Stepping):
    """Learns and scores rows whose categories are texts."""

    def _learn_coded(self, events: Events, *, traced: bool = False) -> mm.Scores:
        """Learn screened rows; a new level gets its column at its own event, as in a loop over `learn_one`."""
        X, texts, Y, weights = events
        if not texts:
            return self._learn(X, Y, weights, traced=traced)
        encoder = self._encoder
        X = X.copy()
        cuts = [(0, ()), *encoder.arrivals(texts, ~np.isnan(Y[:, 0]))]
        runs = []
        for at, (start, levels) in enumerate(cuts):
            piece = slice(start, cuts[at + 1][0] if at + 1 < len(cuts) else len(X))
            self._append(levels)
            if piece.start == piece.stop:
                continue
            for name, column in texts.items():
                field = encoder.fields.index(name)
                X[piece, field] = encoder.codes(field, column[piece])
            runs.append(self._learn(X[piece], Y[piece], weights[piece], traced=traced))
        return mm.joined(runs)

    def _bring_levels(self, texts: Texts) -> None:
        """Give the new levels of one learned row their columns, which always come before a new label."""
        for _, levels in self._encoder.arrivals(texts):
            self._append(levels)

    def _raw(self, table: Table) -> FloatArray:
        """Rows in the model's own order, with categories as codes."""
        encoder = self._encoder
        rows, texts = self._ordered(table, encoder.fields)
        for name, column in texts.items():
            if name in encoder.levels:
                field = encoder.fields.index(name)
                rows[:, field] = encoder.codes(field, column)
        return rows

    def _ordered(self, table: Table, fields: Sequence[Any]) -> tuple[FloatArray, dict[Any, Sequence[str | None]]]:
        """Rows in the order of `fields`, and the levels of all categories: a table of numbers holds them as such."""
        rows = table.ordered(fields)
        levels = {
            name: [level(value, name) for value in rows[:, at].tolist()]
            for at, name in enumerate(fields)
            if name not in table.texts and name in self._encoder.categorical and name in table.names
        }
        return rows, {**levels, **table.texts}
