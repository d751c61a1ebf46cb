"""Learning one event."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np

from streammoe.engine.state import UnsoundError
from streammoe.errors import InvalidEvent
from streammoe.estimators.stepping import Stepping
from streammoe.layout import News
from streammoe.model.checks import event_weight
from streammoe.model.undo import poisonous
from streammoe.types import FloatArray
from streammoe.values import not_a_mapping


class LearningOne(Stepping):
    """What `learn_one` of every estimator does, once its target is a row of numbers."""

    def _learn_event(self, x: Mapping[Any, Any], target: FloatArray, w: float, new_label: Any = None) -> None:
        """Learn one event; `new_label` is one that the model has yet to make room for."""
        weight = event_weight(w)
        if not isinstance(x, dict | Mapping):
            raise not_a_mapping(x)
        news = self._encoder.news(x)
        row = self._encoder.row(x, news)
        if weight == 0.0:
            return
        try:
            event = (row, target, news, np.array([weight]), new_label)
            self._guard.call(self, 1, LearningOne._learn_coded_event, *event, shared=False)
        except InvalidEvent as error:
            error.row = None  # an event by itself has no index
            raise
        except UnsoundError as error:
            raise poisonous(error) from None

    def _learn_coded_event(
        self, row: FloatArray, target: FloatArray, news: News, weight: FloatArray, new_label: Any
    ) -> None:
        """Learn one event as a row, unless it is poison."""
        self._take(row, target, news)
        if new_label is not None:
            target = np.array([[self._admit([new_label], 0)]])
        self._learn(row, target, weight)
