"""Learning rows of a stream: those that are no good are refused, each by itself, and the others are learned."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np

from streammoe.engine import mm
from streammoe.engine.state import UnsoundError
from streammoe.errors import InvalidEvent
from streammoe.estimators.coding import Coding
from streammoe.kernels.state import Trace
from streammoe.layout import News
from streammoe.model.tables import Events, Table
from streammoe.model.undo import poisonous
from streammoe.types import BoolArray, FloatArray


class Outcome(NamedTuple):
    """What became of rows given to `learn_rows`."""

    refused: dict[int, InvalidEvent]
    """Why a row was refused, by its index; it left no trace."""
    learned: BoolArray
    """(n,) which rows were learned: neither refused nor without target."""
    targets: FloatArray
    """(n, Q) targets, or (n, 1) class indexes; NaN where there is none."""
    losses: FloatArray
    """(n,) −log s(y|x) before learning, in the target's own units; NaN where refused or without target."""
    predictions: FloatArray
    """(n, Q) predicted before learning, or (n, M) class probabilities; NaN where refused."""
    trace: Trace
    """What each expert said about the rows that were not refused, in order; empty unless asked for."""


class LearningRows(Coding):
    """What a daemon learns by."""

    def introduce(self, names: Sequence[Any], row: FloatArray, targets: Any) -> None:
        """Fix the fields to those of the first event, (1, F) with its target, unless it is no good; learn nothing.

        Raises:
            InvalidEvent: there is no field, a value is out of range, or the label is no good; nothing was changed.
        """
        if not names:
            raise InvalidEvent("the record has no feature beside its target", reason="no_features")
        target, _, refused = self._read_targets(targets, 1)
        if refused:
            raise refused[0]
        if problem := self._excess(News(tuple(names))):
            raise InvalidEvent(problem, reason="too_many_columns")
        trial = self._new_encoder(names)
        trial.take(row, target)
        self.set_columns(names)

    def learn_rows(
        self,
        X: FloatArray,
        targets: Any,
        weights: FloatArray | None = None,
        *,
        texts: Mapping[Any, Sequence[str | None]] | None = None,
        traced: bool = False,
    ) -> Outcome:
        """Learn rows in the model's own field order, refusing those that are no good and going on.

        Args:
            X: (n, F) in the order of `fields`; NaN is a missing value, infinities are out of range.
            targets: (n, Q), NaN for an event without target, or (n,) labels and None; such an event is predicted and
                not learned.
            weights: (n,) in [0, 1e6]; an event of weight 0 is not learned.
            texts: (n,) levels of each categorical field by its name, None where missing; X holds nothing of them.
            traced: whether to keep what each expert said.
        """
        if X.shape[1] != len(self._encoder.fields):
            msg = f"X: got {X.shape[1]} columns; the model has {len(self._encoder.fields)} fields"
            raise InvalidEvent(msg, reason="wrong_shape")
        counts = np.ones(len(X)) if weights is None else weights
        pieces = self._learn_apart(Events(X, texts or {}, targets, counts), 0, traced=traced)
        return _joined(pieces) if len(pieces) > 1 else pieces[0][1]

    def _learn_apart(self, events: Events, first: int, *, traced: bool) -> list[tuple[int, Outcome]]:
        """Outcomes of runs of rows, from number `first` on: rows that are poison are each a run of their own."""
        n = len(events.X)
        try:
            return [(first, self._guard.call(self, n, LearningRows._learn_run, events, traced))]
        except UnsoundError as error:
            if n == 1:
                target, _, _ = self._read_targets(events.targets, 1)
                return [(first, self._none_used(target, {0: poisonous(error)}))]
        middle = n // 2
        pieces = []
        for piece in (slice(0, middle), slice(middle, n)):
            pieces += self._learn_apart(events.part(piece), first + piece.start, traced=traced)
        return pieces

    def _learn_run(self, events: Events, traced: bool) -> Outcome:
        """Learn rows as `learn_rows` does, unless one of them is poison."""
        pieces: list[tuple[int, Outcome]] = []
        n, counts = len(events.X), events.weights
        start = 0
        while start < n or not pieces:
            Y, novel, refused = self._read_targets(events.targets[start:], n - start)
            Y[counts[start:] == 0.0] = np.nan
            ahead = np.flatnonzero(novel & (counts[start:] > 0.0))
            stop = int(ahead[0]) if ahead.size else len(Y)
            refused = {at: error for at, error in refused.items() if at < stop}
            run = events.part(slice(start, start + stop))._replace(targets=Y[:stop])
            pieces.append((start, self._learn_screened(run, refused, traced=traced)))
            start += stop
            if ahead.size:
                # A label is only taken in with an event that is.
                event = events.part(slice(start, start + 1))
                target = np.zeros((1, Y.shape[1]))
                verdict = int(self._encoder.screen(event.X, target)[0])
                if verdict < 0:
                    outcome = self._meet(event, traced=traced)
                else:
                    error = self._encoder.out_of_range(event.X[0], target[0], verdict)
                    outcome = self._none_used(target, {0: error})
                pieces.append((start, outcome))
                start += 1
        return _joined(pieces) if len(pieces) > 1 else pieces[0][1]

    def _meet(self, event: Events, *, traced: bool) -> Outcome:
        """Make room for the new label of one screened row, and learn it."""
        # What was predicted knew nothing of the label, so it had no probability.
        before, _ = self._score(self._raw(Table(event.X, self.fields, event.texts)), None)
        self._bring_levels(event.texts)
        self._admit(event.targets, 0)
        target, _, _ = self._read_targets(event.targets, 1)
        scores = self._learn_coded(event._replace(targets=target), traced=traced)
        scores.predictions[:] = 0.0
        scores.predictions[:, : before.predictions.shape[1]] = before.predictions
        return _used(target, scores)

    def _learn_screened(self, events: Events, refused: dict[int, InvalidEvent], *, traced: bool) -> Outcome:
        """Rows whose targets are numbers by now; `refused` holds those that are not to be looked at."""
        X, Y = events.X, events.targets
        asked = np.ones(len(X), np.bool_)
        asked[list(refused)] = False
        verdicts = np.full(len(X), -1, dtype=np.int64)
        ranged = self._ranged(Y)
        verdicts[asked] = (
            self._encoder.screen(X, ranged) if asked.all() else self._encoder.screen(X[asked], ranged[asked])
        )
        used = asked & (verdicts < 0)
        for at in np.flatnonzero(verdicts >= 0):
            refused[int(at)] = self._encoder.out_of_range(X[at], Y[at], int(verdicts[at]))
        if not used.any():
            return self._none_used(Y, refused)
        if used.all():
            return _used(Y, self._learn_coded(events, traced=traced))
        scores = self._learn_coded(events.chosen(np.flatnonzero(used)), traced=traced)
        losses = np.full(len(X), np.nan)
        predictions = np.full((len(X), scores.predictions.shape[1]), np.nan)
        losses[used], predictions[used] = scores.losses, scores.predictions
        return Outcome(refused, used & ~np.isnan(Y[:, 0]), Y, losses, predictions, scores.trace)

    def _none_used(self, Y: FloatArray, refused: dict[int, InvalidEvent]) -> Outcome:
        n = len(Y)
        nothing = np.full((n, self._n_outputs), np.nan)
        return Outcome(refused, np.zeros(n, np.bool_), Y, np.full(n, np.nan), nothing, mm.no_trace())

    def learn_wider(
        self,
        names: Sequence[Any],
        X: FloatArray,
        targets: Any,
        weights: FloatArray,
        *,
        texts: Mapping[Any, Sequence[str | None]],
        traced: bool = False,
    ) -> Outcome:
        """Learn one event that brings new fields; if it is not learned, they are not taken up.

        Args:
            names: of the new fields, in order.
            X: (1, F + new).
            targets, weights, texts, traced: as in `learn_rows`.
        """
        try:
            event = Events(X, texts, targets, weights)
            outcome = self._guard.call(self, 1, LearningRows._learn_wider, names, event, traced)
        except UnsoundError as error:
            target, _, _ = self._read_targets(targets, 1)
            return self._none_used(target, {0: poisonous(error)})
        return outcome

    def _learn_wider(self, names: Sequence[Any], event: Events, traced: bool) -> Outcome:
        """The same, unless it is poison."""
        encoder = self._encoder
        X, texts, targets, weights = event
        Y, novel, refused = self._read_targets(targets, 1)
        if refused or weights[0] == 0.0 or np.isnan(Y[0, 0]):
            known = {name: column for name, column in texts.items() if name not in names}
            return self._learn_run(event._replace(X=X[:, : len(encoder.fields)], texts=known), traced)
        arrivals = encoder.arrivals({name: texts[name] for name in (*encoder.fields, *names) if name in texts})
        try:
            self._take(X, Y, News(tuple(names), arrivals[0][1] if arrivals else ()))
        except InvalidEvent as error:
            return self._none_used(Y, {0: error})
        if novel[0]:
            return self._meet(event, traced=traced)
        return _used(Y, self._learn_coded(event._replace(targets=Y), traced=traced))


def _used(Y: FloatArray, scores: mm.Scores) -> Outcome:
    return Outcome({}, ~np.isnan(Y[:, 0]), Y, *scores)


def _joined(pieces: Sequence[tuple[int, Outcome]]) -> Outcome:
    """The outcome of consecutive runs of rows, each with the index of its first row."""
    outcomes = [outcome for _, outcome in pieces]
    scores = mm.joined([mm.Scores(*outcome[3:]) for outcome in outcomes])
    refused = {start + at: error for start, outcome in pieces for at, error in outcome.refused.items()}
    # Where a class was not known yet, joining has put a probability of 0.
    scores.predictions[list(refused)] = np.nan
    return Outcome(
        refused,
        np.concatenate([outcome.learned for outcome in outcomes]),
        np.concatenate([outcome.targets for outcome in outcomes]),
        *scores,
    )
