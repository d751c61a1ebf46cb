"""The way of an event: decode, validate, predict, score, learn. Here it stands on one screen."""

from __future__ import annotations

import logging
from collections import Counter
from typing import NamedTuple

import numpy as np

from streammoe.errors import InvalidEvent, StreammoeError
from streammoe.estimators import MoERegressor
from streammoe.ports import Batch, DeadLetter
from streammoe.runtime.decoders import decoder, to_row
from streammoe.runtime.scores import PrequentialScores
from streammoe.types import BoolArray

LOGGER = logging.getLogger("streammoe.pipeline")


class Schema(NamedTuple):
    """Which fields of a record mean what."""

    targets: tuple[str, ...]
    features: tuple[str, ...] | None
    """``None``: every field of the first good record that is neither a target nor ignored."""
    ignore: tuple[str, ...] = ()


class Processed(NamedTuple):
    """What became of a batch."""

    outcomes: Counter[str]
    """Events by outcome: learned, predicted_only, rejected, skipped."""
    reasons: Counter[str]
    """Refused records by reason."""
    letters: list[DeadLetter]
    bad: BoolArray
    """(n,) which records were refused."""


class Pipeline:
    """Takes batches in order and teaches them to a model; owns nothing but the scores."""

    def __init__(self, model: MoERegressor, schema: Schema, scores: PrequentialScores) -> None:
        self.model = model
        self.schema = schema
        self.scores = scores
        self._unknown: set[str] = set()

    def process(self, batch: Batch) -> Processed:
        """Learn a batch, strictly in order.

        Raises:
            StreammoeError: the model is no longer finite; it must be neither saved nor served.
        """
        if batch.too_long:
            return _refused_whole(batch)
        letters, rest = ([], batch) if self.model.feature_names else self._find_columns(batch)
        self._notice_unknown(rest)
        decoded = decoder(batch.format).decode(rest, self.model.feature_names, self.schema.targets)
        outcome = self.model.learn_rows(decoded.X, decoded.Y)
        if not self.model.is_finite():
            message = (
                f"{batch.origin}: the model is not finite after a batch from here; this is a bug, please report it"
            )
            raise StreammoeError(message)
        learned = outcome.learned
        self.scores.update(outcome.losses[learned], outcome.predictions[learned], outcome.targets[learned])

        refused = {i: _letter(rest, i, "decode", reason, detail) for i, reason, detail in decoded.rejected}
        for at, error in outcome.refused.items():
            i = int(decoded.rows[at])
            refused[i] = _letter(rest, i, "validate", error.reason, str(error))
        bad = np.zeros(len(batch), dtype=np.bool_)
        bad[: len(letters)] = True
        bad[len(letters) + np.array(sorted(refused), dtype=np.int64)] = True
        # In the order of the records, wherever the stream was cut.
        letters += [refused[i] for i in sorted(refused)]
        outcomes = Counter(
            learned=int(learned.sum()),
            predicted_only=len(decoded.rows) - len(outcome.refused) - int(learned.sum()),
            rejected=len(letters),
            skipped=batch.skipped,
        )
        return Processed(outcomes, Counter(letter.reason for letter in letters), letters, bad)

    def _notice_unknown(self, batch: Batch) -> None:
        """Say once for each field that it is ignored; one record of a batch is looked at, since all would cost much."""
        if self.schema.features is not None or not len(batch):
            return
        try:
            fields = decoder(batch.format).names(batch, 0)
        except InvalidEvent:
            return  # it is refused, with its reason, when the batch is decoded
        known = {*self.model.feature_names, *self.schema.targets, *self.schema.ignore, *self._unknown}
        unknown = sorted(fields.keys() - known)
        if unknown:
            self._unknown.update(unknown)
            LOGGER.warning(
                "%s: ignoring %s, which the first good record did not have; columns are fixed by that one",
                batch.origin,
                ", ".join(map(repr, unknown)),
            )

    def _find_columns(self, batch: Batch) -> tuple[list[DeadLetter], Batch]:
        """Let the first good record say which columns there are.

        Returns the dead letters for all records before it, which leave no trace in the model, and what is left of the
        batch. Looking at one record at a time makes both the same wherever the stream was cut into batches.
        """
        if self.schema.features is not None:
            self.model.set_columns(sorted(self.schema.features))
            return [], batch
        decode = decoder(batch.format)
        # A header without the target is an error; it must come before the header shapes the model.
        decode.decode(batch.tail(len(batch)), (), self.schema.targets)
        others = {*self.schema.targets, *self.schema.ignore}
        letters = []
        for i in range(len(batch)):
            stage = "decode"
            try:
                values = decode.names(batch, i)
                columns = sorted(name for name in values if name not in others)
                row, target = to_row(values, columns, self.schema.targets, text=batch.columns is not None)
                stage = "validate"
                self.model.introduce(columns, np.array([row]), np.array([target]))
            except InvalidEvent as error:
                letters.append(_letter(batch, i, stage, error.reason, str(error)))
            else:
                return letters, batch.tail(i)
        return letters, batch.tail(len(batch))


def _refused_whole(batch: Batch) -> Processed:
    detail = f"the record goes on beyond the {len(batch.block)} bytes of source.max_record_bytes; only these are kept"
    return Processed(
        Counter(learned=0, predicted_only=0, rejected=1, skipped=batch.skipped),
        Counter(malformed=1),
        [_letter(batch, 0, "decode", "malformed", detail)],
        np.ones(1, dtype=np.bool_),
    )


def _letter(batch: Batch, i: int, stage: str, reason: str, detail: str) -> DeadLetter:
    return DeadLetter(batch.place(i), stage, reason, detail, batch.record(i))
