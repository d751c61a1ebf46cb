"""The processing of a batch: decode, validate, predict, score, learn."""

from __future__ import annotations

import logging
from collections import Counter
from collections.abc import Mapping, Sequence
from contextlib import nullcontext
from itertools import pairwise
from typing import TYPE_CHECKING, Any, NamedTuple, Protocol

import numpy as np

from streammoe.columns.kinds import ColumnKind, described
from streammoe.engine.interruption import FitCancelled, uncancellable
from streammoe.estimators import POISON, MixtureOfExperts, Outcome
from streammoe.kernels.state import Trace
from streammoe.pipeline.decoders import DecodedBatch, Values, decoder, event_of
from streammoe.pipeline.feature_columns import FeatureColumns
from streammoe.pipeline.presence import Presence
from streammoe.pipeline.schema import Schema
from streammoe.pipeline.scores import Scores, Spread
from streammoe.pipeline.writing import PredictionWriter, Written
from streammoe.ports import Batch, DeadLetter, enveloped
from streammoe.types import BoolArray, FloatArray, IntArray

if TYPE_CHECKING:  # it stands on this module
    from streammoe.pipeline.challenger import Challenger

LOGGER = logging.getLogger("streammoe.pipeline")


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


class Rival(Protocol):
    """A model that predicts next to the own one, and learns nothing from the events."""

    @property
    def version(self) -> int:
        """Above 0; rows of predictions name it."""

    @property
    def model(self) -> MixtureOfExperts:
        """For its classes and noise."""

    def score(
        self,
        fields: Sequence[str],
        X: FloatArray,
        targets: Any,
        texts: Mapping[str, Sequence[str | None]],
        *,
        traced: bool,
    ) -> Outcome | None:
        """Do what `MixtureOfExperts.score_rows` does; None if it cannot."""

    def choose(self, own: FloatArray, scored: Outcome) -> BoolArray:
        """Return which of these events it predicts, given the losses of the own model, NaN where nothing was learned.

        It is called once for each event, in order.
        """


class Pipeline:
    """A model that learns batches in order, with its scores and predictions."""

    def __init__(
        self,
        model: MixtureOfExperts,
        schema: Schema,
        scores: Scores,
        predictions: PredictionWriter | None = None,
        *,
        is_pretrained: bool = False,
    ) -> None:
        self.model = model
        self.schema = schema
        self.columns = FeatureColumns(model, schema, is_pretrained=is_pretrained)
        self.scores = scores
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
        self.presence: Presence | None = Presence()
        """Of the features in the events of this run; ``None`` where others follow it."""

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
            self._report(ledger, each)
        if self._is_scored:
            self._scored_from = first + self.scores.every * (self.model.n - first)
        return ledger.to_result()

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
        targets = decoded.Y if decoded.labels is None else decoded.labels
        fields = [*self.model.fields, *added]
        texts = {fields[j]: column for j, column in decoded.texts.items()}
        lags = self._lags(batch, decoded.rows)
        outcome = self.model.learn_rows(
            decoded.X, targets, decoded.weights, texts=texts, traced=self._is_traced, lags=lags, added=added
        )
        used = np.ones(len(decoded.rows), np.bool_)
        used[list(outcome.rejected)] = False
        rival = self._scored_by_rival(fields, decoded.X, targets, texts, outcome, np.flatnonzero(used))
        rows = len(ledger.batch) - len(batch) + decoded.rows
        return LearnedRows(rows, used, outcome, n, classes, decoded.labels, rival)

    def _follow(self, batch: Batch, decoded: DecodedBatch) -> None:
        """Warn of features that have vanished from the events with a target, which come once even if joined."""
        if self.presence is None:
            return
        X, texts, rows = decoded.X, decoded.texts, decoded.rows
        lacks = np.isnan(decoded.Y).any(axis=1)
        if decoded.labels is not None and None in decoded.labels:
            lacks |= np.array([label is None for label in decoded.labels])
        if lacks.any():
            kept = np.flatnonzero(~lacks)
            X, rows = X[kept], rows[kept]
            texts = {j: [column[i] for i in kept.tolist()] for j, column in texts.items()}
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
        if learned.outcome.learned[0]:
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

    def _scored_by_rival(
        self,
        fields: Sequence[str],
        X: FloatArray,
        targets: Any,
        texts: Mapping[str, Sequence[str | None]],
        outcome: Outcome,
        rows: IntArray,
    ) -> tuple[Rival, Outcome] | None:
        """Score those rows that the own model has used, with this outcome, by the rival, if there is one."""
        if self.rival is None:
            return None
        kept = rows.tolist()
        levels = {name: [column[i] for i in kept] for name, column in texts.items()}
        picked = targets[rows] if isinstance(targets, np.ndarray) else [targets[i] for i in kept]
        scored = self.rival.score(fields, X[rows], picked, levels, traced=self._is_traced)
        if scored is None:
            return None
        # What it says of an event that was not learned, such as one without weight, is no loss.
        scored = scored._replace(losses=np.where(np.isnan(outcome.losses[rows]), np.nan, scored.losses))
        return self.rival, scored

    def _report(self, ledger: Ledger, each: LearnedRows) -> None:
        """Score events, write their predictions and count them."""
        rows, used, outcome, n, classes, labels, rival = each
        learned = outcome.learned
        if rival is None:
            by_rival = np.zeros(int(used.sum()), np.bool_)
        else:
            by_rival = rival[0].choose(outcome.losses[used], rival[1])
        served = outcome if rival is None or not by_rival.any() else _served(self.model, outcome, used, rival, by_rival)
        spreads = self._spreads(outcome, used, rival, by_rival)
        self.scores.update(served.losses[learned], served.predictions[learned], outcome.targets[learned], spreads)
        ledger.losses.append(outcome.losses[learned])
        for at, error in outcome.rejected.items():
            stage = "learn" if error.reason == POISON else "validate"
            ledger.reject(int(rows[at]), stage, error.reason, str(error))
        if outcome.lags is not None:
            ledger.lags.update((int(rows[at]), outcome.lags[at]) for at in np.flatnonzero(used & ~learned))
        ledger.learned += int(learned.sum())
        ledger.used += int(used.sum())
        if self.predictions is None or not used.any():
            return
        versions = (n + np.cumsum(learned) - learned)[used]
        used_rows, keys = rows[used], ledger.batch.keys
        own = Written(
            ledger.batch.locations_at(used_rows),
            keys and [keys[i] for i in used_rows.tolist()],
            versions,
            outcome.predictions[used],
            outcome.targets[used],
            None if labels is None else [label for label, use in zip(labels, used, strict=True) if use],
            outcome.losses[used],
            outcome.trace,
            outcome.gate,
        )
        known = None
        if labels is not None:
            met = np.where(learned, outcome.targets[:, 0] + 1, 0).astype(np.int64)
            known = np.maximum.accumulate(np.concatenate([[classes], met[:-1]]))[used]
        for start, stop in pairwise([0, *(np.flatnonzero(np.diff(by_rival)) + 1).tolist(), len(by_rival)]):
            piece, written, model = slice(start, stop), own, self.model
            version = 0 if self.may_have_rival else None
            met_before = known if known is None else known[piece]
            if rival is not None and by_rival[start]:
                scored, model, version = rival[1], rival[0].model, rival[0].version
                written = own._replace(
                    predictions=scored.predictions, losses=scored.losses, trace=scored.trace, gate=scored.gate
                )
                if known is not None:
                    met_before = np.full(stop - start, len(model.output_names))
            self.predictions.write(written.part(piece), model, self.schema.targets, version, met_before)

    def _spreads(
        self, outcome: Outcome, used: BoolArray, rival: tuple[Rival, Outcome] | None, by_rival: BoolArray
    ) -> list[Spread]:
        """Return the distributions that were predicted for the learned events, by whoever predicted each."""
        if not self._is_scored:
            return []
        at = (np.cumsum(used) - 1)[outcome.learned]
        theirs = by_rival[at]
        said = [(~theirs, outcome, self.model.noise)]
        if rival is not None:
            said.append((theirs, rival[1], rival[0].model.noise))
        return [
            Spread(np.flatnonzero(own), Trace(*(part[at[own]] for part in each.trace)), noise)
            for own, each, noise in said
            if each.trace.shares.shape[1]
        ]

    @property
    def _is_traced(self) -> bool:
        """Whether scores, or what is written of predictions, need each expert's part."""
        writer = self.predictions
        is_written = writer is not None and (writer.gate or (writer.interval > 0.0 and not self.model.is_classifier))
        return self._is_scored or is_written


class LearnedRows(NamedTuple):
    """Records that a model has learned or rejected."""

    rows: Any
    """Their indexes in the ledger's batch."""
    used: BoolArray
    """Which of them were not rejected."""
    outcome: Outcome
    n: int
    """Events of the source that the model had learned before."""
    classes: int
    """Classes known before, for a classifier."""
    labels: Sequence[str | None] | None
    rival: tuple[Rival, Outcome] | None
    """What it says of those events that were used."""


class Ledger:
    """The outcome of each record of a batch."""

    def __init__(self, batch: Batch) -> None:
        self.batch = batch
        self.learned = 0
        self.used = 0
        self.losses: list[FloatArray] = []
        self.lags: dict[int, FloatArray] = {}
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

    def to_result(self) -> BatchResult:
        """Return the totals, and the letters in the order of the records wherever the stream was cut."""
        rejected = sorted(self._letters)
        letters = [self._letters[i] for i in rejected]
        bad = np.zeros(len(self.batch), dtype=np.bool_)
        bad[rejected] = True
        outcomes = Counter(
            learned=self.learned,
            predicted_only=self.used - self.learned,
            rejected=len(letters),
            skipped=self.batch.skipped,
        )
        losses = np.concatenate(self.losses) if self.losses else np.zeros(0)
        return BatchResult(outcomes, Counter(letter.reason for letter in letters), letters, bad, losses, self.lags)


def _served(
    model: MixtureOfExperts, outcome: Outcome, used: BoolArray, rival: tuple[Rival, Outcome], by_rival: BoolArray
) -> Outcome:
    """Return the outcome with losses and predictions of the rival where it has predicted, for scores.

    Classes are in the order of the own model; a last column has what the rival gives to classes unknown to it.
    """
    rows = np.flatnonzero(used)[by_rival]
    losses, predictions = outcome.losses.copy(), outcome.predictions.copy()
    scored = rival[1]
    losses[rows], theirs = scored.losses[by_rival], scored.predictions[by_rival]
    if model.is_classifier:
        own_names, names = model.output_names, rival[0].model.output_names
        at = {name: j for j, name in enumerate(own_names)}
        wide = np.zeros((len(predictions), len(own_names) + 1))
        wide[:, : predictions.shape[1]] = predictions
        wide[rows] = 0.0
        for j, name in enumerate(names):
            if name in at:
                wide[rows, at[name]] = theirs[:, j]
            else:
                wide[rows, -1] = np.maximum(wide[rows, -1], theirs[:, j])
        predictions = wide
    else:
        predictions[rows] = theirs
    return outcome._replace(losses=losses, predictions=predictions)
