"""The common face of all estimators."""

from __future__ import annotations

import os
from abc import abstractmethod
from collections.abc import Mapping, Sequence
from typing import Any, Self

import numpy as np

from streammoe.engine.drift import Drift
from streammoe.errors import ConfigError
from streammoe.estimators.arguments import Arguments
from streammoe.model import checkpoint, learn_rows
from streammoe.model.learn_array import learn_array
from streammoe.model.learn_rows import Outcome
from streammoe.model.learner import Learner
from streammoe.model.parameters import parameters_of
from streammoe.model.tables import Events, table_of_array
from streammoe.model.targets import Targets
from streammoe.noise import Noise
from streammoe.options import FeatureOptions, as_arguments
from streammoe.persistence import durable, pieces, state_digest
from streammoe.types import AnyArray, FloatArray


class MixtureOfExperts(Arguments):
    """The arguments of an estimator, and the learner that it delegates to."""

    def __init__(self, **arguments: Any) -> None:
        super().__init__(**arguments)
        features = FeatureOptions(categorical=tuple(self.categorical or ()), timestamps=tuple(self.timestamps or ()))
        self.learner = Learner(self.options, features, self._new_targets())

    @abstractmethod
    def _new_targets(self) -> Targets:
        """Return what targets look like, as the arguments say."""

    # -- Many rows -----------------------------------------------------------------------------------------------------

    def learn_array(
        self,
        X: AnyArray,
        y: AnyArray,
        *,
        weights: AnyArray | None = None,
        feature_names: Sequence[Any] | None = None,
    ) -> FloatArray:
        """Learn rows in order; equals a loop over `learn_one`, bit for bit, wherever the array is cut.

        Args:
            X: (n, P) finite numbers.
            y: (n,) or (n, Q) finite numbers, or (n,) labels. New outputs are called y0, y1 and so on.
            weights: (n,) how much each event counts, in [0, 1e6]; 1 without it. One of 0 is not learned.
            feature_names: names of the columns; without them x0, x1, …

        Returns:
            (n,) prequential log-losses −log s(y|x) in the target's own units: each row is predicted, then learned.

        Raises:
            InvalidEvent: a row that would poison the model; its index is in ``row`` and nothing was learned.
        """
        table = table_of_array(X, feature_names, self.learner.encoder.fields)
        return learn_array(self.learner, table, y, weights)

    def log_likelihood_array(
        self, X: AnyArray, y: AnyArray, *, feature_names: Sequence[Any] | None = None
    ) -> FloatArray:
        """Log s(y|x) of each row, shape (n,), in the target's own units; learns nothing."""
        return self.learner.log_likelihood(table_of_array(X, feature_names, self.learner.encoder.fields), y)

    # -- Rows of a stream ----------------------------------------------------------------------------------------------

    def introduce(self, names: Sequence[Any], row: FloatArray, targets: Any) -> None:
        """Fix the fields to those of the first event, (1, F) with its target, unless it cannot be used; learn nothing.

        Raises:
            InvalidEvent: there is no field, a value is out of range, or the label is none; nothing was changed.
        """
        learn_rows.introduce(self.learner, names, row, targets)

    def learn_rows(
        self,
        X: FloatArray,
        targets: Any,
        weights: FloatArray | None = None,
        *,
        texts: Mapping[Any, Sequence[str | None]] | None = None,
        traced: bool = False,
    ) -> Outcome:
        """Learn rows in the model's own field order; those that cannot be used are rejected, each by itself.

        Args:
            X: (n, F) in the order of `fields`; NaN is a missing value, infinities are out of range.
            targets: (n, Q), NaN for an event without target, or (n,) labels and None; such an event is predicted and
                not learned.
            weights: (n,) in [0, 1e6]; an event of weight 0 is not learned.
            texts: (n,) levels of each categorical field by its name, None where missing; X holds nothing of them.
            traced: whether to keep what each expert said.
        """
        counts = np.ones(len(X)) if weights is None else weights
        return learn_rows.learn_rows(self.learner, Events(X, texts or {}, targets, counts), traced=traced)

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
        """Learn one event that brings new fields; if it is not learned, they are not added.

        Args:
            names: of the new fields, in order.
            X: (1, F + new).
            targets, weights, texts, traced: as in `learn_rows`.
        """
        return learn_rows.learn_wider(self.learner, names, Events(X, texts, targets, weights), traced=traced)

    # -- Looking inside ------------------------------------------------------------------------------------------------

    @property
    def is_classifier(self) -> bool:
        """Whether targets are labels of classes."""
        return self.learner.targets.are_labels

    @property
    def n(self) -> int:
        """Events learned, those in the warm-up buffer, and those that wait for their group, included."""
        return self.learner.n

    @property
    def fields(self) -> list[Any]:
        """Names of what events hold, in the order of raw rows; without categories and times, `feature_names`."""
        return list(self.learner.encoder.fields)

    @property
    def feature_names(self) -> list[Any]:
        """Names of the columns, in the order of the parameters: a number's own, ``color=red``, ``t:day_sin``."""
        return list(self.learner.encoder.feature_names)

    @property
    def n_expert_features(self) -> int:
        """p_v: features that the experts see, intercept and powers included."""
        return self.learner.encoder.n_expert_features

    @property
    def output_names(self) -> list[Any]:
        """Names of the outputs where there may be several, or the labels met so far, in the order of the parameters."""
        return list(self.learner.targets.names)

    @property
    def noise(self) -> Noise:
        """What the noise of an output is like at scale 1, given the expert; says nothing of a classifier."""
        return self.learner.context.family.noise

    @property
    def is_warming_up(self) -> bool:
        """Whether events still go to the warm-up buffer."""
        return self.learner.phase.leader is None

    @property
    def chosen_n_experts(self) -> int | None:
        """K of the mixture that serves now; None before there is one. It may change while candidates race."""
        state = self.learner.state
        return None if state is None else len(state.masses)

    @property
    def n_candidates(self) -> int:
        """How many mixtures learn side by side: 0 before there is one, 1 unless there is a race."""
        return self.learner.phase.n_candidates

    @property
    def n_reseeds(self) -> tuple[int, int]:
        """How many experts were tried as half of another, and how many of those were kept."""
        tried, kept = self.learner.context.reseeds.tolist()
        return tried, kept

    @property
    def drifts(self) -> int:
        """Changes of the relation that were found so far; 0 without a detector."""
        watch = self.learner.context.watch
        return 0 if watch is None else watch.drifts

    @property
    def last_drift(self) -> Drift | None:
        """The latest of them, its losses in the target's own units; None if there was none."""
        return self.learner.last_drift

    @property
    def step_size(self) -> float:
        """γ of the next event."""
        return self.learner.context.steps(self.n + 1)

    def step_size_at(self, n: int) -> float:
        """γ of the n-th event, the first one being 1, by the schedule alone: as if no drift were found."""
        return self.learner.context.options.schedule(n)

    @property
    def masses(self) -> FloatArray:
        """(K,) share of each expert, m_k / Σ m; NaN during warm-up."""
        return self.learner.masses

    def gate_one(self, x: Mapping[Any, Any]) -> FloatArray:
        """(K,) the gate's shares g_k(x); NaN in the warm-up, whose quick fits come and go with experts of their own."""
        return self.learner.gate(x)

    def experts(self) -> list[dict[str, Any]]:
        """How each expert fares; empty during warm-up.

        Returns:
            For each expert ``share``, of the events that it answers for; ``loss``, the mean −log e_k(y|x) of those, in
            the target's own units; ``nearest``, the expert that says most nearly the same, or None, and ``divergence``
            from it in nats an event, or None; ``condition``: "alive", "starved" or "duplicate" (docs/experts.md).
        """
        return self.learner.experts()

    @property
    def convergence_residual(self) -> float:
        """‖E(S̄ − s)‖ / E‖S̄ − s‖, exponentially weighted: near 0 at a stationary point; NaN during warm-up."""
        return self.learner.convergence_residual

    def is_finite(self) -> bool:
        """Whether every number in the state is finite; anything else is a bug."""
        return self.learner.phase.is_finite()

    def parameters(self, *, averaged: bool = False) -> dict[str, Any]:
        """Copies of the parameters and statistics, in the model's own (standardised) coordinates.

        Args:
            averaged: the parameters that serve predictions instead of the raw iterate.

        Returns:
            ``gate`` (K−1, p_w); ``experts`` (K, Q, p_v), or (K, M−1, p_v) for a classifier, whose first class is the
            reference; ``variances`` (K, Q) or (K, Q, Q), not for a classifier; ``masses`` (K,); ``gate_gram``
            (p_w, p_w); ``expert_grams`` (K, p_v, p_v); ``n``, events that are in them; ``decay`` (Π(1−γ) since the last
            refresh), ``prior_weight`` and ``prior``, which the recursion needs too; ``scale`` where inputs are
            standardised.
            Feature order: intercept, degree 1 in the order of `feature_names`, degree 2, …

        Raises:
            ConfigError: the warm-up is not over, so there is no mixture yet.
        """
        return parameters_of(self.learner, averaged=averaged)

    # -- Changes from outside ------------------------------------------------------------------------------------------

    def change(self, name: str, value: Any) -> None:
        """Give an argument another value from now on, one that may change over a checkpoint.

        Raises:
            ConfigError: it may not, or the constructor would not take the value.
        """
        changeable = self.options.changeable()
        if name not in changeable:
            raise ConfigError(f"{name}: it cannot change; only {', '.join(sorted(changeable))} can")
        self._change(name, value)
        self.learner.change(self.options)

    def set_range_factor(self, range_factor: float) -> None:
        """Judge from now on by another `range_factor`; it says nothing about what was learned.

        Raises:
            ConfigError: it is none that the constructor would take.
        """
        self.change("range_factor", range_factor)

    def set_reseed(self, reseed: str) -> None:
        """Let idle experts be tried as half of another from now on (``"auto"``), or no more (``"off"``).

        Raises:
            ConfigError: it is neither.
        """
        self.change("reseed", reseed)

    def set_max_levels(self, max_levels: int) -> None:
        """Let categories have more levels from now on; those that had no column until now have to come again.

        Raises:
            ConfigError: it is none that the constructor would take.
        """
        self.change("max_levels", max_levels)

    def set_columns(self, names: Sequence[Any]) -> None:
        """Fix the columns of a model that has none yet, in this order.

        Raises:
            ConfigError: it has columns, or it would become too large.
        """
        self.learner.set_columns(names)

    def reseed_expert(self, expert: int) -> None:
        """Begin an expert anew, at once: as one half of the expert whose loss costs the mixture most.

        What it knew goes to its nearest, so that statistics of the mixture as a whole stay what they are.

        Raises:
            ConfigError: there is no such expert, or no other one.
        """
        self.learner.reseed_expert(expert)

    # -- In a checkpoint -----------------------------------------------------------------------------------------------

    def save(self, path: str | os.PathLike[str]) -> None:
        """Write the model to one file, durably; `streammoe.load` reads it and goes on bit for bit.

        Raises:
            PoisonedModel: a number in it is not finite; nothing was written.
            OSError: the file cannot be written.
        """
        durable.replace(durable.path_of(path), *pieces(self.arrays(), self.describe()))

    def arrays(self) -> dict[str, AnyArray]:
        """All arrays of a checkpoint: what shapes what comes next, and ``diagnostics.*``.

        Raises:
            PoisonedModel: a number in them is not finite, so that they must not be kept.
        """
        return checkpoint.arrays_of(self.learner)

    def describe(self) -> dict[str, Any]:
        """The JSON part of a checkpoint: which model this is, and its fingerprint."""
        return {**self.identify(), "state_digest": self.state_digest()}

    def identify(self) -> dict[str, Any]:
        """`describe` without the fingerprint, which takes a while for a wide model."""
        return {
            "model": {"kind": type(self).__name__, "arguments": self.arguments()},
            "n": self.n,
        }

    def state_digest(self) -> str:
        """sha256 over everything that shapes what comes next; equal digests mean equal futures."""
        return state_digest(checkpoint.shaping_arrays(self.learner))

    @classmethod
    def from_checkpoint(cls, arrays: dict[str, AnyArray], description: Mapping[str, Any]) -> Self:
        """The inverse of `arrays` and `describe`.

        Raises:
            CheckpointError: an array is missing, unknown, of another shape than the model asks for, or holds what no
                model can. `streammoe.checked` says the same of other errors, which a description may cause.
        """
        model = cls(**as_arguments(cls.options_type, description["arguments"]))
        checkpoint.restore(model.learner, arrays)
        return model
