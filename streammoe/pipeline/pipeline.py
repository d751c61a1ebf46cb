"""The processing of a batch: decode, validate, predict, score, learn."""

from __future__ import annotations

import logging
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from contextlib import nullcontext
from dataclasses import dataclass
from itertools import pairwise
from typing import TYPE_CHECKING, Any, NamedTuple, TypeVar

import numpy as np

from streammoe.columns.kinds import ColumnKind, described
from streammoe.engine.interruption import FitCancelled, uncancellable
from streammoe.estimators import POISON, MixtureOfExperts, Outcome
from streammoe.kernels.state import Trace
from streammoe.pipeline.decoders import DecodedBatch, Values, decoder, event_of
from streammoe.pipeline.feature_columns import FeatureColumns
from streammoe.pipeline.presence import Presence
from streammoe.pipeline.schema import Schema
from streammoe.pipeline.scores import Scores, Spread, new_scores
from streammoe.pipeline.writing import PredictionWriter, predicted
from streammoe.ports import Batch, DeadLetter, Predictions, enveloped
from streammoe.types import BoolArray, FloatArray, IntArray

if TYPE_CHECKING:  # it stands on this module
    from streammoe.pipeline.challenger import Challenger

LOGGER = logging.getLogger("streammoe.pipeline")
Item = TypeVar("Item")


class BatchResult(NamedTuple):
    """The outcome of a batch."""

    outcomes: Counter[str]
    """Events by outcome: learned, predicted_only, rejected, skipped, and expired where labels are joined."""
    reasons: Counter[str]
    """Rejected records by reason."""
    letters: list[DeadLetter]
    bad: BoolArray
    """(n,) which records were rejected."""
    losses: FloatArray
    """Prequential losses of the learned events, in order."""
    lags: Mapping[int, FloatArray] = {}
    """The lags that records without a target were predicted with, by index; see `Batch.lags`."""

    @property
    def latest_rejection(self) -> str:
        """Why the last rejected record was; empty if none was."""
        return next((letter.detail for letter in reversed(self.letters) if letter.reason in self.reasons), "")


def joined_results(results: Sequence[BatchResult]) -> BatchResult:
    """Return the outcome of the parts of a batch; their records have no common numbers, so it leaves out the lags."""
    if len(results) == 1:
        return results[0]
    outcomes, reasons = Counter[str](), Counter[str]()
    for each in results:
        outcomes.update(each.outcomes)
        reasons.update(each.reasons)
    return BatchResult(
        outcomes,
        reasons,
        [letter for each in results for letter in each.letters],
        np.concatenate([each.bad for each in results]),
        np.concatenate([each.losses for each in results]),
    )


@dataclass
class Rival:
    """A model that predicts next to the own one, and learns nothing from the events."""

    version: int
    """Above 0; rows of predictions name it."""
    model: MixtureOfExperts
    prefer: Callable[[FloatArray, FloatArray], BoolArray]
    """Returns which events it should predict, by the losses of the own model, NaN where nothing was learned, and its.

    It is called once for each event, in order."""
    failure: str = ""
    """Why it does not predict any more, if it could not score events."""

    def score(self, fields: Sequence[str], X: FloatArray, targets: Any, **how: Any) -> Outcome | None:
        """Do what `MixtureOfExperts.score_rows` does; None if it cannot."""
        if self.failure:
            return None
        try:
            return self.model.score_rows(fields, X, targets, **how)
        except Exception as error:  # noqa: BLE001 - whatever another process has written, learning goes on
            self.failure = f"{type(error).__name__}: {error}"
            return None

    def choose(self, own: FloatArray, scored: Outcome) -> BoolArray:
        """Return which of these events it predicts."""
        chosen = self.prefer(own, scored.losses)
        # Beyond these limits sums of losses would soon be infinite.
        sound = (np.abs(scored.predictions) <= 1e100).all(axis=1)  # false for NaN as well
        if not self.model.is_classifier:
            sound &= ~(scored.losses > 1e200)
        return chosen & sound


class Pipeline:
    """A model that learns batches in order, with its scores and predictions."""

    def __init__(
        self,
        model: MixtureOfExperts,
        schema: Schema,
        scores: Scores | None = None,
        predictions: PredictionWriter | None = None,
        *,
        is_pretrained: bool = False,
    ) -> None:
        self.model = model
        self.schema = schema
        self.columns = FeatureColumns(model, schema, is_pretrained=is_pretrained)
        self.scores = scores or new_scores(model, schema)
        self.predictions = predictions
        self._is_scored = False
        """Whether intervals of the present batch enter the scores."""
        self._scored_from = 0
        """Event from which those of the next batch do; so much later as few of the events should."""
        self.rival: Rival | None = None
        """Another model that may predict; the scores and what is written are those of whoever predicts."""
        self.may_have_rival = False
        """Whether rows of predictions say which model has made them."""
        self.challenger: Challenger | None = None
        """Another model that learns the same batches, and never predicts for others."""
        self.presence = Presence()
        """Of the features in the events of this run."""

    @property
    def may_fit(self) -> bool:
        """Whether a stop may give up the next batch; see `process`."""
        return self.model.may_fit or (self.challenger is not None and self.challenger.pipeline.may_fit)

    def process(self, batch: Batch) -> BatchResult:
        """Learn a batch strictly in order, then let the challenger learn it.

        Raises:
            ConfigError: the records hold none of the columns of a model that was fitted elsewhere.
            FitCancelled: a stop was requested during a fit; everything is as it was before the batch.
            SourceError: a header lacks the target, or has too many columns.
        """
        first = self.model.n
        self._is_scored = self.scores.every > 0 and first >= self._scored_from
        ledger, learned = self.learn(batch)
        for each in learned:
            self._report(batch, each)
        if self._is_scored:
            self._scored_from = first + self.scores.every * (self.model.n - first)
        return ledger.to_result(learned)

    def learn(self, batch: Batch) -> tuple[Ledger, list[LearnedRows]]:
        """Do what `process` does, but neither score nor write predictions; return what became of the records."""
        ledger = Ledger(batch)
        if batch.too_long:
            detail = f"the record exceeds source.max_record_bytes; only its first {len(batch.block)} bytes are kept"
            ledger.reject(0, "decode", "malformed", detail)
            return ledger, []
        if not len(batch):
            if batch.columns is not None:
                decoder(batch.format).require_targets(batch, self.columns.roles({}))
            return ledger, []
        if self.columns.is_pretrained:
            self.columns.compare(batch)
        # Fits after a drift are short: they are not cancelled, and need no copy of the model for each batch.
        before = self.model.learner.snapshot() if self.may_fit else None
        try:
            with uncancellable() if before is None else nullcontext():
                learned = self._learn_all(batch, ledger)
                if self.challenger is not None:
                    self.challenger.learn(batch, learned)
        except FitCancelled:
            if before is not None:
                self.model.learner.restore(before)
            raise
        return ledger, learned

    def _learn_all(self, batch: Batch, ledger: Ledger) -> list[LearnedRows]:
        """Learn a batch of records, changing only the model and the ledger."""
        columns, learned = self.columns, list[LearnedRows]()
        rest = batch if self.model.fields else self.columns.find(batch, ledger.reject)
        unknown = set[str]()
        while True:
            names = columns.new_names(rest)
            decoded = decoder(batch.format).decode(rest, columns.roles(self.model.column_kinds, rest), names)
            unknown |= decoded.unknown
            for i, reason, detail in decoded.rejected:
                ledger.reject(len(batch) - len(rest) + i, "decode", reason, detail)
            if len(decoded.rows):
                self._follow(rest, decoded)
                learned.append(self._teach(rest, decoded, ledger, {}))
            if decoded.first_new is None:
                break
            at, values = decoded.first_new
            learned.append(self._learn_wider(rest, at, values, ledger))
            rest = rest.tail(at + 1)
            if names.late and not columns.new_names(rest).late:
                LOGGER.warning(
                    "%s: there are now %d columns, as many as schema.max_columns allows; later ones are ignored",
                    batch.origin,
                    len(self.model.fields),
                )
        columns.warn_of_unknown(batch.origin, unknown)
        columns.warn_of_not_found(batch)
        return learned

    def _teach(
        self, batch: Batch, decoded: DecodedBatch, ledger: Ledger, added: Mapping[str, ColumnKind]
    ) -> LearnedRows:
        """Learn the decoded events of `batch`, a tail of the ledger's batch; the model lacks the columns `added`."""
        n, classes = self.model.n, len(self.model.output_names)
        fields = [*self.model.fields, *added]
        texts = {fields[j]: column for j, column in decoded.texts.items()}
        X, targets = decoded.X, decoded.Y if decoded.labels is None else decoded.labels
        lags = self._lags(batch, decoded.rows)
        outcome = self.model.learn_rows(
            X, targets, decoded.weights, texts=texts, traced=self._is_traced, lags=lags, added=added
        )
        rows = len(ledger.batch) - len(batch) + decoded.rows
        if outcome.rejected:
            for at, error in outcome.rejected.items():
                stage = "learn" if error.reason == POISON else "validate"
                ledger.reject(int(rows[at]), stage, error.reason, str(error))
            kept = np.delete(np.arange(len(rows)), list(outcome.rejected))
            outcome = outcome._replace(  # trace and gate leave them out already
                learned=outcome.learned[kept],
                targets=outcome.targets[kept],
                losses=outcome.losses[kept],
                predictions=outcome.predictions[kept],
                lags=None if outcome.lags is None else outcome.lags[kept],
            )
            rows, X, texts = rows[kept], X[kept], {name: _picked(column, kept) for name, column in texts.items()}
            targets = _picked(targets, kept) if isinstance(targets, list) else targets[kept]
        learned = LearnedRows(rows, outcome, n, classes, targets if isinstance(targets, list) else None)
        rival = self.rival
        scored = None if rival is None else rival.score(fields, X, targets, texts=texts, traced=self._is_traced)
        if rival is None or scored is None:
            return learned
        # What it says of an event that was not learned, such as one without weight, is no loss.
        scored = scored._replace(losses=np.where(np.isnan(outcome.losses), np.nan, scored.losses))
        return learned._replace(rival=(rival, scored))

    def _follow(self, batch: Batch, decoded: DecodedBatch) -> None:
        """Warn of features that have vanished from the events with a target, which come once even if joined."""
        X, texts, rows = decoded.X, decoded.texts, decoded.rows
        lacks = np.isnan(decoded.Y).any(axis=1)
        if decoded.labels is not None and None in decoded.labels:
            lacks |= np.array([label is None for label in decoded.labels])
        if lacks.any():
            kept = np.flatnonzero(~lacks)
            X, rows = X[kept], rows[kept]
            texts = {j: _picked(column, kept) for j, column in texts.items()}
        columns, place = self.model.learner.encoder.columns, lambda i: batch.location(int(rows[i]))
        levels = ((name, columns.levels[name].keys()) for name in columns.with_columns)
        full = {name: known for name, known in levels if len(known) >= columns.max_levels}  # they take no others
        for message in self.presence.update(self.model.fields, X, texts, full, place):
            LOGGER.warning("%s: %s", batch.origin, message, extra={"event": "column_vanished"})

    def _learn_wider(self, batch: Batch, i: int, values: Values, ledger: Ledger) -> LearnedRows:
        """Learn the i-th record, which has values for new columns."""
        names = sorted(values)
        if self.schema.features is None:
            names = names[: self.schema.max_columns - len(self.model.fields)]
        # Decoding has found a kind for each of them.
        kinds = self.columns.roles({}, batch).first_kinds(names, values)
        roles = self.columns.roles({**self.model.column_kinds, **kinds}, batch)
        decoded = event_of(decoder(batch.format).names(batch, i), roles)._replace(rows=np.array([i]))
        learned = self._teach(batch, decoded, ledger, kinds)
        if learned.outcome.learned.any():
            LOGGER.info("%s: more columns by their first values: %s", batch.origin, described(kinds))
            self.columns.warn_of_values(batch, i, kinds)
        return learned

    def _lags(self, batch: Batch, rows: IntArray) -> FloatArray | None:
        """Return the lags that events were predicted with earlier, (n, L), NaN for those that were not."""
        if not batch.lags:
            return None
        lags = np.full((len(rows), len(next(iter(batch.lags.values())))), np.nan)
        for at, i in enumerate(rows.tolist()):
            if i in batch.lags:
                lags[at] = batch.lags[i]
        return lags

    def _report(self, batch: Batch, each: LearnedRows) -> None:
        """Score events and write their predictions, in runs that one model with the same classes said."""
        rows, own, n, classes, labels, rival = each
        learned = own.learned
        by_rival = np.zeros(len(rows), np.bool_) if rival is None else rival[0].choose(own.losses, rival[1])
        known = np.full(len(rows), classes)
        if labels is not None and self.predictions is not None:
            met = np.where(learned, own.targets[:, 0] + 1, 0)
            known = np.maximum.accumulate(np.concatenate([[classes], met]).astype(np.int64))[:-1]
        versions = n + np.cumsum(learned) - learned
        cuts = np.flatnonzero(np.diff(by_rival) | (np.diff(known) > 0)) + 1
        for start, stop in pairwise(sorted({0, *cuts.tolist(), len(rows)})):
            piece, model, said, version, M = slice(start, stop), self.model, own, 0, int(known[start])
            if rival is not None and by_rival[start]:
                model, said, version = rival[0].model, rival[1], rival[0].version
                M = len(model.output_names)
            trace, predictions = Trace(*(part[piece] for part in said.trace)), said.predictions[piece]
            self._score(model, said.losses[piece], predictions, trace, own.targets[piece], learned[piece])
            if (writer := self.predictions) is None:
                continue
            keys = batch.keys
            writer.write(
                Predictions(
                    locations=batch.locations_at(rows[piece]),
                    keys=keys and _picked(keys, rows[piece]),
                    versions=versions[piece],
                    global_versions=np.full(stop - start, version) if self.may_have_rival else None,
                    targets=own.targets[piece] if labels is None else labels[piece],
                    losses=said.losses[piece],
                    outputs=self.schema.targets,
                    gate=_padded(said.gate[piece], model.options.most_experts) if writer.gate else None,
                    **predicted(model, predictions, trace, writer.interval, M),
                )
            )

    def _score(
        self,
        model: MixtureOfExperts,
        losses: FloatArray,
        predictions: FloatArray,
        trace: Trace,
        targets: FloatArray,
        learned: BoolArray,
    ) -> None:
        """Score what a model has said of events, those of which that were learned."""
        if model.is_classifier and model is not self.model:
            # In the order of the own classes, and last what it gives to one of those that are unknown here.
            names, theirs = self.model.output_names, predictions
            predictions = np.zeros((len(theirs), len(names) + 1))
            for name, column in zip(model.output_names, theirs.T, strict=True):
                at = names.index(name) if name in names else -1
                predictions[:, at] = np.maximum(predictions[:, at], column)
        is_spread = self._is_scored and trace.shares.shape[1]
        spread = Spread(Trace(*(part[learned] for part in trace)), model.noise) if is_spread else None
        self.scores.update(losses[learned], predictions[learned], targets[learned], spread)

    @property
    def _is_traced(self) -> bool:
        """Whether scores, or what is written of predictions, need each expert's part."""
        writer = self.predictions
        is_written = writer is not None and (writer.gate or (writer.interval > 0.0 and not self.model.is_classifier))
        return self._is_scored or is_written


class LearnedRows(NamedTuple):
    """Records that a model has learned, or only predicted."""

    rows: IntArray
    """Their indexes in the ledger's batch."""
    outcome: Outcome
    """Of these."""
    n: int
    """Events of the source that the model had learned before."""
    classes: int
    """Classes known before, for a classifier."""
    labels: list[str | None] | None
    rival: tuple[Rival, Outcome] | None = None
    """What it says of these events."""


class Ledger:
    """The outcome of each record of a batch."""

    def __init__(self, batch: Batch) -> None:
        self.batch = batch
        self._letters: dict[int, DeadLetter] = {}

    def reject(self, i: int, stage: str, reason: str, detail: str) -> None:
        """Reject the i-th record; its letter has key and headers."""
        batch, how = self.batch, dict[str, Any]()
        if i in batch.unreadable:
            stage, (reason, detail, record) = "decode", batch.unreadable[i]
        else:
            record = batch.record(i)
            if batch.table is not None:  # see `Batch.record`
                how = {"format": "jsonl"}
            elif not batch.too_long:
                how = {"format": batch.format, "columns": batch.columns}
                if batch.format == "csv":
                    how["delimiter"] = None if batch.delimiter == "," else batch.delimiter
                    how["decimal"] = None if batch.decimal == "." else batch.decimal
        letter = DeadLetter(batch.location(i), stage, reason, detail, record, **how)
        key = None if batch.keys is None else batch.keys[i]
        headers = None if batch.headers is None else batch.headers[i]
        self._letters[i] = enveloped(letter, key, headers)

    def to_result(self, used: Sequence[LearnedRows]) -> BatchResult:
        """Return the totals, and the letters in the order of the records wherever the stream was cut.

        Args:
            used: the other records.
        """
        rejected = sorted(self._letters)
        letters = [self._letters[i] for i in rejected]
        bad = np.zeros(len(self.batch), dtype=np.bool_)
        bad[rejected] = True
        losses = np.concatenate([np.zeros(0), *(each.outcome.losses[each.outcome.learned] for each in used)])
        lags: dict[int, FloatArray] = {}
        for rows, outcome, *_ in used:
            if outcome.lags is not None:
                lags |= {int(rows[at]): outcome.lags[at] for at in np.flatnonzero(~outcome.learned)}
        outcomes = Counter(
            learned=len(losses),
            predicted_only=sum(len(each.rows) for each in used) - len(losses),
            rejected=len(letters),
            skipped=self.batch.skipped,
        )
        return BatchResult(outcomes, Counter(letter.reason for letter in letters), letters, bad, losses, lags)


def _picked(values: Sequence[Item], at: IntArray) -> list[Item]:
    return [values[i] for i in at.tolist()]


def _padded(values: FloatArray, size: int) -> FloatArray:
    """Pad (n, K) values of experts with zeros for those that exist only after the warm-up, up to so many.

    So a row does not depend on whether its batch ended the warm-up.
    """
    return np.pad(values, ((0, 0), (0, max(size - values.shape[1], 0))))
