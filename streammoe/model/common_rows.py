"""Raw rows of several learners in the coordinates of one: where its columns, levels, outputs and classes are."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence

import numpy as np

from streammoe.engine.recent import Rows
from streammoe.engine.reservoir import Reservoir
from streammoe.model.learner import Learner
from streammoe.types import FloatArray, IntArray

MOST_SUPPORT = 2_000
"""Largest number of rows that are taken from reservoirs, of which each model gives a part as large as its weight."""


def outputs_of(new: Learner, learner: Learner) -> IntArray:
    """Return where a learner has each output of the new one, (Q,); of classes, where the new one has each of its."""
    if learner.targets.are_labels:
        return np.array([new.targets.names.index(name) for name in learner.targets.names], dtype=np.int64)
    if not learner.targets.names:
        return np.arange(learner.targets.n_outputs)
    return np.array([learner.targets.names.index(name) for name in new.targets.names], dtype=np.int64)


def support_of(new: Learner, learners: Sequence[Learner], weights: FloatArray) -> FloatArray:
    """Return raw rows of the new learner from the reservoirs of others, (S, F); none if there is no reservoir.

    Each model gives as large a part as its weight, as far as its reservoir goes.
    """
    found = []
    parts = weights / weights.sum()
    for learner, part in zip(learners, parts, strict=True):
        if learner.context.reservoir is None:
            continue
        X = learner.reservoir_rows().X
        count = min(len(X), int(np.ceil(MOST_SUPPORT * part)))
        rows = X[np.linspace(0, len(X) - 1, count).astype(np.int64)] if count else X[:0]
        found.append(new.encoder.columns.translated(rows, learner.encoder.columns))
    return np.concatenate(found) if found else np.empty((0, len(new.encoder.fields)))


def fill_reservoir(new: Learner, learners: Sequence[Learner], weights: FloatArray, n: int) -> None:
    """Fill the reservoir of a learner, if it keeps one, from those of others, by their weights.

    Without it, models that go on from the result could not be compared again before they have learned much more.
    """
    context = new.context
    if context.reservoir is None:
        return
    sample, chances = reservoir_events(new, learners, weights)
    if not len(sample.X):
        return
    size, seed = context.options.reservoir, context.options.seed
    # A weighted sample without replacement (Efraimidis and Spirakis, Information Processing Letters 97, 2006).
    keys = np.log1p(-np.random.default_rng((seed, n)).random(len(chances))) / chances
    kept = np.sort(np.argsort(-keys, kind="stable")[:size])
    context.reservoir = Reservoir(size, seed, sample.part(kept), n if len(kept) == size else len(kept))


def _of_different_events(sample: Rows, chances: FloatArray, owners: IntArray) -> tuple[Rows, FloatArray]:
    """Return rows of several models with each event once, and how many events each then stands for.

    Models that began from the same one keep the same events. If each of these entered the next sample several times,
    fewer and fewer different ones would be left, as lines of descent die out.

    >>> sample = Rows(np.array([[0.1], [0.7], [0.1], [0.9]]), np.zeros((4, 1)), np.ones(4))
    >>> found, chances = _of_different_events(sample, np.array([5.0, 5.0, 3.0, 3.0]), np.array([0, 0, 1, 1]))
    >>> found.X[:, 0].tolist(), chances.tolist()
    ([0.1, 0.7, 0.9], [8.0, 5.0, 3.0])
    """
    rows = np.column_stack((sample.weights, sample.Y, sample.X))
    rows = np.where(np.isnan(rows), np.nan, rows + 0.0)  # each missing value has the same bytes, and −0 those of 0
    times: Counter[tuple[bytes, int]] = Counter()
    places: dict[tuple[bytes, int], int] = {}
    found: list[int] = []
    totals: list[float] = []
    for at, (row, owner, chance) in enumerate(zip(rows, owners.tolist(), chances.tolist(), strict=True)):
        event = row.tobytes()
        # Equal rows of one model are different events: the first of a model is the first of another one, and so on.
        times[event, owner] += 1
        place = places.setdefault((event, times[event, owner]), len(places))
        if place == len(found):
            found.append(at)
            totals.append(0.0)
        totals[place] += chance
    return sample.part(np.array(found)), np.array(totals)


def events_of(new: Learner, learner: Learner) -> Rows:
    """Return the events in the reservoir of a learner in the coordinates of the new one."""
    X, Y, weights = learner.reservoir_rows()
    if not len(X):  # there may be no reservoir, which does not know the number of targets
        return Rows(np.empty((0, len(new.encoder.fields))), np.empty((0, 1)), weights)
    output = outputs_of(new, learner)
    own = output[Y.astype(np.int64)].astype(np.float64) if new.targets.are_labels else Y[:, output]
    return Rows(new.encoder.columns.translated(X, learner.encoder.columns), own, weights)


def reservoir_events(new: Learner, learners: Sequence[Learner], weights: FloatArray) -> tuple[Rows, FloatArray]:
    """Return the different events of all reservoirs in the coordinates of the new learner, and how many each is for."""
    samples, counts, owners = [], [], []
    for m, (learner, weight) in enumerate(zip(learners, weights, strict=True)):
        if n := len(learner.reservoir_rows().weights):  # else it may have no reservoir at all
            samples.append(events_of(new, learner))
            counts.append(np.full(n, weight / n))
            owners.append(np.full(n, m))
    if not samples:
        return Rows(np.empty((0, 0)), np.empty((0, 0)), np.empty(0)), np.empty(0)
    together = Rows(*(np.concatenate(arrays) for arrays in zip(*samples, strict=True)))
    return _of_different_events(together, np.concatenate(counts), np.concatenate(owners))
