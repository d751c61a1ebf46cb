"""The common interface of all estimators."""

from __future__ import annotations

import copy
import os
from abc import abstractmethod
from collections.abc import Mapping, Sequence
from typing import Any, ClassVar, Self

import numpy as np

from streammoe.columns.kinds import ColumnKind
from streammoe.columns.layout import Additions
from streammoe.distributions import Gaussian
from streammoe.errors import ConfigError, InvalidEvent
from streammoe.estimators.frames import beside, table_by_names, table_of, targets_by_names
from streammoe.estimators.inspected import Inspected
from streammoe.fields import Change
from streammoe.model import checkpoint, learn_rows, predicting
from streammoe.model.context import Context
from streammoe.model.learn_array import learn_array
from streammoe.model.learn_rows import Outcome
from streammoe.model.learner import Learner
from streammoe.model.parameters import continue_from, experts_in
from streammoe.model.tables import Events, Table
from streammoe.model.targets import Targets
from streammoe.options import CHOICES, FeatureOptions, Options, as_arguments, checked
from streammoe.persistence import durable, pieces, state_digest
from streammoe.types import AnyArray, FloatArray, as_python


class MixtureOfExperts(Inspected):
    """Base class of all estimators: checked arguments, and a learner to which they delegate."""

    several_outputs: ClassVar[bool | None] = None
    """Whether there may be more than one output; None if that does not matter."""

    def __init__(self, arguments: Mapping[str, Any]) -> None:
        """Keep each argument as an attribute of its name, which River and scikit-learn ask for, and check them.

        Args:
            arguments: the local variables of the constructor of a subclass.
        """
        for name, value in arguments.items():
            if name not in {"self", "__class__"}:
                is_empty = name in FeatureOptions.model_fields and isinstance(value, tuple) and not value
                setattr(self, name, None if is_empty else value)  # River's `clone` inspects the first entry of a tuple
        self._check()
        features = FeatureOptions(**{name: tuple(getattr(self, name) or ()) for name in FeatureOptions.model_fields})
        lags = self.options.given_lags
        for argument in ("categorical", "timestamps"):
            for name in set(getattr(features, argument)).intersection(() if lags is None else lags.inputs):
                rule = f"must leave out {name!r}, which {argument} names: only numbers have lags"
                raise ConfigError(f"lags.inputs: {rule}")
        self.learner = Learner(Context(self.options, features, self._new_targets()))

    def __copy__(self) -> Self:
        """Return an independent copy; a shallow one would share arrays that both models update."""
        other = object.__new__(type(self))
        vars(other).update(vars(self), learner=self.learner.copy())
        return other

    def __setstate__(self, state: dict[str, Any]) -> None:
        vars(self).update(copy.deepcopy(state))  # joblib may have mapped arrays from a file, as read-only

    def _check(self) -> None:
        given = {name: getattr(self, name) for name in self._get_params()}
        self.options = checked(self.options_type, given, several=self.several_outputs)
        # What later assignments to attributes cannot change, and checkpoints hold.
        self._checked = {
            name: CHOICES[name].table(value) if name in CHOICES else as_python(value) for name, value in given.items()
        }
        if isinstance(expert := getattr(self.options, "expert", None), Gaussian):
            # Written out, since a table without a tail means an infinite one, which JSON cannot hold.
            self._checked["expert"] = CHOICES["expert"].table(expert)

    @abstractmethod
    def _new_targets(self) -> Targets:
        """Return the format of the targets according to the arguments."""

    # -- One event -----------------------------------------------------------------------------------------------------

    def learn_one(self, x: Mapping[Any, Any], y: Any, w: float = 1.0) -> None:
        """Learn one event that counts `w` times.

        Raises:
            InvalidEvent: a value is invalid or would make a parameter non-finite, the outputs are other ones, or a
                label cannot be added; nothing was changed.
        """
        self.learner.learn_one(x, y, w)

    @abstractmethod
    def predict_one(self, x: Mapping[Any, Any]) -> Any:
        """Predict the target at `x`: a number, a number for each output, or a label."""

    # -- Many rows -----------------------------------------------------------------------------------------------------

    def learn_array(
        self,
        X: AnyArray,
        y: AnyArray,
        *,
        w: AnyArray | None = None,
        feature_names: Sequence[Any] | None = None,
    ) -> FloatArray:
        """Learn rows in order; the result equals a loop over `learn_one`, bit for bit, wherever the array is cut.

        Args:
            X: (n, P) finite numbers; or a data frame of any kind, whose columns are found by name.
            y: (n,) or (n, Q) finite numbers, or (n,) labels. Outputs that are not in a frame are called y0, y1, …
            w: (n,) weights in [0, 1e6], by default 1; events of weight 0 are not learned.
            feature_names: names of the columns of an array; by default x0, x1, …

        Returns:
            (n,) prequential log-losses −log s(y|x) in the target's own units: each row is predicted, then learned.

        Raises:
            InvalidEvent: a row is invalid or would make a parameter non-finite; its index is in ``row`` and nothing was
                learned.
        """
        table = table_by_names(self.learner.encoder, X, feature_names)
        y, names = targets_by_names(self.learner.targets, y)
        return learn_array(self.learner, table, y, w, names)

    def learn_many(self, X: Any, y: Any, w: AnyArray | None = None) -> None:
        """Learn the rows of a frame in order; the result equals a loop over `learn_one`, bit for bit.

        Raises:
            InvalidEvent: a row is invalid or would make a parameter non-finite, with its index in ``row``; or the
                outputs are other ones.
        """
        beside(X, y, "y")
        y, names = targets_by_names(self.learner.targets, y)
        _, table = table_of(self.learner.encoder, X)
        learn_array(self.learner, table, y, beside(X, w, "w"), names)

    def log_likelihood_array(
        self, X: AnyArray, y: AnyArray, *, feature_names: Sequence[Any] | None = None
    ) -> FloatArray:
        """Return log s(y|x) of each row, (n,), in the target's own units; nothing is learned."""
        y, _ = targets_by_names(self.learner.targets, y)
        return predicting.log_likelihood(self.learner, self._table(X, feature_names), y)

    def _table(self, X: AnyArray, feature_names: Sequence[Any] | None) -> Table:
        return table_by_names(self.learner.encoder, X, feature_names, known=True)

    # -- Rows of a stream ----------------------------------------------------------------------------------------------

    def learn_rows(
        self,
        X: FloatArray,
        targets: Any,
        w: FloatArray | None = None,
        *,
        texts: Mapping[Any, Sequence[str | None]] | None = None,
        traced: bool = False,
        lags: FloatArray | None = None,
        added: Mapping[Any, ColumnKind] | None = None,
    ) -> Outcome:
        """Learn rows in the model's own field order; rows that cannot be used are rejected individually.

        Args:
            X: (n, F) in the order of `fields`; NaN is a missing value, infinities are out of range.
            targets: (n, Q), NaN for an event without target, or (n,) labels and None; such an event is predicted but
                not learned.
            w: (n,) in [0, 1e6]; an event of weight 0 is not learned.
            texts: (n,) levels of each categorical field by its name, None where missing; X does not contain them.
            traced: whether to record each expert's part.
            lags: (n, L) lags that rows were predicted with earlier, NaN in those that were not (`Outcome.lags`).
            added: new fields, the last columns of the only row, by their names and what they hold; they are not added
                if it is not learned.
        """
        events = Events(X, texts or {}, targets, np.ones(len(X)) if w is None else w)
        additions = Additions(tuple(added or ()), kinds=tuple((added or {}).values()))
        return learn_rows.learn_rows(self.learner, events, additions, traced=traced, lags=lags)

    def score_rows(
        self,
        names: Sequence[Any],
        X: FloatArray,
        targets: Any,
        *,
        texts: Mapping[Any, Sequence[str | None]],
        traced: bool = False,
    ) -> Outcome:
        """Score rows whose columns, `names`, another model has read, and learn nothing; other arguments as there.

        Columns that this model lacks are ignored, and what it misses is filled in; X may be overwritten. A label that
        the model does not know has an infinite loss.
        """
        return learn_rows.score_rows(self.learner, Table(X, list(names), texts), targets, traced=traced)

    def refused(self, X: FloatArray) -> dict[int, InvalidEvent]:
        """Return the errors of rows without targets, by index, that `learn_rows` would reject; nothing is learned."""
        return learn_rows.refused(self.learner, X)

    # -- Continuing from given statistics ------------------------------------------------------------------------------

    @classmethod
    def from_parameters(
        cls,
        parameters: Mapping[str, Any],
        *,
        feature_names: Sequence[Any],
        **arguments: Any,
    ) -> Self:
        """Create a model that continues from exactly these statistics, without warm-up; the average begins again.

        Args:
            parameters: as `parameters` returns them; ``decay``, ``prior_weight``, ``prior``, ``scale`` and ``ranges``
                may be omitted.
            feature_names: names of the columns, in the order of the parameters.
            **arguments: of the constructor; `n_experts` and the covariance of several outputs follow from the
                parameters. In their order, ``target_names`` are names of several outputs, by default y0, y1, …, and
                `classes` are labels, the reference first, by default 0, 1, …

        Raises:
            ConfigError: an entry is missing or has a shape that does not fit the others.
        """
        model = cls._blank(parameters, arguments)
        continue_from(model.learner, parameters, feature_names)
        return model

    @classmethod
    def _blank(cls, parameters: Mapping[str, Any], arguments: Mapping[str, Any]) -> Self:
        """Return a model that has learned nothing, with the outputs of parameters."""
        return cls(**{"n_experts": len(experts_in(parameters)), **arguments})

    # -- External changes ----------------------------------------------------------------------------------------------

    def change(self, name: str, value: Any) -> None:
        """Change an argument that may change, from now on.

        Raises:
            ConfigError: it may not change, or the constructor would reject the value.
        """
        changeable = self.options.changeable()
        if name not in changeable:
            raise ConfigError(f"{name}: it cannot change; only {', '.join(changeable)} can")
        before, was = getattr(self, name), getattr(self.options, name)
        setattr(self, name, value)
        try:
            self._check()
            if name in self.options.changeable("rise") and getattr(self.options, name) < was:
                raise ConfigError(f"{name}: can only be raised, and is {was}; got {value}")
        except ConfigError:
            setattr(self, name, before)
            self._check()
            raise
        self.learner.change(self.options)

    def take_over(self, options: Options, *policies: Change) -> None:
        """Change the arguments that may change to those of options of the same kind; see `Options.changeable`."""
        for name in options.changeable(*policies):
            self.change(name, getattr(options, name))

    def set_columns(self, names: Sequence[Any]) -> None:
        """Fix the columns of a model that has none yet, in this order.

        Raises:
            ConfigError: it has columns, or it would become too large.
        """
        self.learner.set_columns(names)

    # -- In a checkpoint -----------------------------------------------------------------------------------------------

    def arguments(self) -> dict[str, Any]:
        """Return the arguments of the constructor in the form that checkpoints use."""
        return dict(self._checked)

    def save(self, path: str | os.PathLike[str]) -> None:
        """Write the model durably to one file, from which `streammoe.load` continues bit for bit.

        Raises:
            PoisonedModel: a number in it is not finite; nothing was written.
            OSError: the file cannot be written.
        """
        durable.replace(durable.path_of(path), *pieces(self.arrays(), self.describe()))

    def arrays(self) -> dict[str, AnyArray]:
        """Return all arrays of a checkpoint: those that affect future learning, ``reservoir.*`` and ``diagnostics.*``.

        Raises:
            PoisonedModel: a number in them is not finite, so they must not be saved.
        """
        return checkpoint.arrays_of(self.learner)

    def describe(self) -> dict[str, Any]:
        """Return the JSON part of a checkpoint: class, arguments and fingerprint of the model."""
        return {**self.identify(), "state_digest": self.state_digest()}

    def identify(self) -> dict[str, Any]:
        """Return `describe` without the fingerprint, which takes a while for a wide model."""
        return {"model": {"kind": type(self).__name__, "arguments": self.arguments()}, "n": self.n}

    def state_digest(self) -> str:
        """Return the SHA-256 of everything that affects future learning; equal digests mean equal futures."""
        return state_digest(checkpoint.learning_arrays(self.learner))

    @classmethod
    def from_checkpoint(cls, arrays: dict[str, AnyArray], description: Mapping[str, Any]) -> Self:
        """Restore a model from what `arrays` and `describe` returned.

        Raises:
            CheckpointError: an array is missing, unknown or invalid; `streammoe.checked` converts other errors.
        """
        model = cls(**as_arguments(cls.options_type, description["arguments"]))
        checkpoint.restore(model.learner, arrays)
        return model
