"""The processing of a batch: decode, validate, predict, score, learn."""

from __future__ import annotations

import json
import logging
import re
import sys
from collections import Counter
from collections.abc import Collection, Iterable, Mapping, Sequence
from contextlib import suppress
from itertools import pairwise
from typing import Any, NamedTuple, Protocol

import numpy as np

from streammoe.columns import ColumnKind, Fixed, described, not_found
from streammoe.engine.interruption import FitCancelled
from streammoe.errors import ConfigError, InvalidEvent, SourceError
from streammoe.estimators import POISON, MixtureOfExperts, Outcome
from streammoe.notation import (
    EVERY,
    ISO,
    NUMBER,
    CommaText,
    Notations,
    formats_besides_seconds,
    formats_of,
    in_thousands,
)
from streammoe.pipeline.decoders import DecodedBatch, FieldRoles, Row, Values, decoder, require_targets, to_row
from streammoe.pipeline.decoders.values import time_advice
from streammoe.pipeline.presence import Presence
from streammoe.pipeline.scores import Scores
from streammoe.pipeline.writing import PredictionWriter, Written
from streammoe.ports import INDEX_NAMES, Batch, DeadLetter, enveloped
from streammoe.text import cut, shown, some_of
from streammoe.types import BoolArray, FloatArray, IntArray

LOGGER = logging.getLogger("streammoe.pipeline")
MAX_WARNED_FIELDS = 100
"""Maximum number of ignored fields to warn of; a producer that makes up names must fill neither memory nor log."""


_SETTINGS = {"lagged": "model.lags.inputs"}
"""The setting that names columns of `Schema`, where it is not one of ``schema`` with the same name."""
SETTLED_AT = 100
"""Number of records after which a name in the settings that none of them had is noticed."""
_CODE = re.compile(r"[ \t]*0[0-9]+[ \t]*")


class Schema(NamedTuple):
    """The role of each field of a record."""

    targets: tuple[str, ...]
    features: tuple[str, ...] | None = None
    """``None`` for every field of the first good record that has no other role."""
    ignore: tuple[str, ...] = ()
    weight: str | None = None
    categorical: frozenset[str] = frozenset()
    timestamps: frozenset[str] = frozenset()
    numeric: frozenset[str] = frozenset()
    """Columns that hold numbers."""
    lagged: frozenset[str] = frozenset()
    """Columns whose earlier values are features, and which hold numbers too; of others the first value decides."""
    notations: Notations = Notations()
    """How values are written."""
    late_columns: bool = False
    max_columns: int = 256
    """Maximum number of features where records name their fields: a first record with more is rejected, and late
    columns join up to this number."""

    @property
    def fixed(self) -> Fixed:
        """Columns whose kind settings fix."""
        return Fixed(self.categorical, self.timestamps, self.numeric, self.lagged)

    @property
    def others(self) -> set[str]:
        """Fields that are never features."""
        return {*self.targets, *self.ignore, *((self.weight,) if self.weight else ())}


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
        self._is_pretrained = is_pretrained
        """Whether the model was fitted elsewhere and its columns have not been compared with a record yet."""
        self.schema = schema
        self.scores = scores
        self.predictions = predictions
        self.rival: Rival | None = None
        """Another model that may predict; the scores and what is written are those of whoever predicts."""
        self.may_have_rival = False
        """Whether rows of predictions say which model has made them."""
        self.presence: Presence | None = Presence()
        """Of the features in the events of this run; ``None`` where others follow it."""
        self._unknown: set[str] = set()
        self._unsettled = SETTLED_AT
        """Number of records to examine for names in the settings."""
        self._seen = {*model.fields, *model.awaited} if model.n else set[str]()
        """Those of these names that they, or records of earlier runs, had so far."""

    def process(self, batch: Batch) -> BatchResult:
        """Learn a batch strictly in order.

        Raises:
            ConfigError: the records hold none of the columns of a model that was fitted elsewhere.
            FitCancelled: a stop was requested during a fit; everything is as it was before the batch.
            SourceError: a header lacks the target, or has too many columns.
        """
        ledger = _Ledger(batch)
        if batch.too_long:
            detail = f"the record exceeds source.max_record_bytes; only its first {len(batch.block)} bytes are kept"
            ledger.reject(0, "decode", "malformed", detail)
            return ledger.to_result()
        if not len(batch):
            if batch.columns is not None:
                require_targets(batch.origin, batch.columns, self._roles({}))
            return ledger.to_result()
        if self._is_pretrained:
            self._compare_columns(batch)
        # Only a warm-up ends in a fit that can be cancelled.
        before = self.model.learner.snapshot() if self.model.is_warming_up else None
        try:
            learned = self._learn_all(batch, ledger)
        except FitCancelled:
            if before is not None:
                self.model.learner.restore(before)
            raise
        for each in learned:
            self._report(ledger, each)
        return ledger.to_result()

    def _learn_all(self, batch: Batch, ledger: _Ledger) -> list[_LearnedRows]:
        """Learn a batch of records, changing only the model and the ledger."""
        learned: list[_LearnedRows] = []
        rest = batch if self.model.fields else self._find_columns(batch, ledger)
        while True:
            ignored = self.schema.others | self._left_out(rest) if self._takes_columns() else None
            decoded = decoder(batch.format).decode(
                rest, self._roles(self.model.column_kinds, rest), ignored, self._awaited()
            )
            learned += self._learn(rest, decoded, ledger)
            if decoded.first_new is None:
                break
            at, values = decoded.first_new
            learned.append(self._learn_wider(rest, at, values, ledger))
            rest = rest.tail(at + 1)
            if ignored is not None and not self._takes_columns():
                LOGGER.warning(
                    "%s: there are now %d columns, as many as schema.max_columns allows; later ones are ignored",
                    batch.origin,
                    len(self.model.fields),
                )
        if ignored is None:
            self._warn_of_unknown(batch)
        if self._unsettled:
            self._warn_of_not_found(batch)
        return learned

    def _learn(self, batch: Batch, decoded: DecodedBatch, ledger: _Ledger) -> list[_LearnedRows]:
        """Learn the decoded events of `batch`, a tail of the ledger's batch."""
        first = len(ledger.batch) - len(batch)
        for i, reason, detail in decoded.rejected:
            ledger.reject(first + i, "decode", reason, detail)
        if not len(decoded.rows):
            return []
        fields = self.model.fields
        self._follow(batch, decoded)
        before = self._before()
        targets = decoded.Y if decoded.labels is None else decoded.labels
        outcome = self.model.learn_rows(
            decoded.X,
            targets,
            decoded.weights,
            texts={fields[j]: texts for j, texts in decoded.texts.items()},
            traced=self._is_traced,
            lags=self._lags(batch, decoded.rows),
        )
        rival = self._scored_by_rival(fields, decoded.X, targets, decoded.texts, outcome)
        return [_LearnedRows(first + decoded.rows, outcome, before, decoded.labels, rival)]

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
        for message in self.presence.update(self.model.fields, X, texts, lambda i: batch.location(int(rows[i]))):
            LOGGER.warning("%s: %s", batch.origin, message)

    def _learn_wider(self, batch: Batch, i: int, values: Values, ledger: _Ledger) -> _LearnedRows:
        """Learn the i-th record, which has values for new columns."""
        names = sorted(values)
        if self.schema.features is None:
            names = names[: self.schema.max_columns - len(self.model.fields)]
        fields = [*self.model.fields, *names]
        decode, text = decoder(batch.format), _is_text(batch)
        # Decoding has found a kind for each of them.
        roles = self._roles({}, batch)
        kinds = {name: kind for name in names if (kind := roles.first_kind(name, values[name], text=text))}
        row = to_row(decode.names(batch, i), self._roles({**self.model.column_kinds, **kinds}), text=text)
        before = self._before()
        targets, texts = self._targets(row), {j: [level] for j, level in row.texts.items()}
        outcome = self.model.learn_wider(
            names,
            np.array([row.x]),
            targets,
            np.array([row.weight]),
            texts={fields[j]: levels for j, levels in texts.items()},
            kinds=[kinds[name] for name in names],
            traced=self._is_traced,
            lags=self._lags(batch, np.array([i])),
        )
        if outcome.learned[0]:
            LOGGER.info("%s: more columns by their first values: %s", batch.origin, described(kinds))
            self._warn_of_values(batch, i, kinds)
        labels = [row.label] if self._is_classifier else None
        at = len(ledger.batch) - len(batch) + i
        rival = self._scored_by_rival(fields, np.array([row.x]), targets, texts, outcome)
        return _LearnedRows(np.array([at]), outcome, before, labels, rival)

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
        texts: Mapping[int, Sequence[str | None]],
        outcome: Outcome,
    ) -> _RivalRows | None:
        """Score those events of `outcome` that were used by the rival, if there is one.

        Args:
            fields: names of the columns of `X`.
            X: (n, F).
            targets: (n, Q) numbers or n labels.
            texts: levels of categories by the index of their field.
            outcome: of the own model.
        """
        if self.rival is None:
            return None
        used = np.ones(len(X), np.bool_)
        used[list(outcome.rejected)] = False
        rows = np.flatnonzero(used)
        kept = rows.tolist()
        levels = {fields[j]: [column[i] for i in kept] for j, column in texts.items()}
        picked = targets[rows] if isinstance(targets, np.ndarray) else [targets[i] for i in kept]
        scored = self.rival.score(fields, X[rows], picked, levels, traced=self._is_traced)
        if scored is None:
            return None
        # What it says of an event that was not learned, such as one without weight, is no loss.
        scored = scored._replace(losses=np.where(np.isnan(outcome.losses[rows]), np.nan, scored.losses))
        return _RivalRows(self.rival, scored)

    def _report(self, ledger: _Ledger, each: _LearnedRows) -> None:
        """Score events, write their predictions and count them."""
        rows, outcome, before, labels, rival = each
        learned = outcome.learned
        used = np.ones(len(rows), np.bool_)
        used[list(outcome.rejected)] = False
        if rival is None:
            by_rival = np.zeros(int(used.sum()), np.bool_)
        else:
            by_rival = rival.rival.choose(outcome.losses[used], rival.outcome)
        served = outcome if rival is None or not by_rival.any() else _served(self.model, outcome, used, rival, by_rival)
        self.scores.update(served.losses[learned], served.predictions[learned], outcome.targets[learned])
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
        versions = (before.n + np.cumsum(learned) - learned)[used]
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
            known = np.maximum.accumulate(np.concatenate([[before.classes], met[:-1]]))[used]
        for start, stop in pairwise([0, *(np.flatnonzero(np.diff(by_rival)) + 1).tolist(), len(by_rival)]):
            piece, written, model = slice(start, stop), own, self.model
            version = 0 if self.may_have_rival else None
            met_before = known if known is None else known[piece]
            if rival is not None and by_rival[start]:
                scored, model, version = rival.outcome, rival.rival.model, rival.rival.version
                written = own._replace(
                    predictions=scored.predictions, losses=scored.losses, trace=scored.trace, gate=scored.gate
                )
                if known is not None:
                    met_before = np.full(stop - start, len(model.output_names))
            self.predictions.write(written.part(piece), model, self.schema.targets, version, met_before)

    @property
    def _is_traced(self) -> bool:
        """Whether what is written of predictions needs each expert's part."""
        writer = self.predictions
        return writer is not None and (writer.gate or (writer.interval > 0.0 and not self._is_classifier))

    def _before(self) -> _ModelBefore:
        return _ModelBefore(self.model.n, len(self.model.output_names))

    # -- Fields ----------------------------------------------------------------------------------------------------

    def _takes_columns(self) -> bool:
        """Whether late columns still join."""
        return self.schema.late_columns and len(self.model.fields) < self.schema.max_columns

    @property
    def _is_classifier(self) -> bool:
        return self.model.is_classifier

    def _awaited(self) -> frozenset[str]:
        """Return the columns that join with their first value."""
        is_full = self.schema.features is None and len(self.model.fields) >= self.schema.max_columns
        return frozenset() if is_full else frozenset(self.model.awaited)

    def roles(self) -> FieldRoles:
        """Return what to read from records as the model is now."""
        return self._roles(self.model.column_kinds)

    def _roles(self, kinds: Mapping[str, ColumnKind], batch: Batch | None = None) -> FieldRoles:
        """Return what to read from records with these features, in order, and from a batch for new columns."""
        schema = self.schema
        return FieldRoles(
            tuple(kinds),
            () if self._is_classifier else schema.targets,
            schema.targets[0] if self._is_classifier else None,
            schema.weight,
            schema.categorical.union(name for name, kind in kinds.items() if kind == "category"),
            schema.timestamps.union(name for name, kind in kinds.items() if kind == "time"),
            schema.numeric,
            schema.lagged,
            schema.notations,
            frozenset() if batch is None else batch.categorical,
        )

    def _targets(self, row: Row) -> FloatArray | list[str | None]:
        return [row.label] if self._is_classifier else np.array([row.y])

    def _left_out(self, batch: Batch) -> set[str]:
        """Return the index of a data frame, which is no feature unless a setting names it or the model has learned it.

        A setting that ignores it anyway is not counted.
        """
        fixed = set[str]().union(*self.schema.fixed)
        return {*batch.index, *INDEX_NAMES}.difference(self.schema.others, fixed, self.model.fields, self.model.awaited)

    def _compare_columns(self, batch: Batch) -> None:
        """Compare the columns of the first readable record with those that the model was fitted to."""
        for i in range(len(batch)):
            try:
                names = decoder(batch.format).names(batch, i).keys()
            except InvalidEvent:
                continue
            self._is_pretrained = False
            fields = set(self.model.fields)
            missing = ", ".join(map(repr, sorted(fields - names)))
            if fields.isdisjoint(names):
                raise ConfigError(
                    f"{batch.origin}: has none of the initial model's features ({missing}) but "
                    f"{', '.join(map(repr, sorted(names - self.schema.others)))}; rename the columns, or start from "
                    "another model (a daemon needs --fresh for that)"
                )
            if missing:
                LOGGER.warning("%s: features of the initial model are missing: %s", batch.origin, missing)
            return

    def _warn_of_unknown(self, batch: Batch) -> None:
        """Warn once of each field that is ignored."""
        if self.schema.features is not None or len(self._unknown) >= MAX_WARNED_FIELDS or not self.model.fields:
            return
        known = {*self.model.fields, *self.model.awaited, *self.schema.others, *self._unknown, *self._left_out(batch)}
        unknown = sorted(decoder(batch.format).names_beyond(batch, known, MAX_WARNED_FIELDS - len(self._unknown)))
        if unknown:
            self._unknown.update(unknown)
            LOGGER.warning(
                "%s: ignoring %s, which the first good record did not have; set schema.late_columns = true to add them",
                batch.origin,
                some_of(unknown),
            )

    def _warn_of_not_found(self, batch: Batch) -> None:
        """Warn once of names in the settings that none of the first records has; a header decides at once."""
        schema, decode = self.schema, decoder(batch.format)
        named: Mapping[str, Collection[str]] = {
            "features": schema.features or (),
            "ignore": schema.ignore,
            "weight": (schema.weight,) if schema.weight else (),
            **schema.fixed._asdict(),
            "missing": schema.notations.missing.keys() - {EVERY},
        }
        every = set[str]().union(*named.values()) - self._seen
        names: Collection[str] = ()
        if batch.format == "jsonl":
            for i in range(len(batch) if every else 0):
                with suppress(InvalidEvent):
                    names = decode.names(batch, i).keys()
                    self._seen |= every & names
                    # Half of an event, which waits for its label, may lack what comes with that.
                    self._unsettled -= schema.targets[0] in names
                if not self._unsettled:
                    break
        else:
            names = decode.names_beyond(batch, (), sys.maxsize)
            self._seen |= every & names
            self._unsettled = 0
        found = {_SETTINGS.get(name, f"schema.{name}"): set(each) - self._seen for name, each in named.items()}
        unseen = {name: each for name, each in found.items() if each}
        if self._unsettled and unseen:
            return
        self._unsettled = 0
        if unseen:
            columns = {*self.model.fields, *names}.difference(*unseen.values())
            LOGGER.warning("%s: %s", batch.origin, not_found(unseen, sorted(columns)))

    def check_header(self, batch: Batch) -> None:
        """Check the columns of a source before they shape the model; records of JSON have none in common.

        Raises:
            SourceError: the target is not among them, there are too many, or one is of a type that is no feature.
        """
        others = self.schema.others | self._left_out(batch)
        self._require_types(batch, others)
        decoder(batch.format).decode(batch.tail(len(batch)), self._roles({}))
        columns = batch.columns if self.schema.features is None else None
        if columns is not None and (problem := self._describe_excess(set(filter(None, columns)) - others)):
            raise SourceError(f"{batch.origin} has {problem}")

    def _find_columns(self, batch: Batch, ledger: _Ledger) -> Batch:
        """Take the columns from the first good record, and return the rest of the batch from that record on.

        Its values decide what columns hold whose kind no setting fixes; those without a value there are awaited. All
        records before it are rejected and leave no trace in the model. Going record by record makes the result
        independent of where the stream was cut.
        """
        features = self.schema.features
        others = self.schema.others | self._left_out(batch)
        self.check_header(batch)
        fixed = {name: kind for name in features or () if (kind := self.schema.fixed.kind(name))}
        if features is not None and len(fixed) == len(features):
            self.model.set_columns(sorted(features))
            self._warn_of_values(batch, 0, fixed)
            return batch
        decode, text = decoder(batch.format), _is_text(batch)
        for i in range(len(batch)):
            stage = "decode"
            try:
                values = decode.names(batch, i)
                columns = sorted(values.keys() - others if features is None else features)
                if features is None and (problem := self._describe_excess(columns)):
                    raise InvalidEvent(f"the record has {problem}", reason="too_many_columns")
                roles = self._roles({}, batch)
                kinds = {
                    name: kind
                    for name in columns
                    if (kind := roles.first_kind(name, values.get(name), text=text)) is not None
                }
                row = to_row(values, self._roles(kinds), text=text)
                stage = "validate"
                self.model.introduce(
                    list(kinds),
                    np.array([row.x]),
                    self._targets(row),
                    kinds=list(kinds.values()),
                    awaited=[name for name in columns if name not in kinds],
                )
            except InvalidEvent as error:
                ledger.reject(i, stage, error.reason, str(self._roles({}).explained(error)))
            else:
                LOGGER.info("%s: columns by their first values: %s", batch.origin, described(kinds))
                self._warn_of_values(batch, i, kinds)
                if features is None and (index := sorted(self._left_out(batch) & values.keys())):
                    LOGGER.warning(
                        "%s: leaving out %s, the index of a data frame as pandas writes it (a first column without a "
                        "name is %r); to learn from it, name it in schema.numeric, schema.categorical or "
                        "schema.timestamps",
                        batch.origin,
                        some_of(index),
                        INDEX_NAMES[0],
                    )
                return batch.tail(i)
        return batch.tail(len(batch))

    def _warn_of_values(self, batch: Batch, i: int, kinds: Mapping[str, ColumnKind]) -> None:
        """Warn of columns whose values in the first records, from the i-th on, may mean something else than is read."""
        # With the first columns come the other numbers of a record.
        others = () if self.model.n else (*self._roles({}).targets, *filter(None, [self.schema.weight]))
        held: dict[str, list[object]] = {name: [] for name in (*kinds, *others)}
        for at in range(i, min(i + SETTLED_AT, len(batch))):
            with suppress(InvalidEvent):
                values = decoder(batch.format).names(batch, at)
                for name in held.keys() & values.keys():
                    if not self.schema.notations.of(name).is_missing(values[name]):
                        held[name].append(values[name])
        self._warn_of_dates(batch, kinds, {name: each[0] for name, each in held.items() if each})
        if _is_text(batch):
            self._warn_of_codes(batch, kinds, held)
            self._warn_of_thousands(batch, [*others, *(name for name in kinds if kinds[name] == "number")], held)

    def _warn_of_dates(self, batch: Batch, kinds: Mapping[str, ColumnKind], values: Values) -> None:
        """Warn of columns of categories or numbers by their first values, and of seconds, which may hold dates."""
        others: dict[ColumnKind, tuple[str, Collection[str], str]] = {
            "category": ("categories", self.schema.categorical, "categorical"),
            "number": ("numbers", self.schema.numeric, "numeric"),
        }
        for name, kind in kinds.items():
            value = values.get(name)
            if kind == "time":
                self._warn_of_seconds(batch, name, value)
            if kind not in others or name in others[kind][1] or not isinstance(value, str | int):
                continue
            if forms := formats_of(str(value)):
                LOGGER.warning(
                    "%s: column %s is one of %s by its first value, %s, and looks like one of dates: to read "
                    "it as times, %s; else list it in schema.%s",
                    batch.origin,
                    shown(name),
                    others[kind][0],
                    shown(value),
                    time_advice(name, forms),
                    others[kind][2],
                )

    def _warn_of_seconds(self, batch: Batch, name: str, value: object) -> None:
        """Warn of a column of times without a format whose first value is a number that hardly counts seconds."""
        text = str(value.with_point() if isinstance(value, CommaText) else value)
        if self.schema.notations.of(name).time != ISO or not NUMBER.fullmatch(text):
            return
        if (forms := formats_besides_seconds(float(text))) is not None:
            convert = "convert it (a spreadsheet's days are (days - 25569) * 86400 seconds), or where it counts them "
            LOGGER.warning(
                "%s: column %s is one of times and holds %s, which is read as seconds since 1970 and hardly counts "
                "them: %s%s",
                batch.origin,
                shown(name),
                shown(value),
                "" if forms else convert,
                time_advice(name, [*forms, "s"]),
            )

    def _warn_of_codes(
        self, batch: Batch, kinds: Mapping[str, ColumnKind], held: Mapping[str, Sequence[object]]
    ) -> None:
        """Warn of columns of numbers by their first values that hold some with leading zeros."""
        for name in sorted(
            name for name, kind in kinds.items() if kind == "number" and not self.schema.fixed.kind(name)
        ):
            if code := next((each for each in held[name] if _CODE.fullmatch(str(each))), None):
                LOGGER.warning(
                    "%s: column %s is one of numbers by its first value and holds %s, whose leading zeros are "
                    "lost: for codes list it in schema.categorical, else in schema.numeric",
                    batch.origin,
                    shown(name),
                    shown(code),
                )

    def _warn_of_thousands(self, batch: Batch, names: Iterable[str], held: Mapping[str, Sequence[object]]) -> None:
        """Warn of columns of numbers whose points may separate thousands."""
        if self.schema.notations.thousands:
            return
        texts = {name: [str(each) for each in held[name] if not isinstance(each, CommaText)] for name in names}
        found = {name: example for name, each in sorted(texts.items()) if (example := in_thousands(each))}
        if found:
            LOGGER.warning(
                "%s: all numbers with a point in %s have three decimals, such as %s, and the others have up to three "
                'digits; if it separates thousands, set source.decimal = "," and schema.thousands = "."',
                batch.origin,
                some_of(found),
                shown(next(iter(found.values()))),
            )

    def _require_types(self, batch: Batch, others: Collection[str]) -> None:
        """Require that the type of each column that would be a feature has values that can be read.

        Raises:
            SourceError: with all columns of other types, since each of them would reject nearly every record.
        """
        features = self.schema.features
        found = decoder(batch.format).unsupported(batch)
        names = sorted(found.keys() - others if features is None else found.keys() & set(features))
        if not names:
            return
        remedy = "take them out of schema.features"
        if features is None:
            written = json.dumps(names, ensure_ascii=False)
            remedy = f"list them in schema.ignore, as in {written}"
        raise SourceError(
            f"{batch.origin} has columns that hold neither numbers, truth values, texts nor times: "
            f"{some_of(names, lambda name: f'{shown(name)} ({cut(found[name])})')}; {remedy}, or convert them"
        )

    def _describe_excess(self, columns: Collection[str]) -> str | None:
        if len(columns) <= self.schema.max_columns:
            return None
        return (
            f"{len(columns)} columns besides its target, and schema.max_columns allows {self.schema.max_columns}: list "
            "those to learn from in schema.features, exclude others by schema.ignore, or raise that setting; the time "
            "per event grows with the square of their number"
        )


class _RivalRows(NamedTuple):
    """What the rival says of those events of a run that were used."""

    rival: Rival
    outcome: Outcome


class _ModelBefore(NamedTuple):
    """The state of the model before it learned a run of records."""

    n: int
    """Events of the source learned."""
    classes: int
    """Classes known, for a classifier."""


class _LearnedRows(NamedTuple):
    """Records that the model has learned or rejected."""

    rows: Any
    """Their indexes in the ledger's batch."""
    outcome: Outcome
    before: _ModelBefore
    labels: Sequence[str | None] | None
    rival: _RivalRows | None = None


class _Ledger:
    """The outcome of each record of a batch."""

    def __init__(self, batch: Batch) -> None:
        self.batch = batch
        self.learned = 0
        self.used = 0
        self.losses: list[FloatArray] = []
        self.lags: dict[int, FloatArray] = {}
        self._letters: dict[int, DeadLetter] = {}

    def reject(self, i: int, stage: str, reason: str, detail: str) -> None:
        """Reject the i-th record."""
        batch = self.batch
        if i in batch.unreadable:
            reason, detail, record = batch.unreadable[i]
            self._add(i, DeadLetter(batch.location(i), "decode", reason, detail, record))
            return
        written = "jsonl" if batch.table is not None else batch.format  # see `Batch.record`
        columns = None if batch.table is not None else batch.columns
        whole = None if batch.too_long else written
        usual = whole != "csv"
        letter = DeadLetter(
            batch.location(i),
            stage,
            reason,
            detail,
            batch.record(i),
            whole,
            columns,
            delimiter=None if usual or batch.delimiter == "," else batch.delimiter,
            decimal=None if usual or batch.decimal == "." else batch.decimal,
        )
        self._add(i, letter)

    def _add(self, i: int, letter: DeadLetter) -> None:
        """Keep the letter of the i-th record, with key and headers."""
        keys, headers = self.batch.keys, self.batch.headers
        key = None if keys is None else keys[i]
        self._letters[i] = enveloped(letter, key, None if headers is None else headers[i])

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
    model: MixtureOfExperts, outcome: Outcome, used: BoolArray, rival: _RivalRows, by_rival: BoolArray
) -> Outcome:
    """Return the outcome with losses and predictions of the rival where it has predicted, for scores.

    Classes are in the order of the own model; a last column has what the rival gives to classes unknown to it.
    """
    rows = np.flatnonzero(used)[by_rival]
    losses, predictions = outcome.losses.copy(), outcome.predictions.copy()
    losses[rows] = rival.outcome.losses[by_rival]
    theirs = rival.outcome.predictions[by_rival]
    if model.is_classifier:
        own_names, names = model.output_names, rival.rival.model.output_names
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


def _is_text(batch: Batch) -> bool:
    """Whether the format writes numbers as text."""
    return batch.format == "csv"
