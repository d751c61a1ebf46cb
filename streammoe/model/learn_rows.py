"""Learn rows of a stream: each row that cannot be used is rejected individually, and the others are learned."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from typing import Any, NamedTuple

import numpy as np

from streammoe.columns.kinds import ColumnKind
from streammoe.columns.layout import Additions
from streammoe.engine import mixture
from streammoe.engine.state import UnsoundError
from streammoe.errors import InvalidEvent
from streammoe.kernels.state import Trace
from streammoe.model.learner import Learner
from streammoe.model.predicting import score
from streammoe.model.size import excess
from streammoe.model.tables import Events, Table, raw_rows
from streammoe.model.undo import poison_error
from streammoe.types import BoolArray, FloatArray


class Outcome(NamedTuple):
    """The result of `learn_rows`."""

    rejected: dict[int, InvalidEvent]
    """Errors of rejected rows, by index; they did not affect the model."""
    learned: BoolArray
    """(n,) which rows were learned: neither rejected nor without target."""
    targets: FloatArray
    """(n, Q) targets, or (n, 1) class indexes; NaN where there is none."""
    losses: FloatArray
    """(n,) −log s(y|x) before learning, in the target's own units; NaN where rejected or without target."""
    predictions: FloatArray
    """(n, Q) predicted before learning, or (n, M) class probabilities; NaN where rejected."""
    trace: Trace
    """Each expert's part in the rows that were not rejected, in order; empty unless requested."""
    gate: FloatArray
    """(n, K) the mixture's gate at these rows; with a portfolio the trace holds the experts of all members."""
    lags: FloatArray | None = None
    """(n, L) the lags that these rows saw, infinite where missing, in a model that has such features."""


def introduce(
    learner: Learner,
    names: Sequence[Any],
    row: FloatArray,
    targets: Any,
    kinds: Sequence[ColumnKind] | None = None,
    awaited: Sequence[Any] = (),
) -> None:
    """Fix the fields to those of the first event, (1, F) with its target; nothing is learned.

    Raises:
        InvalidEvent: there is no field, a value is out of range, or the label is invalid; nothing was changed.
    """
    if not names:
        raise InvalidEvent("the record has no feature besides its target", reason="no_features")
    target, _, rejected = learner.targets.read(targets, 1)
    if rejected:
        raise rejected[0]
    if problem := excess(learner.context, Additions(tuple(names), kinds=() if kinds is None else tuple(kinds))):
        raise InvalidEvent(problem, reason="too_many_columns")
    trial = learner.context.new_encoder(names, kinds)
    trial.take(trial.columns.with_lags(row), target)
    learner.set_columns(names, kinds, awaited)


def learn_rows(
    learner: Learner, events: Events, additions: Additions, *, traced: bool, lags: FloatArray | None = None
) -> Outcome:
    """Learn rows in the model's own order of fields, and reject those that cannot be used.

    Args:
        learner: the model.
        events: the rows, without lags.
        additions: new fields, which come last; then there is one row, and unless it is learned, they are not added.
        traced: whether to record each expert's part.
        lags: (n, L) lags that rows were predicted with earlier, NaN in those that were not; see `Outcome.lags`.
    """
    fields = learner.encoder.own_fields
    if events.X.shape[1] != len(fields) + len(additions.fields):
        msg = f"X: got {events.X.shape[1]} columns; the model has {len(fields)} fields"
        raise InvalidEvent(msg, reason="wrong_shape")
    events = events._replace(X=learner.encoder.columns.with_lags(events.X, lags))
    seen = _lags_seen(learner, events.X)
    run = partial(learn_wider_run, additions=additions) if additions else learn_run
    pieces = _learn_apart(learner, events, 0, run, traced=traced)
    return seen(_joined(pieces) if len(pieces) > 1 else pieces[0][1])


def score_rows(learner: Learner, table: Table, targets: Any, *, traced: bool) -> Outcome:
    """Score rows as the model is now, and learn nothing; none is rejected, and lags are those of the next event.

    Args:
        learner: the model.
        table: rows whose columns may be others than the model's: those that it lacks are ignored, and those that are
            missing are filled in.
        targets: see `Targets.read`. A label that the model does not know has an infinite loss.
        traced: whether to record each expert's part.
    """
    n = len(table.rows)
    Y, novel, rejected = learner.targets.read(targets, n)
    unknown = novel.copy()
    unknown[list(rejected)] = True
    Y[unknown] = np.nan
    learned = ~np.isnan(Y[:, 0])
    scores, _ = score(learner, learner.context.with_last(raw_rows(table, learner.encoder)), Y, traced=traced)
    losses = np.where(unknown, np.inf, np.where(learned, scores.losses, np.nan))
    return Outcome({}, learned, Y, losses, scores.predictions, scores.trace, scores.gates)


def refused(learner: Learner, X: FloatArray) -> dict[int, InvalidEvent]:
    """Return the errors of rows without targets, (n, F) in the model's own fields, that `learn_rows` would reject."""
    encoder = learner.encoder
    X = encoder.columns.with_lags(X)
    Y = np.full((len(X), 1), np.nan)
    verdicts = encoder.screen(X, Y)
    return {i: encoder.out_of_range(X[i], Y[i], int(verdicts[i])) for i in np.flatnonzero(verdicts >= 0).tolist()}


def _lags_seen(learner: Learner, X: FloatArray) -> Callable[[Outcome], Outcome]:
    """Return what says which lags rows saw, given their outcome; they are learned next."""
    context, columns = learner.context, learner.encoder.columns
    before = context.lags and context.lags.copy()
    inputs = [] if before is None else [columns.index.get(name) for name in before.lags.inputs]

    def seen(outcome: Outcome) -> Outcome:
        if before is None:
            return outcome
        learned = np.where(outcome.learned[:, None], outcome.targets, np.nan)
        return outcome._replace(lags=before.seen(X, learned, inputs))

    return seen


def _learn_apart(
    learner: Learner, events: Events, first: int, run: Callable[..., Outcome], *, traced: bool
) -> list[tuple[int, Outcome]]:
    """Learn rows from number `first` on, and return outcomes of runs; each row that is rejected is a run of its own."""
    n = len(events.X)
    try:
        return [(first, learner.undo.call(learner, n, run, events, traced))]
    except UnsoundError as error:
        if n == 1:
            target, _, _ = learner.targets.read(events.targets, 1)
            return [(first, _none_used(learner, target, {0: poison_error(error)}))]
    middle = n // 2
    pieces = []
    for piece in (slice(0, middle), slice(middle, n)):
        pieces += _learn_apart(learner, events.part(piece), first + piece.start, run, traced=traced)
    return pieces


def learn_run(learner: Learner, events: Events, traced: bool) -> Outcome:
    """Learn rows unless one of them would make a parameter non-finite; a new identifier begins a run."""
    pieces: list[tuple[int, Outcome]] = []
    n, start = len(events.X), 0
    while start < n or not pieces:
        rest = events.part(slice(start, n))
        rest = rest._replace(X=learner.encoder.columns.laid_out(rest.X))
        stop = _until_identified(learner, rest)
        pieces.append((start, _learn_columns(learner, rest.part(slice(0, stop)), traced=traced)))
        learner.identify()
        start += stop
    return _joined(pieces) if len(pieces) > 1 else pieces[0][1]


def _until_identified(learner: Learner, events: Events) -> int:
    """Return how many rows there are up to the first after which there may be an identifier, or more of its means."""
    n, columns = len(events.X), learner.encoder.columns
    if not events.texts or not learner.keeps_all:
        return n
    counts, has_values = events.weights > 0.0, bool(learner.context.level_values)
    found = columns.first_unplaced(events.texts, counts) if has_values else n
    if learner.targets.are_labels and (columns.identifiers or not has_values):
        _, novel, _ = learner.targets.read(events.targets, n)
        found = min(found, int(np.argmax(np.append(novel & counts, True))))
    return min(found + 1, n)


def _learn_columns(learner: Learner, events: Events, *, traced: bool) -> Outcome:
    """Learn rows that change no columns but by new levels; a new label begins a run."""
    pieces: list[tuple[int, Outcome]] = []
    n, counts = len(events.X), events.weights
    start = 0
    while start < n or not pieces:
        Y, novel, rejected = learner.targets.read(events.targets[start:], n - start)
        Y[counts[start:] == 0.0] = np.nan
        ahead = np.flatnonzero(novel & (counts[start:] > 0.0))
        stop = int(ahead[0]) if ahead.size else len(Y)
        rejected = {at: error for at, error in rejected.items() if at < stop}
        run = events.part(slice(start, start + stop))._replace(targets=Y[:stop])
        pieces.append((start, _learn_screened(learner, run, rejected, traced=traced)))
        start += stop
        if ahead.size:
            # A label is added only if its event is learned.
            event = events.part(slice(start, start + 1))
            target = np.zeros((1, Y.shape[1]))
            verdict = int(learner.encoder.screen(event.X, target)[0])
            if verdict < 0:
                outcome = _learn_new_label(learner, event, traced=traced)
            else:
                error = learner.encoder.out_of_range(event.X[0], target[0], verdict)
                outcome = _none_used(learner, target, {0: error})
            pieces.append((start, outcome))
            start += 1
    return _joined(pieces) if len(pieces) > 1 else pieces[0][1]


def _learn_new_label(learner: Learner, event: Events, *, traced: bool) -> Outcome:
    """Make room for the new label of one screened row, and learn it."""
    # The label was unknown when the prediction was made, so it had no probability.
    table = Table(event.X, learner.encoder.fields, event.texts)
    before, _ = score(learner, learner.context.with_last(raw_rows(table, learner.encoder)), None, is_next=True)
    learner.add_levels(event.texts)
    learner.admit(event.targets[0])
    target, _, _ = learner.targets.read(event.targets, 1)
    scores = learner.learn_events(event._replace(targets=target), traced=traced)
    scores.predictions[:] = 0.0
    scores.predictions[:, : before.predictions.shape[1]] = before.predictions
    return _used(target, scores)


def _learn_screened(learner: Learner, events: Events, rejected: dict[int, InvalidEvent], *, traced: bool) -> Outcome:
    """Learn rows whose targets were converted to numbers; skip those in `rejected`."""
    X, Y, encoder = events.X, events.targets, learner.encoder
    numbers, ranged = np.arange(len(X)), learner.context.ranged(Y)
    if rejected:
        numbers = np.delete(numbers, list(rejected))
    verdicts = encoder.screen(X[numbers], ranged[numbers]) if rejected else encoder.screen(X, ranged)
    used = numbers[verdicts < 0]
    if len(used) == len(X) > 0:
        return _used(Y, learner.learn_events(events, traced=traced))
    for at, verdict in zip(numbers.tolist(), verdicts.tolist(), strict=True):
        if verdict >= 0:
            rejected[at] = encoder.out_of_range(X[at], Y[at], verdict)
    if not len(used):
        return _none_used(learner, Y, rejected)
    scores = learner.learn_events(events.part(used), traced=traced)
    learned, losses = np.zeros(len(X), np.bool_), np.full(len(X), np.nan)
    predictions = np.full((len(X), scores.predictions.shape[1]), np.nan)
    learned[used], losses[used], predictions[used] = ~np.isnan(Y[used, 0]), scores.losses, scores.predictions
    return Outcome(rejected, learned, Y, losses, predictions, scores.trace, scores.gates)


def learn_wider_run(learner: Learner, event: Events, traced: bool, additions: Additions) -> Outcome:
    """Learn one event that brings new fields, unless it would make a parameter non-finite."""
    encoder = learner.encoder
    X, texts, targets, weights = event
    names = additions.fields
    Y, novel, rejected = learner.targets.read(targets, 1)
    if rejected or weights[0] == 0.0 or np.isnan(Y[0, 0]):
        known = {name: column for name, column in texts.items() if name not in names}
        return learn_run(learner, event._replace(X=X[:, : len(encoder.fields)], texts=known), traced)
    arrivals = encoder.columns.arrivals({name: texts[name] for name in (*encoder.fields, *names) if name in texts})
    try:
        learner.take(X, Y, additions._replace(levels=arrivals[0][1] if arrivals else ()))
    except InvalidEvent as error:
        return _none_used(learner, Y, {0: error})
    if novel[0]:
        outcome = _learn_new_label(learner, event, traced=traced)
    else:
        outcome = _used(Y, learner.learn_events(event._replace(targets=Y), traced=traced))
    learner.identify()
    return outcome


def _none_used(learner: Learner, Y: FloatArray, rejected: dict[int, InvalidEvent]) -> Outcome:
    n = len(Y)
    nothing = np.full((n, learner.targets.n_outputs), np.nan)
    trace = mixture.NO_TRACE
    return Outcome(rejected, np.zeros(n, np.bool_), Y, np.full(n, np.nan), nothing, trace, trace.shares)


def _used(Y: FloatArray, scores: mixture.Scores) -> Outcome:
    return Outcome({}, ~np.isnan(Y[:, 0]), Y, scores.losses, scores.predictions, scores.trace, scores.gates)


def _joined(pieces: Sequence[tuple[int, Outcome]]) -> Outcome:
    """Join the outcomes of consecutive runs of rows, each with the index of its first row."""
    outcomes = [outcome for _, outcome in pieces]
    scores = mixture.concatenated(
        [mixture.Scores(each.losses, each.predictions, each.trace, gate=each.gate) for each in outcomes]
    )
    rejected = {start + at: error for start, outcome in pieces for at, error in outcome.rejected.items()}
    # Joining has set the probability of classes that were not known yet to 0.
    scores.predictions[list(rejected)] = np.nan
    return Outcome(
        rejected,
        np.concatenate([outcome.learned for outcome in outcomes]),
        np.concatenate([outcome.targets for outcome in outcomes]),
        scores.losses,
        scores.predictions,
        scores.trace,
        scores.gates,
    )
