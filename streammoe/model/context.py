"""The parts of a model that outlast its phases, and operations that phases share."""

from __future__ import annotations

import copy
import logging
from collections.abc import Collection, Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np

from streammoe.columns.encoder import Encoder
from streammoe.columns.fitting import codes_in, fit_scaler, plausible_inputs, plausible_targets
from streammoe.columns.kinds import ColumnKind, GivenKinds
from streammoe.columns.layout import Layout
from streammoe.columns.scaling import come_from_a_running_scaler
from streammoe.engine import em, mixture, schedule
from streammoe.engine.bound_mixture import learn_features
from streammoe.engine.cost import Shape, row_cost
from streammoe.engine.drift import DriftDetector
from streammoe.engine.interruption import interruptible
from streammoe.engine.members import with_series
from streammoe.engine.mixture import Candidate
from streammoe.engine.portfolio import Portfolio
from streammoe.engine.products import MOST_FEATURES, terms_of
from streammoe.engine.recent import RecentEvents, capacity_for
from streammoe.engine.reservoir import Reservoir
from streammoe.kernels import features
from streammoe.kernels.state import LearningOptions, MMState
from streammoe.model.lags import SERIES_LAGS, LagMemory, Past
from streammoe.model.level_means import LevelMeans, values_of
from streammoe.model.targets import Targets
from streammoe.notation import as_text, missing_advice
from streammoe.options import FeatureOptions, Options
from streammoe.replacements import Noticed
from streammoe.schedules import Restarted, Steps
from streammoe.text import shown
from streammoe.types import FloatArray, IntArray

SCALER_COST = 100
"""Rough multiply-adds per value when fitting scales, which need quantiles."""
DESIGN_COST = 40
"""Rough multiply-adds per feature when expanding rows."""


SCALER_SHOWS = 30
"""Number of events after which a scaler in front of the model is noticed."""
CODES_SHOW, CODES_END = 64, 200
"""Numbers of first events in which a code for missing values is noticed, at least and at most."""
DISBELIEF = 1e-9
"""What remains of the weight of an event whose target is taken for an error; a weight of 0 would mark no event."""
SCALED = (-1, "scaled")
"""The entry of `Context.reported` that says so."""
LOGGER = logging.getLogger("streammoe.estimators")


class Moves(NamedTuple):
    """New indexes of the features of gate and experts after new columns, see `Layout.places_in`."""

    gate_at: IntArray
    expert_at: IntArray


class Context(Noticed):
    """Everything in a model except its phase.

    Attributes:
        options: hyper-parameters of the model.
        features: which fields are categories or times.
        targets: format of the targets.
        family: family of the experts.
        encoder: encoder of events.
        lags: the memory of the last events, if they are features of the next one.
        level_means: what is known of the levels of identifiers, if there are any.
        past: the last targets, if one member sees them and anything was learned.
        detector: the drift detector, if there is one.
        recent: the latest events, to which the mixture is fitted.
        reservoir: a sample of all events, if there is to be one; nothing that is learned depends on it.
        mean_weight: (1,) running mean of the weights of events, relative to which they count.
        outliers: (1,) number of events that counted less, since they were far from their expert.
        warmed_up_at: number of events learned when the mixture was first fitted, where this process has seen that.
        reported: conditions of experts, and of the inputs, that were logged already; copies of a model share it.
    """

    def __init__(self, options: Options, features: FeatureOptions, targets: Targets) -> None:
        self.options = options
        self.features = features
        self.targets = targets
        self.family = targets.family
        self.lags = None if options.given_lags is None else LagMemory(options.given_lags)
        self.level_means: LevelMeans | None = None
        self.past: Past | None = None
        self.encoder = self.new_encoder()
        self.detector = None if options.drift is None else DriftDetector()
        self.recent = RecentEvents()
        self.reservoir = Reservoir(options.reservoir, options.seed) if options.reservoir else None
        self.mean_weight = np.ones(1)
        self.outliers = np.zeros(1, dtype=np.int64)
        self.warmed_up_at = 0
        self.reported: set[tuple[int, str]] = set()

    def copy(self) -> Context:
        """Return an independent copy."""
        other = copy.copy(self)
        other.targets = self.targets.copy()
        other.encoder = self.encoder.copy()
        other.lags = self.lags and self.lags.copy()
        other.level_means = self.level_means and self.level_means.copy()
        other.past = self.past and self.past.copy()
        other.detector = self.detector and self.detector.copy()
        other.recent = self.recent.copy()
        other.reservoir = self.reservoir and self.reservoir.copy()
        other.mean_weight = self.mean_weight.copy()
        other.outliers = self.outliers.copy()
        return other

    @property
    def steps(self) -> Steps:
        """Step sizes from now on."""
        options = self.options
        if self.detector is None or self.detector.last is None or options.drift is None:
            return options.schedule
        again = type(options).model_fields["schedule"].default if options.schedule.forgets else options.schedule
        return Restarted(options.schedule, again, self.detector.last.n, options.drift.restart)

    @property
    def shape(self) -> Shape:
        """Size of the largest mixture that the model may have."""
        encoder = self.encoder
        n_rows = self.family.n_rows(self.targets.n_outputs)
        return Shape(self.options.most_experts, n_rows, encoder.n_gate_features, encoder.n_expert_features)

    @property
    def padded_shape(self) -> Shape:
        """The same with the padding of features, as states have it."""
        return self.shape._replace(p_w=self.encoder.gate_width, p_v=self.encoder.expert_width)

    @property
    def capacity(self) -> int:
        """How many of the latest rows are kept."""
        encoder, asked = self.encoder, self.options.warmup or 0
        row_bytes = 8 * (len(encoder.fields) + encoder.n_outputs + 2)
        row_work = row_cost(self.family, self.shape, has_matrices=True)
        return capacity_for(encoder.n_expert_features, row_bytes, row_work, asked + asked // 2)

    @property
    def first_fit(self) -> int:
        """The event count of the first fit."""
        return schedule.first_fit(self.encoder.n_expert_features, self.capacity, self.options.warmup)

    # -- Mixtures ------------------------------------------------------------------------------------------------------

    def learning_options(self, n_experts: int) -> LearningOptions:
        """Return the options of steps of a mixture with so many experts."""
        options = self.options
        return mixture.learning_options(
            bound=options.bound,
            n_experts=n_experts,
            n_rows=self.family.n_rows(self.targets.n_outputs),
            prior_strength=options.prior_strength,
            averaging=options.averaging_kind,
            schedule=options.schedule,
            least_weight=getattr(options.averaging, "rate", 0.0),
            recent_variances=options.has_portfolio,
            top_k=options.top_k,
            span=options.events_per_coefficient * self.encoder.n_expert_features,
        )

    def candidate(self, state: MMState) -> Candidate:
        """Return a mixture that continues from a state, with everything that its steps need."""
        residual = mixture.new_residual(state)
        return Candidate(state, residual, self.learning_options(len(state.masses)))

    def blank_portfolio(self, terms: IntArray | None, *, is_trusted: bool = False) -> Portfolio:
        """Return a portfolio of members that have learned nothing; `terms` are those of `curved`, if it is one."""
        family, n_outputs = self.family, self.targets.n_outputs
        return Portfolio.blank(
            family,
            self.options.bound,
            n_outputs,
            self.encoder.expert_width,
            terms=terms,
            n_lags=self.n_series_lags,
            is_trusted=is_trusted,
        )

    @property
    def n_series_lags(self) -> int:
        """How many of the last targets one member sees; 0 if none does."""
        return SERIES_LAGS if self.options.has_series else 0

    def begin_series(self) -> None:
        """Remember targets from now on, if one member sees the last ones."""
        self.past = Past(self.encoder.n_outputs) if self.options.has_series else None

    def unjudged_terms(self) -> IntArray | None:
        """Return the features of the member of products where no rows say which matter: of many, squares alone.

        Columns that have no scale yet are not multiplied: products might be enormous. None without such a member.
        """
        options, encoder = self.options, self.encoder
        p = encoder.n_expert_features
        if not options.has_curved or p > MOST_FEATURES:
            return None
        columns = np.arange(1, 1 + len(encoder.scaler.scale))
        unscaled = encoder.plan.numeric[encoder.scaler.scale[encoder.plan.numeric[:, 1]] == 1.0, 1]
        multiplied = np.setdiff1d(columns, 1 + unscaled) if options.standardize else columns
        return terms_of(p, multiplied, np.diag(np.full(p, np.inf)))

    def learn_apart(self, state: MMState, steps: Steps, *rows: FloatArray) -> None:
        """Let a mixture apart from the portfolio learn rows of a buffer in place."""
        learn_features(self.family, self.candidate(state), steps, *rows, n_outputs=self.targets.n_outputs)

    def random_start(self, n_experts: int) -> MMState:
        """Return a state of so many random experts; of one, that of its prior."""
        encoder, options = self.encoder, self.options
        sizes = encoder.gate_width, encoder.expert_width, self.targets.n_outputs
        prior = self.family.unit_prior(options.prior_strength, *sizes)
        return mixture.random_start(self.family, prior, n_experts, encoder.n_expert_features, options.seed)

    # -- Buffered rows -------------------------------------------------------------------------------------------------

    def fit_scaler(self, encoder: Encoder, X: FloatArray, Y: FloatArray) -> None:
        """Fit the scales of an encoder to rows."""
        # Class indexes must not be scaled.
        targets = Y if self.family.is_metric else np.zeros_like(Y)
        standardize = self.options.standardize
        interruptible(SCALER_COST * (X.size + Y.size), fit_scaler, encoder, X, targets, standardize=standardize)
        shows = len(X) >= SCALER_SHOWS and SCALED not in self.reported
        if shows and come_from_a_running_scaler(encoder.columns.numbers(X)):
            self.reported.add(SCALED)
            LOGGER.warning(
                "the inputs come from a scaler that learns as it goes: leave it out, %s; behind it the first events "
                "are on other scales than later ones",
                "since the model scales them itself" if standardize else "and set standardize instead",
            )
        first = X[:CODES_END] if len(X) >= CODES_SHOW else X[:0]
        for name, (code, count) in codes_in(encoder, first).items():
            if (known := (-1, f"code {name!r}")) not in self.reported:
                self.reported.add(known)
                LOGGER.warning(
                    "column %s: the value %s occurs %d times in the first %d events, far from all others; if it stands "
                    "for a missing value, %s; in Python give None in its place",
                    shown(name),
                    as_text(code),
                    count,
                    len(first),
                    missing_advice(str(name), code),
                )

    def buffer(self, encoder: Encoder, X: FloatArray, Y: FloatArray, weights: FloatArray) -> em.Buffer:
        """Convert raw rows to a buffer for batch fits, in the coordinates of an encoder.

        An input that would be out of range if it came now is missing, and others are held to what was seen. A row of
        which a target would be, or is taken for an error, has no weight; all its targets are the centre.
        """
        scaler, left_out = encoder.scaler, np.zeros(len(Y), dtype=np.bool_)
        if self.family.is_metric:
            left_out |= np.isnan(plausible_targets(encoder, Y)).any(axis=1)
        if self.doubts_targets:
            left_out |= encoder.target_bounds.are_far(Y).any(axis=1)
        X = encoder.hold(plausible_inputs(encoder, X))[0]
        W, R = interruptible(DESIGN_COST * len(X) * encoder.expert_width, encoder.design, X)
        targets = (np.where(left_out[:, None], scaler.target_center, Y) - scaler.target_center) / scaler.target_scale
        return em.Buffer(W, R, targets, np.where(left_out, 0.0, weights))

    @property
    def doubts_targets(self) -> bool:
        """Whether targets far out are taken for errors: not by experts that take each at face value."""
        return self.options.hold and self.family.is_metric and not self.family.is_exact

    def relative(self, Y: FloatArray, weights: FloatArray, n: int) -> FloatArray:
        """Return the weights of rows in units of their running mean after n events, which they move.

        So weights that are all equal change nothing, however small they are.
        """
        if (weights == self.mean_weight[0]).all():
            return np.ones_like(weights)
        relative = weights.copy()
        mean = self.mean_weight[0]
        for i in np.flatnonzero(~np.isnan(Y[:, 0])).tolist():
            n += 1
            mean = weights[i] if n == 1 else mean + (weights[i] - mean) / n  # exactly, or equal ones would differ
            relative[i] = weights[i] / mean
        self.mean_weight[0] = mean
        return relative

    # -- Earlier events ------------------------------------------------------------------------------------------------

    def with_last(self, X: FloatArray) -> FloatArray:
        """Return raw rows to be predicted with the lags of the next event, and the means of their levels."""
        if self.lags is not None:
            X = self.lags.shown(X, self.targets.n_outputs)
        return X if self.level_means is None else self.level_means.shown(X, self.encoder.columns)

    def with_earlier(self, X: FloatArray, Y: FloatArray) -> FloatArray:
        """Return raw rows to be learned with their lags and the means of their levels, and remember them."""
        columns = self.encoder.columns
        if self.lags is not None:
            X = self.lags.taken(X, Y, [*map(columns.index.get, self.lags.lags.inputs)])
        return X if self.level_means is None else self.level_means.taken(X, Y, columns)

    def begun_again(self, kept: Mapping[Any, Collection[str]]) -> Context:
        """Return the context of a model of the same columns that has learned nothing, with more identifiers.

        Args:
            kept: these fields, with the levels that keep columns.
        """
        other, columns = copy.copy(self), self.encoder.columns
        other.lags = self.lags and LagMemory(self.lags.lags)
        own = [*columns.own_kinds, *columns.lagged[: columns.n_lags]]
        other.level_means = self.new_level_means((*columns.identifiers, *kept), own)
        other.encoder = other.new_encoder()
        other.encoder.stated, other.encoder.warned_of = self.encoder.stated, self.encoder.warned_of
        other.encoder.use(columns.with_identifiers(other.level_means.identifiers, other.level_means.names, kept))
        other.detector = self.detector and DriftDetector()
        other.recent = RecentEvents()
        other.reservoir = self.reservoir and Reservoir(self.options.reservoir, self.options.seed)
        other.mean_weight, other.outliers = self.mean_weight.copy(), np.zeros_like(self.outliers)
        return other

    def take_over(self, before: Context) -> None:
        """Keep of the context of a model that has learned the same events what learning them again does not tell."""
        if self.past is not None and before.past is not None:
            self.past.is_timely = before.past.is_timely
        if self.reservoir is not None and before.reservoir is not None:
            # The same events were drawn; their weights as they were given are not among the rows that are kept.
            given = before.reservoir.rows(len(before.encoder.fields)).weights
            rows = self.reservoir.rows(len(self.encoder.fields))._replace(weights=given)
            self.reservoir = Reservoir(self.options.reservoir, self.options.seed, rows, self.reservoir.seen)

    def new_level_means(
        self, identifiers: Sequence[Any], taken: Collection[Any], values: Sequence[Any] | None = None
    ) -> LevelMeans:
        """Return what knows no level of identifiers yet; see there for `values` and `taken`."""
        outputs, is_metric = self.targets.lagged_names, self.family.is_metric
        return LevelMeans(identifiers, outputs, is_metric=is_metric, values=values, taken=taken)

    @property
    def level_values(self) -> list[Any]:
        """Targets, or classes so far but one, that levels of identifiers have means of."""
        return values_of(self.targets.lagged_names, is_metric=self.family.is_metric)

    def last_targets(self, n: int) -> FloatArray:
        """Return the last targets as features of the next event after n ones, (1, S); others do not see them."""
        if self.past is None:
            return np.zeros((1, 0))
        targets, scaler, is_metric = self.past.targets, self.encoder.scaler, self.family.is_metric
        if is_metric:
            held = targets.copy()
            self.encoder.hold_predictions(held)
            targets = np.where(np.isnan(targets), 0.0, (held - scaler.target_center) / scaler.target_scale)
            targets = targets if n > features.SCALED else np.clip(targets, -features.FARTHEST, features.FARTHEST)
        rows = np.concatenate([targets, targets[:1]])  # the last one is the next event's, and not looked at
        R = np.zeros((len(rows), 1))
        return with_series(R, rows, SERIES_LAGS, self.targets.n_outputs, is_metric=is_metric)[-1:, 1:]

    # -- Columns -------------------------------------------------------------------------------------------------------

    def new_encoder(self, columns: Sequence[Any] = (), kinds: Sequence[ColumnKind] | None = None) -> Encoder:
        """Return an encoder of these fields that has seen no event; see `Encoder.set_columns`."""
        options, given, lagged = self.options, self.features, () if self.lags is None else self.lags.lags.inputs
        encoder = Encoder(
            n_outputs=self.family.n_targets(self.targets.n_outputs),
            degree=options.degree,
            gate_degree=options.gate_degree,
            range_factor=options.range_factor,
            given=GivenKinds(given.categorical, given.timestamps, given.numeric, lagged),
            lagged=() if self.lags is None else self.lags.names(self.targets.lagged_names),
            max_levels=options.max_levels,
            holds=options.hold,
        )
        if self.level_means is not None:
            known = self.level_means
            encoder.use(encoder.columns.with_identifiers(known.identifiers, known.names, {}))
        encoder.set_columns(columns, kinds)
        return encoder

    def moves(self, layout: Layout) -> Moves:
        """Return the new indexes of the features of an earlier layout."""
        now, options = self.encoder.layout, self.options
        return Moves(layout.places_in(now, options.gate_degree), layout.places_in(now, options.degree))

    def ranged(self, targets: FloatArray) -> FloatArray:
        """Return targets for range checks: class indexes are exempt, but NaN still means "no target"."""
        return targets if self.family.is_metric else 0.0 * targets
