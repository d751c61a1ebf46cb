"""The contract suite for families of experts: inherit it in a test class to check your family.

Importing it does not require pytest. To see the values behind a failing ``assert``, let pytest rewrite them by
``pytest.register_assert_rewrite("streammoe.testing.families")`` in a ``conftest.py``.

One long file, since a suite is inherited as one class, and its promises are read from top to bottom.
"""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Iterator, Mapping, Sequence
from itertools import pairwise
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, ClassVar, Protocol

import numpy as np

from streammoe.engine import mixture
from streammoe.engine.em import Buffer, Em, one_expert_prior, statistics_at
from streammoe.engine.gradient import gradient, moved
from streammoe.errors import InvalidEvent
from streammoe.estimators import MixtureOfExperts, load
from streammoe.experts import Family, Parameters
from streammoe.options import WarmUp
from streammoe.schedules import Constant, Power
from streammoe.types import AnyArray, FloatArray

EVENTS = 240
WARMUP = 60
"""Events in the buffer, in tests with a warm-up."""
TOLERANCE = 1e-9
"""Largest difference of two arrays, relative to the largest entry, if they are computed with different rounding."""
STEPS = Power(alpha=0.6, gamma0=0.5, offset=20.0)
"""Steps that do not amplify rounding errors."""
ROUNDS = 25
PARTED = 0.25
"""Largest median change of the loss, in nats, when an expert is split into halves."""


OracleEvent = tuple[FloatArray, FloatArray, FloatArray]
"""w, r and y of one event."""


class Oracle(Protocol):
    """A slow, obvious implementation of the same algorithm."""

    @property
    def theta(self) -> Mapping[str, FloatArray]:
        """Parameters and statistics by their names in the estimators' `parameters`."""


class FamilyContract(ABC):
    r"""The contract of a family of experts, on its own and within its estimator.

    Provide events with two to ten inputs, and targets that several experts explain better than one:

        class TestMyFamily(FamilyContract):
            family = families()["my_family"]

            def make_events(self, n, seed):
                X = np.random.default_rng(seed).normal(size=(n, 3))
                return X, np.abs(X[:, 0])

            def make_model(self, bound, seed, **arguments):
                return MyRegressor(3, bound=bound, seed=seed, **arguments)

            def rebuild(self, parameters, feature_names, **arguments):
                return MyRegressor.from_parameters(parameters, feature_names=feature_names, **arguments)

            def make_oracle(self, parameters, bound, prior_strength, top_k=None):
                return PlainAlgorithm(parameters, bound=bound, prior_strength=prior_strength, top_k=top_k)

            def learn_oracle(self, oracle, events, gammas, weights):
                return oracle.learn_batch(events, gammas, weights)
    """

    family: Family
    bounds: ClassVar[Sequence[str]] = mixture.BOUNDS
    """Curvature bounds that the estimator supports."""
    symmetric_bounds: ClassVar[Sequence[str]] = ("tight", "adaptive")
    """Bounds that treat all logits alike, including the reference; that of the papers does not beyond three logits."""

    # --- hooks ------------------------------------------------------------------------------------------------------

    @abstractmethod
    def make_model(self, bound: str, seed: int, **arguments: Any) -> MixtureOfExperts:
        """Create an estimator of this family with two experts or more, and these constructor arguments."""

    @abstractmethod
    def rebuild(self, parameters: Mapping[str, Any], feature_names: Sequence[Any], **arguments: Any) -> Any:
        """Create the estimator at these parameters, by its `from_parameters`."""

    @abstractmethod
    def make_events(self, n: int, seed: int) -> tuple[FloatArray, AnyArray]:
        """Return inputs (n, P) and targets for `learn_array`; all labels must occur in the first twenty rows."""

    @abstractmethod
    def make_oracle(
        self, parameters: Mapping[str, Any], bound: str, prior_strength: float, top_k: int | None = None
    ) -> Oracle:
        """Create the plain implementation at the result of the estimator's `parameters`."""

    @abstractmethod
    def learn_oracle(
        self, oracle: Any, events: Sequence[OracleEvent], gammas: Sequence[float], weights: Sequence[float]
    ) -> Sequence[float]:
        """Let it learn a group of events, usually one, by a single step; return −log s(y|x) of each before that.

        Args:
            oracle: the result of `make_oracle`.
            events: w (p_w,), r (p_v,) and y, a row of `numbers`, of each.
            gammas: their steps γ, which combine to 1 − Π(1 − γ).
            weights: of the events within the mean.
        """

    def numbers(self, y: AnyArray) -> FloatArray:
        """Convert targets for the family's kernels: (n, Q) numbers, or (n, 1) class indexes."""
        return np.ascontiguousarray(y.reshape(len(y), -1), dtype=np.float64)

    def n_outputs(self, y: AnyArray) -> int:
        """Return Q, or the number of classes."""
        return int(self.numbers(y).shape[1])

    def predict(self, model: Any, X: FloatArray) -> FloatArray:
        """Return the estimator's predictions for rows, as numbers."""
        found: FloatArray = (
            model.predict_proba_array if hasattr(model, "predict_proba_array") else model.predict_array
        )(X)
        return found

    def poison_targets(self, y: AnyArray, row: int) -> Iterator[AnyArray]:
        """Yield copies of the targets with an invalid value in one row."""
        for bad in (math.nan, math.inf, -math.inf, 1e300):
            poisoned = np.array(y, dtype=np.float64)
            poisoned.reshape(len(y), -1)[row, -1] = bad
            yield poisoned

    # --- the algorithm ----------------------------------------------------------------------------------------------

    def test_it_computes_the_iterates_of_its_oracle_after_a_warm_up(self) -> None:
        for bound in self.bounds:
            for prior_strength in (0.0, 0.5):
                self._follow_oracle(bound, prior_strength, np.ones(EVENTS), warmup=WarmUp(WARMUP, restarts=1))

    def test_it_computes_the_iterates_of_its_oracle_from_a_random_start(self) -> None:
        for bound in self.bounds:
            self._follow_oracle(bound, 1.0, np.ones(EVENTS), warmup=0)

    def test_weights_are_those_of_its_oracle(self) -> None:
        weights = np.random.default_rng(5).choice([0.25, 1.0, 2.0], size=EVENTS)
        for bound in self.bounds:
            self._follow_oracle(bound, 0.5, np.full(EVENTS, 2.0), warmup=0)
            self._follow_oracle(bound, 0.5, weights, warmup=WarmUp(WARMUP, restarts=1))

    def test_sparse_routing_is_that_of_its_oracle(self) -> None:
        for at, bound in enumerate(self.bounds):
            self._follow_oracle(bound, 0.5, np.ones(EVENTS), warmup=WarmUp(WARMUP, restarts=1), top_k=1 + at % 2)

    def test_mini_batches_are_those_of_its_oracle(self) -> None:
        weights = np.random.default_rng(16).choice([0.25, 1.0, 2.0], size=EVENTS)
        for bound in self.bounds:
            self._follow_oracle(bound, 1.0, weights, warmup=0, batch_size=5)
        bound = self.bounds[0]
        self._follow_oracle(bound, 0.5, np.ones(EVENTS), warmup=WarmUp(WARMUP, restarts=1), batch_size=8)
        self._follow_oracle(bound, 0.0, weights, warmup=WarmUp(WARMUP, restarts=1), batch_size=48, top_k=2)

    def test_the_suite_sees_bounds_that_differ(self) -> None:
        X, y = self.make_events(EVENTS, 3)
        digests = {self._learned(X, y, bound=bound, warmup=0).state_digest() for bound in self.bounds}
        assert len(digests) == len(self.bounds), "use three experts or more, and events that make the gate confident"

    def test_rounds_over_a_buffer_never_lower_its_penalised_likelihood(self) -> None:
        for bound in self.bounds:
            em = self._em(bound, *self.make_events(EVENTS, 1), prior_strength=0.1)
            theta = self._random_theta(em)
            objectives = []
            for _ in range(ROUNDS):
                objective, tau = em.expect(theta)
                objectives.append(objective)
                em.maximise(theta, tau)
            for at, (earlier, later) in enumerate(pairwise(objectives)):
                assert later >= earlier - 1e-10 * abs(earlier), (bound, at, earlier, later)
            assert objectives[-1] > objectives[0] + 1e-3, "the start already explains the events; use others"

    def test_majorization_steps_over_a_buffer_never_lower_its_penalised_likelihood(self) -> None:
        for bound in self.bounds:
            em = self._em(bound, *self.make_events(EVENTS, 1), prior_strength=0.1)
            theta = self._random_theta(em)
            objectives = [em.expect(theta)[0]]
            for at in range(ROUNDS):
                statistics_at(em, theta)
                objectives.append(em.expect(theta)[0])
                assert objectives[-1] >= objectives[-2] - 1e-10 * abs(objectives[-2]), (bound, at, objectives[-2:])
            assert objectives[-1] > objectives[0] + 1e-3, "the start already explains the events; use others"

    def test_a_group_of_all_events_never_raises_their_loss(self) -> None:
        X, y = self.make_events(EVENTS, 1)
        for bound in self.bounds:
            model = self._learned(
                X[:WARMUP],
                y[:WARMUP],
                bound,
                warmup=WarmUp(WARMUP, restarts=1),
                schedule=Constant(0.999999),
                averaging=None,
                prior_strength=0.0,
                batch_size=EVENTS,
            )
            losses = [float(model.learn_array(X, y).mean()) for _ in range(ROUNDS)]
            for at, (earlier, later) in enumerate(pairwise(losses)):
                assert later <= earlier + 1e-10 * abs(earlier), (bound, at, earlier, later)
            assert losses[-1] < losses[0] - 1e-4, (bound, losses[0], losses[-1])

    def test_its_gradient_is_that_of_the_penalised_likelihood(self) -> None:
        rng = np.random.default_rng(15)
        for bound in self.bounds:
            em = self._em(bound, *self.make_events(EVENTS, 15), prior_strength=0.5)
            theta = self._random_theta(em)
            slope = gradient(em, theta, em.expect(theta)[1])
            for _ in range(5):
                direction = Parameters(*(rng.normal(size=array.shape) for array in theta))
                if theta.variances.ndim == 3:  # the free entries of a Cholesky factor
                    direction = direction._replace(variances=np.tril(direction.variances))
                ahead, behind = (em.expect(moved(em, theta, direction, h, h))[0] for h in (1e-5, -1e-5))
                expected = (ahead - behind) / 2e-5
                found = sum(float(np.sum(a * b)) for a, b in zip(slope, direction, strict=True))
                size = sum(float(np.sum(np.abs(a * b))) for a, b in zip(slope, direction, strict=True))
                assert abs(found - expected) <= 1e-6 * size, (bound, found, expected)

    def test_whatever_the_move_variances_stay_positive(self) -> None:
        em = self._em("tight", *self.make_events(EVENTS, 16), prior_strength=0.5)
        variances = self._random_theta(em).variances
        unmoved = self.family.moved_variances(variances, np.zeros_like(variances))
        assert np.abs(unmoved - variances).max(initial=0.0) <= TOLERANCE * np.abs(variances).max(initial=1.0)
        rng = np.random.default_rng(16)
        for size in (0.1, 10.0, 1e3):
            moved_ones = self.family.moved_variances(variances, size * rng.normal(size=variances.shape))
            assert moved_ones.shape == variances.shape
            own = np.diagonal(moved_ones, axis1=1, axis2=2) if moved_ones.ndim == 3 else moved_ones
            assert (own > 0.0).all() and np.isfinite(moved_ones).all(), size  # noqa: PT018 - one promise

    def test_the_statistics_of_two_buffers_merge_into_those_of_both(self) -> None:
        X, y = self.make_events(EVENTS, 2)
        cut = EVENTS // 3
        for bound in self.bounds:
            whole, first, second = (
                self._em(bound, X[part], y[part], prior_strength=0.0, like=(X, y))
                for part in (slice(None), slice(cut), slice(cut, None))
            )
            theta = self._random_theta(whole)
            states = [
                statistics_at(em, Parameters(*(array.copy() for array in theta))) for em in (first, second, whole)
            ]
            merged = _merged([state._asdict() for state in states[:2]], [cut / EVENTS, 1.0 - cut / EVENTS])
            _agree(merged, states[2]._asdict(), f"merged under the {bound} bound")

    def test_experts_have_no_order(self) -> None:
        X, y = self.make_events(EVENTS, 4)
        for bound in self.symmetric_bounds:
            arguments: dict[str, Any] = {"bound": bound, "prior_strength": 0.5, "schedule": STEPS, "averaging": None}
            start = self._learned(X[:100], y[:100], bound=bound, warmup=WarmUp(WARMUP, restarts=1))
            parameters = start.parameters()
            order = np.roll(np.arange(len(parameters["masses"])), 1)
            model = self.rebuild(parameters, start.feature_names, **arguments)
            turned = self.rebuild(_permuted(parameters, order), start.feature_names, **arguments)
            _agree({"": self.predict(turned, X)}, {"": self.predict(model, X)}, f"predictions, {bound}")
            losses, turned_losses = (each.learn_array(X[100:], y[100:]) for each in (model, turned))
            _agree({"": turned_losses}, {"": losses}, f"losses, {bound}")
            _agree(turned.parameters(), _permuted(model.parameters(), order), bound)

    # --- split-and-merge --------------------------------------------------------------------------------------------

    def test_a_reseeded_expert_leaves_the_statistics_of_the_whole(self) -> None:
        X, y = self.make_events(EVENTS, 15)
        for bound in self.bounds:
            model = self._learned(X, y, bound, warmup=WarmUp(WARMUP, restarts=1))
            for expert in range(len(model.masses)):
                before = _whole(model.parameters())
                model.reseed_expert(expert)
                _agree(_whole(model.parameters()), before, f"expert {expert} reseeded, {bound}")

    def test_duplicate_experts_are_detected_and_split(self) -> None:
        X, y = self.make_events(EVENTS, 16)
        for bound in self.symmetric_bounds:
            start = self._learned(X, y, bound, warmup=WarmUp(WARMUP, restarts=1))
            parameters = _with_twins(start.parameters())
            model = self.rebuild(parameters, start.feature_names, bound=bound, averaging=None)
            first, second, *others = model.experts()
            assert (first["nearest"], second["nearest"]) == (1, 0)
            assert abs(first["divergence"]) < 1e-9 > abs(second["divergence"])
            assert {first["condition"], second["condition"]} == {"alive", "duplicate"}
            assert all(other["divergence"] > 1e-3 for other in others)
            losses = -model.log_likelihood_array(X, y)
            model.reseed_expert(1)
            change = np.abs(-model.log_likelihood_array(X, y) - losses)
            assert np.median(change) < PARTED, (bound, np.median(change))
            assert all(expert["divergence"] > 1e-3 for expert in model.experts()), bound

    # --- bit for bit ------------------------------------------------------------------------------------------------

    def test_equal_seeds_and_events_give_equal_models(self) -> None:
        X, y = self.make_events(EVENTS, 6)
        for warmup in (0, WARMUP):
            first, second, other = (
                self._learned(X, y, seed=seed, warmup=WarmUp(warmup, restarts=1)) for seed in (7, 7, 8)
            )
            assert first.state_digest() == second.state_digest()
            assert warmup or first.state_digest() != other.state_digest()

    def test_cuts_of_an_array_leave_no_trace(self) -> None:
        X, y = self.make_events(EVENTS, 7)
        rng = np.random.default_rng(7)
        for warmup, batch_size in ((0, 1), (WARMUP, 1), (WARMUP, 7)):
            whole = self._model(warmup=WarmUp(warmup, restarts=1), batch_size=batch_size)
            losses = whole.learn_array(X, y)
            cuts = [
                [1, 2, WARMUP - 1, WARMUP, WARMUP + 1],
                sorted(rng.choice(np.arange(1, EVENTS), size=9, replace=False).tolist()),
                list(range(1, EVENTS)),
            ]
            for cut in cuts:
                model = self._model(warmup=WarmUp(warmup, restarts=1), batch_size=batch_size)
                found = [model.learn_array(X[part], y[part]) for part in np.split(np.arange(EVENTS), cut)]
                assert np.concatenate(found).tobytes() == losses.tobytes(), cut
                assert model.state_digest() == whole.state_digest(), cut

    def test_losses_are_those_of_the_model_before_each_event(self) -> None:
        X, y = self.make_events(EVENTS, 8)
        model = self._learned(X[:150], y[:150], warmup=WarmUp(WARMUP, restarts=1))
        for row in range(150, EVENTS):
            expected = -model.log_likelihood_array(X[row : row + 1], y[row : row + 1])
            assert model.learn_array(X[row : row + 1], y[row : row + 1]).tobytes() == expected.tobytes()

    def test_reading_a_model_changes_nothing(self) -> None:
        X, y = self.make_events(EVENTS, 9)
        for count in (WARMUP // 2, EVENTS):
            model = self._learned(X[:count], y[:count], warmup=WarmUp(WARMUP, restarts=1))
            before = model.state_digest()
            self.predict(model, X * 1e3)
            model.log_likelihood_array(X, y)
            if not model.is_warming_up:
                for value in model.parameters().values():
                    if isinstance(value, np.ndarray):
                        value[...] = 7.0
            assert model.state_digest() == before

    def test_a_saved_model_resumes_bit_for_bit(self) -> None:
        X, y = self.make_events(EVENTS, 10)
        rules = (None, "polyak", 1), (Constant(0.05), "decay", 1), (STEPS, None, 1), (None, "polyak", 16)
        for schedule, averaging, batch_size in rules:
            for count in (WARMUP // 2, WARMUP, 150):
                model = self._model(
                    warmup=WarmUp(WARMUP, restarts=1), schedule=schedule, averaging=averaging, batch_size=batch_size
                )
                model.learn_array(X[:count], y[:count])
                with TemporaryDirectory() as folder:
                    path = Path(folder) / "model"
                    model.save(path)
                    read = load(path)
                assert type(read) is type(model)
                assert read.state_digest() == model.state_digest()
                assert self.predict(read, X).tobytes() == self.predict(model, X).tobytes()
                losses, read_losses = (each.learn_array(X[count:], y[count:]) for each in (model, read))
                assert read_losses.tobytes() == losses.tobytes()
                assert read.state_digest() == model.state_digest()

    # --- weights and poison -----------------------------------------------------------------------------------------

    def test_events_of_weight_0_leave_no_trace(self) -> None:
        X, y = self.make_events(EVENTS, 11)
        keep = np.random.default_rng(11).random(EVENTS) < 0.7
        keep[:20] = True
        for warmup in (0, WARMUP):
            model = self._model(warmup=WarmUp(warmup, restarts=1))
            losses = model.learn_array(X, y, weights=keep.astype(np.float64))
            without = self._learned(X[keep], y[keep], warmup=WarmUp(warmup, restarts=1))
            assert model.n == without.n == keep.sum()
            assert np.isfinite(losses[~keep][WARMUP:]).sum() in {0, len(losses[~keep][WARMUP:])}
            _agree(model.parameters(), without.parameters(), "events of weight 0 among others", tolerance=0.0)
            before = model.state_digest()
            model.learn_array(X[:50], y[:50], weights=np.zeros(50))
            assert model.state_digest() == before

    def test_events_of_weight_1_are_events(self) -> None:
        X, y = self.make_events(EVENTS, 12)
        for warmup in (0, WARMUP):
            model = self._model(warmup=WarmUp(warmup, restarts=1))
            model.learn_array(X, y, weights=np.ones(EVENTS))
            without = self._learned(X, y, warmup=WarmUp(warmup, restarts=1))
            assert model.state_digest() == without.state_digest()

    def test_poison_is_rejected_and_changes_nothing(self) -> None:
        X, y = self.make_events(EVENTS, 13)
        ones = np.ones(20)
        row = 11
        for count, batch_size in ((WARMUP // 2, 1), (EVENTS, 1), (EVENTS, 16)):
            model = self._learned(X[:count], y[:count], warmup=WarmUp(WARMUP, restarts=1), batch_size=batch_size)
            before = model.state_digest()
            rows, targets = X[:20], y[:20]
            cases = [
                *((_with(rows, (row, 1), bad), targets, ones) for bad in (math.nan, math.inf, -math.inf, 1e300)),
                *((rows, poisoned, ones) for poisoned in self.poison_targets(targets, row)),
                *((rows, targets, _with(ones, row, bad)) for bad in (math.nan, math.inf, -1.0)),
            ]
            for bad_rows, bad_targets, weights in cases:
                rejected = _rejection(model, bad_rows, bad_targets, weights)
                assert rejected is not None, (bad_rows[row], bad_targets[row], weights[row])
                assert rejected.row == row
                assert model.state_digest() == before
            assert model.is_finite()

    def test_models_stay_finite_at_far_values_and_large_steps(self) -> None:
        X, y = self.make_events(EVENTS, 14)
        scales = 10.0 ** np.random.default_rng(14).integers(-3, 5, size=(EVENTS, 1))
        for batch_size in (1, 6):
            steps = Power(alpha=0.6, gamma0=0.9)
            model = self._model(warmup=0, schedule=steps, prior_strength=1.0, batch_size=batch_size)
            assert np.isfinite(model.learn_array(X * scales, y)).all()
            assert model.is_finite()
            assert np.isfinite(self.predict(model, X * 1e6)).all()

    # --- helpers ----------------------------------------------------------------------------------------------------

    def _model(self, bound: str = "tight", seed: int = 0, **arguments: Any) -> Any:
        return self.make_model(bound, seed, **arguments)

    def _learned(self, X: FloatArray, y: AnyArray, bound: str = "tight", seed: int = 0, **arguments: Any) -> Any:
        model = self._model(bound, seed, **arguments)
        model.learn_array(X, y)
        return model

    def _follow_oracle(self, bound: str, prior_strength: float, weights: FloatArray, **arguments: Any) -> None:
        """Compare estimator and oracle on the same events, after the estimator's warm-up."""
        begun = 20 if arguments["warmup"] == 0 else WARMUP  # a number of whole groups
        X, y = self.make_events(begun + EVENTS, 0)
        arguments |= {"prior_strength": prior_strength, "schedule": STEPS, "averaging": None}
        model = self._learned(X[:begun], y[:begun], bound, **arguments)
        top_k, batch_size = arguments.get("top_k"), arguments.get("batch_size", 1)
        oracle = self.make_oracle(model.parameters(), bound, prior_strength, top_k)
        gammas = STEPS.steps(model.n + 1, EVENTS)
        X, y = X[begun:], y[begun:]
        losses = model.learn_array(X, y, weights=weights)
        design, targets = _design(X), self.numbers(y)
        expected: list[float] = []
        events = list(zip(design, design, targets, strict=True))
        for at in range(0, EVENTS, batch_size):
            group = slice(at, at + batch_size)
            expected += self.learn_oracle(oracle, events[group], gammas[group].tolist(), weights[group].tolist())
        where = f"{bound}, prior {prior_strength:g}, top {top_k}, groups of {batch_size}"
        _agree({"losses": losses}, {"losses": np.array(expected)}, where)
        _agree(model.parameters(), oracle.theta, where)

    def _em(
        self,
        bound: str,
        X: FloatArray,
        y: AnyArray,
        *,
        prior_strength: float,
        like: tuple[FloatArray, AnyArray] | None = None,
    ) -> Em:
        """Create EM on these events, with the prior of the events in `like`, if given."""
        n_outputs = self.n_outputs(y if like is None else like[1])
        options = mixture.learning_options(
            bound=bound,
            n_experts=3,
            n_rows=self.family.n_rows(n_outputs),
            prior_strength=prior_strength,
            averaging=None,
            schedule=STEPS,
        )
        weights = np.random.default_rng(len(X)).uniform(0.5, 1.5, size=len(X)) if like is None else np.ones(len(X))
        buffer = Buffer(_design(X), _design(X), self.numbers(y), weights)
        whole = (
            buffer if like is None else Buffer(*(_design(like[0]),) * 2, self.numbers(like[1]), np.ones(len(like[0])))
        )
        return Em(self.family, buffer, one_expert_prior(self.family, whole, n_outputs, options), options)

    def _random_theta(self, em: Em) -> Parameters:
        """Return three random experts around the fit of a single one, with a random gate."""
        rng = np.random.default_rng(3)
        prior = em.prior
        shape = (3, *prior.experts.shape)
        return Parameters(
            rng.normal(size=(2, em.buffer.W.shape[1])),
            prior.experts + rng.normal(size=shape) * np.sqrt(np.mean(prior.experts**2)) + 0.1 * rng.normal(size=shape),
            np.ascontiguousarray(self.family.variances_of(prior.variances, 3)),
        )


def _design(X: FloatArray) -> FloatArray:
    """Return φ(x) = (1, x)."""
    return np.ascontiguousarray(np.column_stack([np.ones(len(X)), X]))


def _permuted(parameters: Mapping[str, Any], order: AnyArray) -> dict[str, Any]:
    """Reorder the experts of a mixture; the gate's logits become differences to those of the new last expert."""
    gate = np.concatenate([parameters["gate"], np.zeros((1, parameters["gate"].shape[1]))])[order]
    moved = {
        name: parameters[name][order]
        for name in ("experts", "variances", "masses", "expert_grams")
        if name in parameters
    }
    return {**parameters, **moved, "gate": gate[:-1] - gate[-1]}


def _whole(parameters: Mapping[str, Any]) -> dict[str, FloatArray]:
    """Return the statistics of all experts summed up, and those of the gate."""
    none = np.empty((len(parameters["masses"]), 0))
    found = _statistics({"variances": none, **parameters})
    del found["gate_linear"]
    if parameters.get("variances", none).ndim == 2 and "squares" in found:
        found["squares"] = np.diagonal(found["squares"], axis1=1, axis2=2)
    return {name: value if name == "gate_gram" else np.asarray(value.sum(axis=0)) for name, value in found.items()}


def _with_twins(parameters: Mapping[str, Any]) -> dict[str, Any]:
    """Replace the second expert of a mixture by a copy of the first one, each with half of its mass."""
    changed = {name: value.copy() if isinstance(value, np.ndarray) else value for name, value in parameters.items()}
    for name in ("masses", "expert_grams"):
        changed[name][0] *= 0.5
    changed["gate"][0, 0] -= math.log(2.0)
    for name in ("gate", "experts", "variances", "masses", "expert_grams"):
        if name in changed:
            changed[name][1] = changed[name][0]
    return changed


def _merged(states: Sequence[Mapping[str, Any]], shares: Sequence[float]) -> dict[str, FloatArray]:
    """Return θ̄ of the weighted mean of statistics; linear ones are parameters times Gram matrices in every family."""
    first, second = (_statistics(state) for state in states)
    mean = {name: shares[0] * first[name] + shares[1] * second[name] for name in first}
    gate = np.linalg.solve(mean["gate_gram"], mean.pop("gate_linear").T).T
    linear = mean.pop("expert_linear").transpose(0, 2, 1)
    experts = np.linalg.solve(mean["expert_grams"], linear).transpose(0, 2, 1)
    merged: dict[str, FloatArray] = {**mean, "gate": np.asarray(gate, float), "experts": np.asarray(experts, float)}
    if "squares" in merged:
        variances = merged.pop("squares") - _explained(merged["experts"], mean["expert_grams"])
        variances /= mean["masses"][:, None, None]
        full = np.ndim(states[0]["variances"]) == 3
        merged["variances"] = variances if full else np.diagonal(variances, axis1=1, axis2=2)
    return merged


def _statistics(state: Mapping[str, Any]) -> dict[str, FloatArray]:
    """Return the statistics that a state's parameters minimise, up to constant factors."""
    found = {name: state[name] for name in ("gate_gram", "expert_grams", "masses")}
    found["gate_linear"] = state["gate"] @ state["gate_gram"]
    found["expert_linear"] = state["experts"] @ state["expert_grams"]
    variances = state["variances"]
    if variances.size:
        matrices = variances if variances.ndim == 3 else variances[:, :, None] * np.eye(variances.shape[1])
        found["squares"] = state["masses"][:, None, None] * matrices
        found["squares"] += _explained(state["experts"], state["expert_grams"])
    return found


def _explained(experts: FloatArray, grams: FloatArray) -> FloatArray:
    """Return (K, Q, Q) Υ R Υᵀ, the part of E[τ y yᵀ] that the experts explain."""
    return np.asarray(experts @ grams @ experts.transpose(0, 2, 1))


def _agree(found: Mapping[str, Any], expected: Mapping[str, Any], where: str, *, tolerance: float = TOLERANCE) -> None:
    """Assert that arrays of the same name are equal, relative to the largest entry of the array."""
    shared = [name for name, value in expected.items() if isinstance(value, np.ndarray) and name in found]
    assert shared, where
    for name in shared:
        ours, theirs = np.asarray(found[name]), expected[name]
        assert ours.shape == theirs.shape, (where, name, ours.shape, theirs.shape)
        if theirs.size:
            difference = np.abs(ours - theirs).max()
            assert difference <= tolerance * np.abs(theirs).max(), (where, name, float(difference))


def _with(values: FloatArray, at: Any, value: float) -> FloatArray:
    changed = values.copy()
    changed[at] = value
    return changed


def _rejection(model: Any, X: FloatArray, y: AnyArray, weights: FloatArray) -> InvalidEvent | None:
    """Return the `InvalidEvent` that learning these events raised, if any."""
    try:
        model.learn_array(X, y, weights=weights)
    except InvalidEvent as error:
        return error
    return None
