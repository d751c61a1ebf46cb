"""The common interface of all estimators."""

from __future__ import annotations

import copy
import os
from abc import abstractmethod
from collections.abc import Mapping, Sequence
from typing import Any, ClassVar, Self

import numpy as np
from river import base

from streammoe.columns.kinds import ColumnKind
from streammoe.columns.layout import Additions
from streammoe.distributions import ExpertNoise, Gaussian
from streammoe.engine.drift import Drift
from streammoe.engine.members.average import Average
from streammoe.engine.members.curved import Curved
from streammoe.engine.members.latest import Latest
from streammoe.engine.members.one_expert import OneExpert
from streammoe.engine.members.refitted import Refitted
from streammoe.engine.portfolio import SINGLE
from streammoe.errors import ConfigError
from streammoe.estimators.frames import table_by_names, targets_by_names
from streammoe.fields import Change
from streammoe.model import checkpoint, learn_rows
from streammoe.model.learn_array import learn_array
from streammoe.model.learn_rows import Outcome
from streammoe.model.learner import Learner
from streammoe.model.parameters import parameters_of
from streammoe.model.tables import Events, Table
from streammoe.model.targets import Targets
from streammoe.options import CHOICES, FeatureOptions, Options, as_arguments, checked
from streammoe.persistence import durable, pieces, state_digest
from streammoe.types import AnyArray, FloatArray, as_python


class MixtureOfExperts(base.Estimator):
    """Base class of all estimators: checked arguments, and a learner to which they delegate."""

    options_type: ClassVar[type[Options]]
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
        given = {name: tuple(getattr(self, name) or ()) for name in FeatureOptions.model_fields}
        features = FeatureOptions(**given)
        lags = getattr(self.options, "lags", None)
        inputs = () if lags is None else lags.inputs
        for argument in ("categorical", "timestamps"):
            for name in getattr(features, argument):
                if name in inputs:
                    rule = f"must leave out {name!r}, which {argument} names: only numbers have lags"
                    raise ConfigError(f"lags.inputs: {rule}")
        self.learner = Learner(self.options, features, self._new_targets())

    def __copy__(self) -> Self:
        """Return an independent copy: half a model, whose arrays two of them update, would be of no use."""
        return copy.deepcopy(self)

    def _check(self) -> None:
        given = self._get_params()
        self.options = checked(self.options_type, given, several=self.several_outputs)
        # What later assignments to attributes cannot change, and checkpoints hold.
        self._checked = {
            name: CHOICES[name].table(value) if name in CHOICES else as_python(value) for name, value in given.items()
        }
        if isinstance(expert := getattr(self.options, "expert", None), Gaussian):
            # In full: what leaves out the tail has an infinite one, which JSON does not know.
            self._checked["expert"] = CHOICES["expert"].table(expert)

    @abstractmethod
    def _new_targets(self) -> Targets:
        """Return the format of the targets according to the arguments."""

    # -- One event -----------------------------------------------------------------------------------------------------

    @abstractmethod
    def learn_one(self, x: Mapping[Any, Any], y: Any, w: float = 1.0) -> None:
        """Learn one event that counts `w` times.

        Raises:
            InvalidEvent: a value would poison the model; nothing was changed.
        """

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
            X: (n, P) finite numbers; or a data frame, of pandas, polars or Arrow, as `learn_many` takes it, whose
                columns are found by their names.
            y: (n,) or (n, Q) finite numbers, or (n,) labels. New outputs are called y0, y1 and so on, unless it is a
                frame.
            w: (n,) weight of each event in the objective, in [0, 1e6]; by default 1. Events of weight 0 are not
                learned.
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

    def log_likelihood_array(
        self, X: AnyArray, y: AnyArray, *, feature_names: Sequence[Any] | None = None
    ) -> FloatArray:
        """Return log s(y|x) of each row, (n,), in the target's own units; nothing is learned."""
        y, _ = targets_by_names(self.learner.targets, y)
        return self.learner.log_likelihood(self._table(X, feature_names), y)

    def _table(self, X: AnyArray, feature_names: Sequence[Any] | None) -> Table:
        """Convert an array to predict from."""
        return table_by_names(self.learner.encoder, X, feature_names, known=True)

    # -- Rows of a stream ----------------------------------------------------------------------------------------------

    def introduce(
        self,
        names: Sequence[Any],
        row: FloatArray,
        targets: Any,
        *,
        kinds: Sequence[ColumnKind] | None = None,
        awaited: Sequence[Any] = (),
    ) -> None:
        """Fix the fields to those of the first event, (1, F) with its target; nothing is learned.

        Args:
            names: of the fields.
            row: their values.
            targets: as in `learn_rows`.
            kinds: what the fields hold; by default what the arguments say, and numbers otherwise.
            awaited: names of columns without a value in this event, which join with their first one (`learn_wider`).

        Raises:
            InvalidEvent: there is no field, a value is out of range, or the label is invalid; nothing was changed.
        """
        learn_rows.introduce(self.learner, names, row, targets, kinds, awaited)

    def learn_rows(
        self,
        X: FloatArray,
        targets: Any,
        w: FloatArray | None = None,
        *,
        texts: Mapping[Any, Sequence[str | None]] | None = None,
        traced: bool = False,
        lags: FloatArray | None = None,
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
        """
        counts = np.ones(len(X)) if w is None else w
        return learn_rows.learn_rows(self.learner, Events(X, texts or {}, targets, counts), traced=traced, lags=lags)

    def score_rows(
        self,
        names: Sequence[Any],
        X: FloatArray,
        targets: Any,
        *,
        texts: Mapping[Any, Sequence[str | None]] | None = None,
        traced: bool = False,
    ) -> Outcome:
        """Score rows whose columns another model has read, and learn nothing.

        Args:
            names: names of the columns; those that this model lacks are ignored, and what it misses is filled in.
            X: (n, P) numbers, NaN where missing; it may be overwritten.
            targets, texts, traced: as in `learn_rows`. A label that the model does not know has an infinite loss.
        """
        table = Table(X, list(names), texts or {})
        return learn_rows.score_rows(self.learner, table, targets, traced=traced)

    def learn_wider(
        self,
        names: Sequence[Any],
        X: FloatArray,
        targets: Any,
        w: FloatArray,
        *,
        texts: Mapping[Any, Sequence[str | None]],
        kinds: Sequence[ColumnKind] = (),
        traced: bool = False,
        lags: FloatArray | None = None,
    ) -> Outcome:
        """Learn one event that brings new fields; if it is not learned, they are not added.

        Args:
            names: names of the new fields, in order.
            X: (1, F + new).
            targets, w, texts, traced, lags: as in `learn_rows`.
            kinds: what the new fields hold; by default what the arguments say, and numbers otherwise.
        """
        additions = Additions(tuple(names), kinds=tuple(kinds))
        return learn_rows.learn_wider(self.learner, additions, Events(X, texts, targets, w), traced=traced, lags=lags)

    # -- Looking inside ------------------------------------------------------------------------------------------------

    @property
    def is_choosing(self) -> bool:
        """Whether the model selects the number of experts."""
        return self.options.is_choosing

    @property
    def most_experts(self) -> int:
        """Maximum number of experts."""
        return self.options.most_experts

    @property
    def member_names(self) -> tuple[str, ...]:
        """Names of all members that the portfolio may have; none where the average predicts alone."""
        options = self.options
        if not options.has_portfolio:
            return ()
        permanent = (Average.name, Latest.name, OneExpert.name)
        refitted = (Refitted.name,) * options.has_refits
        return (*permanent, *refitted, *(kind.name for kind in SINGLE), *(Curved.name,) * options.has_curved)

    @property
    def member_weights(self) -> dict[str, float]:
        """How much each member of the portfolio counts in the next prediction; empty where the average predicts alone.

        ``average`` and ``latest`` are the mixture by the mean of its parameters and by its current ones; ``one_expert``
        is a single expert that forgets, ``steady`` one that forgets little and sees inputs beyond the range seen before
        as they are, and ``floor`` one without inputs; while they take part, ``quick`` is one that forgets at once,
        ``curved`` one that sees squares and products of inputs, and ``refitted`` the mixture as it was fitted again to
        more events.
        The weights add up to 1. During warm-up there is no portfolio yet.
        """
        return self.learner.member_weights

    @property
    def is_classifier(self) -> bool:
        """Whether targets are labels of classes."""
        return self.learner.targets.are_labels

    @property
    def n(self) -> int:
        """Number of events learned, including those in the warm-up buffer."""
        return self.learner.n

    @property
    def fields(self) -> list[Any]:
        """Names of the fields of events, in the order of raw rows; without categories and times, `feature_names`."""
        return list(self.learner.encoder.own_fields)

    def lags_of_next(self) -> dict[str, float | None]:
        """Return the lags that the next event sees, by the names of these features; None where one is missing.

        Where a target becomes known only after later events were predicted, add them to the event before it is
        predicted, and learn the event with them: what an event itself holds comes before what the model remembers.
        """
        context = self.learner.context
        if context.lags is None:
            return {}
        values = context.lags.latest(context.targets.n_outputs).tolist()
        names = self.learner.encoder.lagged
        return {name: None if value != value else value for name, value in zip(names, values, strict=True)}  # noqa: PLR0124

    @property
    def column_kinds(self) -> dict[Any, ColumnKind]:
        """What each field holds: ``"number"``, ``"category"`` or ``"time"``; truth values are numbers."""
        return dict(self.learner.encoder.columns.own_kinds)

    @property
    def awaited(self) -> list[Any]:
        """Names of columns that join `fields` with their first value."""
        return list(self.learner.encoder.columns.awaited)

    @property
    def feature_names(self) -> list[Any]:
        """Names of the columns, in the order of the parameters: ``temperature``, ``color=red``, ``t:day_sin``."""
        return list(self.learner.encoder.feature_names)

    @property
    def n_expert_features(self) -> int:
        """Number of expert features p_v, including intercept and powers."""
        return self.learner.encoder.n_expert_features

    @property
    def output_names(self) -> list[Any]:
        """Names of several outputs, or the labels encountered so far, in the order of the parameters."""
        return list(self.learner.targets.names)

    @property
    def noise(self) -> ExpertNoise:
        """Noise of an output at scale 1, given the expert; meaningless for a classifier."""
        return self.learner.context.family.noise

    @property
    def is_warming_up(self) -> bool:
        """Whether the warm-up is not over."""
        return self.learner.phase.leader is None

    @property
    def chosen_n_experts(self) -> int | None:
        """Number of experts of the serving mixture; None before there is one."""
        state = self.learner.state
        return None if state is None else len(state.masses)

    @property
    def n_outliers(self) -> int:
        """Number of events since the warm-up that Gaussian experts with tails counted less, as outliers.

        Experts that have more than half of the responsibility for such an event find it beyond their tail before they
        learn it. Other kinds of experts, and a classifier, count none.
        """
        return int(self.learner.context.outliers[0])

    @property
    def drifts(self) -> int:
        """Number of drifts detected so far; 0 without a detector."""
        detector = self.learner.context.detector
        return 0 if detector is None else detector.drifts

    @property
    def last_drift(self) -> Drift | None:
        """The latest drift, with losses in the target's own units; None if there was none."""
        return self.learner.last_drift

    @property
    def step_size(self) -> float:
        """Step size γ of the next event."""
        return self.learner.step_size

    def step_size_at(self, n: int) -> float:
        """Return the schedule's γ of the n-th event, counted from 1, as if no drift were detected."""
        return self.learner.context.options.schedule(n)

    @property
    def masses(self) -> FloatArray:
        """Return each expert's share of events, (K,): m_k / Σ m; NaN during warm-up."""
        return self.learner.masses

    def gate_one(self, x: Mapping[Any, Any]) -> FloatArray:
        """Return the gate's probabilities g_k(x), (K,); NaN during warm-up, where provisional experts come and go."""
        return self.learner.gate(x)

    def experts(self) -> list[dict[str, Any]]:
        """Return diagnostics of each expert; empty during warm-up.

        Returns:
            For each expert ``share``, its share of events; ``loss``, the mean −log e_k(y|x) of those, in the target's
            own units; ``nearest``, the most similar expert, or None, and ``divergence`` from it in nats per event, or
            None; ``condition``: "alive", "starved" or "duplicate" (docs/experts.md).
        """
        return self.learner.experts()

    @property
    def convergence_residual(self) -> float:
        """Return ‖E(S̄ − s)‖ / E‖S̄ − s‖, exponentially weighted: near 0 at a stationary point; NaN during warm-up."""
        return self.learner.convergence_residual

    def is_finite(self) -> bool:
        """Return whether every number in the state is finite; anything else is a bug."""
        return self.learner.phase.is_finite()

    def parameters(self, *, averaged: bool = False) -> dict[str, Any]:
        """Return copies of the parameters and statistics, in the model's own (standardized) coordinates.

        Args:
            averaged: return the averaged parameters, the first member of a portfolio, instead of the raw iterate.

        Returns:
            ``gate`` (K−1, p_w); ``experts`` (K, Q, p_v), or (K, M−1, p_v) for a classifier, whose first class is the
            reference; ``variances`` (K, Q) or (K, Q, Q), not for a classifier; ``masses`` (K,); ``gate_gram``
            (p_w, p_w); ``expert_grams`` (K, p_v, p_v); ``n``, number of events; ``decay`` (Π(1−γ) since the last
            refresh), ``prior_weight`` and ``prior``, which the recursion needs too; ``scale`` where inputs are
            standardized; ``ranges`` where inputs and predictions are held to what was seen.
            Feature order: intercept, degree 1 in the order of `feature_names`, degree 2, …

        Raises:
            ConfigError: the warm-up is not over, so there is no mixture yet.
        """
        return parameters_of(self.learner, averaged=averaged)

    # -- External changes ----------------------------------------------------------------------------------------------

    def change(self, name: str, value: Any) -> None:
        """Change an argument that may change over a checkpoint, from now on.

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
        """Change the arguments that may change over a checkpoint to those of `options`, from now on.

        Args:
            options: options of the same kind of model.
            *policies: see `Options.changeable`.
        """
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
        return {
            "model": {"kind": type(self).__name__, "arguments": self.arguments()},
            "n": self.n,
        }

    def state_digest(self) -> str:
        """Return the SHA-256 of everything that affects future learning; equal digests mean equal futures."""
        return state_digest(checkpoint.learning_arrays(self.learner))

    @classmethod
    def from_checkpoint(cls, arrays: dict[str, AnyArray], description: Mapping[str, Any]) -> Self:
        """Restore a model from what `arrays` and `describe` returned.

        Raises:
            CheckpointError: an array is missing, unknown, of a shape that does not fit the model, or holds invalid
                values. Other errors, which a description may cause, are converted by `streammoe.checked`.
        """
        model = cls(**as_arguments(cls.options_type, description["arguments"]))
        checkpoint.restore(model.learner, arrays)
        return model
