"""Which fields of records are features: those of the first good record, and with ``late_columns`` of later ones."""

from __future__ import annotations

import logging
from collections.abc import Callable, Collection, Mapping
from contextlib import suppress

from streammoe.columns.kinds import ColumnKind, described, not_found
from streammoe.errors import ConfigError, InvalidEvent, SourceError
from streammoe.estimators import MixtureOfExperts
from streammoe.model.learn_rows import introduce
from streammoe.notation import EVERY
from streammoe.pipeline.decoders import FieldRoles, NewNames, decoder, event_of
from streammoe.pipeline.doubtful_values import EXAMINED, warn_of_values
from streammoe.pipeline.schema import Schema
from streammoe.ports import INDEX_NAMES, Batch
from streammoe.text import some_of

LOGGER = logging.getLogger("streammoe.pipeline")
MAX_WARNED_FIELDS = 100
"""Maximum number of ignored fields to warn of; a producer that makes up names must fill neither memory nor log."""
_SETTINGS = {"lagged": "model.lags.inputs"}
"""The setting that names columns of `Schema`, where it is not one of ``schema`` with the same name."""


class FeatureColumns:
    """The features of a model, and what has been noticed of other fields.

    Args:
        model: learns from them.
        schema: the role of each field.
        is_pretrained: whether the model was fitted elsewhere and its columns have not been compared with a record yet.
    """

    def __init__(self, model: MixtureOfExperts, schema: Schema, *, is_pretrained: bool = False) -> None:
        self._model, self._schema = model, schema
        self.is_pretrained = is_pretrained
        self._unknown: set[str] = set()
        self._unsettled = EXAMINED
        """Number of records after which a name in the settings that none of them had is noticed."""
        self._seen = {*model.fields, *model.awaited} if model.n else set[str]()
        """Those of these names that they, or records of earlier runs, had so far."""

    def new_names(self, batch: Batch) -> NewNames:
        """Return which fields of a batch that are no features yet matter."""
        schema, model = self._schema, self._model
        others = schema.others | self.left_out(batch)
        is_full = schema.features is None and len(model.fields) >= schema.max_columns
        if schema.late_columns and not is_full:
            return NewNames(frozenset(others), late=True)
        notices = schema.features is None and len(self._unknown) < MAX_WARNED_FIELDS and model.fields
        known = frozenset({*others, *model.awaited, *self._unknown}) if notices else None
        return NewNames(known, awaited=frozenset(() if is_full else model.awaited))

    def roles(self, kinds: Mapping[str, ColumnKind], batch: Batch | None = None) -> FieldRoles:
        """Return what to read from records with these features, in order, and from a batch for new columns."""
        roles = FieldRoles(kinds, self._schema, self._model.is_classifier)
        return roles if batch is None else roles.in_batch(batch)

    def left_out(self, batch: Batch) -> set[str]:
        """Return the index of a data frame, which is no feature unless a setting names it or the model has learned it.

        A setting that ignores it anyway is not counted.
        """
        given = set[str]().union(*self._schema.given_kinds)
        return set(INDEX_NAMES).difference(self._schema.others, given, self._model.fields, self._model.awaited)

    def compare(self, batch: Batch) -> None:
        """Compare the columns of the first readable record with those that the model was fitted to.

        Raises:
            ConfigError: they have none in common.
        """
        for i in range(len(batch)):
            try:
                names = decoder(batch.format).names(batch, i).keys()
            except InvalidEvent:
                continue
            self.is_pretrained = False
            fields = set(self._model.fields)
            missing = ", ".join(map(repr, sorted(fields - names)))
            if fields.isdisjoint(names):
                raise ConfigError(
                    f"{batch.origin}: has none of the initial model's features ({missing}) but "
                    f"{', '.join(map(repr, sorted(names - self._schema.others)))}; rename the columns, or start from "
                    "another model (a daemon needs --fresh for that)"
                )
            if missing:
                LOGGER.warning("%s: features of the initial model are missing: %s", batch.origin, missing)
            return

    def check_header(self, batch: Batch) -> None:
        """Check the columns of a source before they shape the model; records of JSON have none in common.

        Raises:
            SourceError: the target is not among them, or there are too many.
        """
        others = self._schema.others | self.left_out(batch)
        decoder(batch.format).require_targets(batch, self.roles({}))
        columns = batch.columns if self._schema.features is None else None
        if columns is not None and (problem := self._describe_excess(set(filter(None, columns)) - others)):
            raise SourceError(f"{batch.origin} has {problem}")

    def find(self, batch: Batch, reject: Callable[[int, str, str, str], None]) -> Batch:
        """Take the columns from the first good record, and return the rest of the batch from that record on.

        Its values decide what columns hold whose kind no setting fixes; those without a value there are awaited. All
        records before it are rejected and leave no trace in the model. Going record by record makes the result
        independent of where the stream was cut.
        """
        features = self._schema.features
        others = self._schema.others | self.left_out(batch)
        self.check_header(batch)
        given = {name: kind for name in features or () if (kind := self._schema.given_kinds.kind(name))}
        if features is not None and len(given) == len(features):
            self._model.set_columns(sorted(features))
            self.warn_of_values(batch, 0, given)
            return batch
        decode = decoder(batch.format)
        for i in range(len(batch)):
            stage = "decode"
            try:
                values = decode.names(batch, i)
                columns = sorted(values.keys() - others if features is None else features)
                if features is None and (problem := self._describe_excess(columns)):
                    raise InvalidEvent(f"the record has {problem}", reason="too_many_columns")
                kinds = self.roles({}, batch).first_kinds(columns, values)
                event = event_of(values, self.roles(kinds, batch))
                stage = "validate"
                introduce(
                    self._model.learner,
                    list(kinds),
                    event.X,
                    event.Y if event.labels is None else event.labels,
                    kinds=list(kinds.values()),
                    awaited=[name for name in columns if name not in kinds],
                )
            except InvalidEvent as error:
                reject(i, stage, error.reason, str(self.roles({}).explained(error)))
            else:
                LOGGER.info("%s: columns by their first values: %s", batch.origin, described(kinds))
                self.warn_of_values(batch, i, kinds)
                if features is None and (index := sorted(self.left_out(batch) & values.keys())):
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

    def warn_of_values(self, batch: Batch, i: int, kinds: Mapping[str, ColumnKind]) -> None:
        """Warn of new columns whose values in the first records, from the i-th on, may mean something else."""
        # With the first columns come the other numbers of a record.
        others = () if self._model.n else (*self.roles({}).targets, *filter(None, [self._schema.weight]))
        warn_of_values(batch, i, kinds, others, self._schema)

    def warn_of_unknown(self, origin: str, names: Collection[str]) -> None:
        """Warn of fields that are ignored, and not noticed before."""
        names = sorted(names)[: MAX_WARNED_FIELDS - len(self._unknown)]
        if names:
            self._unknown.update(names)
            LOGGER.warning(
                "%s: ignoring %s, which the first good record did not have; set schema.late_columns = true to add them",
                origin,
                some_of(names),
            )

    def warn_of_not_found(self, batch: Batch) -> None:
        """Warn once of names in the settings that none of the first records has; a header decides at once."""
        if not self._unsettled:
            return
        schema, decode = self._schema, decoder(batch.format)
        named: Mapping[str, Collection[str]] = {
            "features": schema.features or (),
            "ignore": schema.ignore,
            "weight": (schema.weight,) if schema.weight else (),
            **schema.given_kinds._asdict(),
            "missing": schema.notations.missing.keys() - {EVERY},
        }
        every = set[str]().union(*named.values()) - self._seen
        names: Collection[str] = decode.header(batch) or ()
        if not names:
            for i in range(len(batch) if every else 0):
                with suppress(InvalidEvent):
                    names = decode.names(batch, i).keys()
                    self._seen |= every & names
                    # Half of an event, which waits for its label, may lack what comes with that.
                    self._unsettled -= schema.targets[0] in names
                if not self._unsettled:
                    break
        else:
            self._seen |= every.intersection(names)
            self._unsettled = 0
        found = {_SETTINGS.get(name, f"schema.{name}"): set(each) - self._seen for name, each in named.items()}
        unseen = {name: each for name, each in found.items() if each}
        if self._unsettled and unseen:
            return
        self._unsettled = 0
        if unseen:
            columns = {*self._model.fields, *names}.difference(*unseen.values())
            LOGGER.warning("%s: %s", batch.origin, not_found(unseen, sorted(columns)))

    def _describe_excess(self, columns: Collection[str]) -> str | None:
        if len(columns) <= self._schema.max_columns:
            return None
        return (
            f"{len(columns)} columns besides its target, and schema.max_columns allows {self._schema.max_columns}: "
            "list those to learn from in schema.features, exclude others by schema.ignore, or raise that setting; the "
            "time per event grows with the square of their number"
        )
