"""The contract suite for families of experts; `test_families` shows how one inherits it."""

from __future__ import annotations

import copy
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
from streammoe.engine.jobs import run_job
from streammoe.engine.merging import merged
from streammoe.engine.partitioned import InTurn, PartitionedEm, statistics
from streammoe.errors import InvalidEvent
from streammoe.estimators import MixtureOfExperts, load
from streammoe.experts import Family, Parameters
from streammoe.options import WarmUp
from streammoe.reduction import merge_statistics, reduce
from streammoe.schedules import Constant, Power
from streammoe.types import AnyArray, FloatArray
from tests.oracle.literal import relative_weights

N_EVENTS = 240
N_WARMUP = 60
"""Number of events in the buffer, in tests with a warm-up."""
N_BURN_IN = 20
"""Number of events before the comparison with the reference, in tests without a warm-up."""
RTOL = 1e-9
"""Maximum difference of two arrays, relative to the largest entry, if they are computed with different rounding."""
SCHEDULE = Power(alpha=0.6, gamma0=0.5, offset=20.0)
"""Step sizes that do not amplify rounding errors."""
N_ITERATIONS = 25
"""Number of EM or batch MM iterations."""


ReferenceEvent = tuple[FloatArray, FloatArray, FloatArray]
"""w, r and y of one event."""


class Reference(Protocol):
    """A reference implementation of the same algorithm, slow but easy to verify."""

    @property
    def theta(self) -> Mapping[str, FloatArray]:
        """Any of ``gate``, ``experts``, ``variances``, ``masses``, ``gate_gram`` and ``expert_grams``.

        Each has the meaning and the shape that it has in the estimators' `parameters`, and is compared with it.
        """


class FamilyContract(ABC):
    """The contract of a family of experts, on its own and within its estimator.

    Provide events with two to ten inputs, and targets that several experts explain better than one.
    """

    family: Family
    bounds: ClassVar[Sequence[str]] = mixture.BOUNDS
    """Curvature bounds that the estimator supports."""
    symmetric_bounds: ClassVar[Sequence[str]] = ("tight", "adaptive")
    """Bounds under which permuting the experts only permutes the model.

    ``"paper"`` is not among them: with more than three logits it treats the reference logit differently.
    """

    # --- hooks ------------------------------------------------------------------------------------------------------

    @abstractmethod
    def make_model(self, bound: str, seed: int, **arguments: Any) -> MixtureOfExperts:
        """Create an estimator of this family with two experts or more, and these constructor arguments."""

    @abstractmethod
    def from_parameters(self, parameters: Mapping[str, Any], feature_names: Sequence[Any], **arguments: Any) -> Any:
        """Create the estimator at these parameters, by its `from_parameters`."""

    @abstractmethod
    def make_events(self, n: int, seed: int) -> tuple[FloatArray, AnyArray]:
        """Return inputs (n, P) and targets for `learn_array`; all labels must occur in the first twenty rows."""

    @abstractmethod
    def make_reference(
        self, parameters: Mapping[str, Any], bound: str, prior_strength: float, top_k: int | None = None
    ) -> Reference:
        """Create the reference implementation from the result of the estimator's `parameters`."""

    @abstractmethod
    def step_reference(
        self, reference: Any, events: Sequence[ReferenceEvent], gammas: Sequence[float], weights: Sequence[float]
    ) -> Sequence[float]:
        """Make one step with a mini-batch, usually of one event; return −log s(y|x) of each event before the step.

        Args:
            reference: the result of `make_reference`.
            events: w (p_w,), r (p_v,) and y, a row of `encode_targets`, of each.
            gammas: step sizes γ of the events, which combine to 1 − Π(1 − γ).
            weights: weights of the events within the mean.
        """

    def encode_targets(self, y: AnyArray) -> FloatArray:
        """Encode targets for the family's kernels: (n, Q) numbers, or (n, 1) class indices."""
        return np.ascontiguousarray(y.reshape(len(y), -1), dtype=np.float64)

    def n_outputs(self, y: AnyArray) -> int:
        """Return Q, or the number of classes."""
        return int(self.encode_targets(y).shape[1])

    def predict(self, model: Any, X: FloatArray) -> FloatArray:
        """Return the estimator's predictions for rows, as numbers."""
        predict = model.predict_proba_array if hasattr(model, "predict_proba_array") else model.predict_array
        predictions: FloatArray = predict(X)
        return predictions

    def invalid_targets(self, y: AnyArray, row: int) -> Iterator[AnyArray]:
        """Yield copies of the targets with an invalid value in one row."""
        for bad in (math.nan, math.inf, -math.inf, 1e300):
            invalid = np.array(y, dtype=np.float64)
            invalid.reshape(len(y), -1)[row, -1] = bad
            yield invalid

    # --- the algorithm ----------------------------------------------------------------------------------------------

    def test_iterates_match_the_reference_after_a_warm_up(self) -> None:
        for bound in self.bounds:
            for prior_strength in (0.0, 0.5):
                self._compare_with_reference(
                    bound, prior_strength, np.ones(N_EVENTS), warmup=WarmUp(N_WARMUP, restarts=1)
                )

    def test_iterates_match_the_reference_from_a_random_start(self) -> None:
        for bound in self.bounds:
            self._compare_with_reference(bound, 1.0, np.ones(N_EVENTS), warmup=0)

    def test_weights_match_the_reference(self) -> None:
        weights = np.random.default_rng(5).choice([0.25, 1.0, 2.0], size=N_EVENTS)
        for bound in self.bounds:
            self._compare_with_reference(bound, 0.5, np.full(N_EVENTS, 2.0), warmup=0)
            self._compare_with_reference(bound, 0.5, weights, warmup=WarmUp(N_WARMUP, restarts=1))

    def test_sparse_routing_matches_the_reference(self) -> None:
        for index, bound in enumerate(self.bounds):
            self._compare_with_reference(
                bound, 0.5, np.ones(N_EVENTS), warmup=WarmUp(N_WARMUP, restarts=1), top_k=1 + index % 2
            )

    def test_mini_batches_match_the_reference(self) -> None:
        weights = np.random.default_rng(16).choice([0.25, 1.0, 2.0], size=N_EVENTS)
        for bound in self.bounds:
            self._compare_with_reference(bound, 1.0, weights, warmup=0, batch_size=5)
        bound = self.bounds[0]
        self._compare_with_reference(bound, 0.5, np.ones(N_EVENTS), warmup=WarmUp(N_WARMUP, restarts=1), batch_size=8)
        self._compare_with_reference(bound, 0.0, weights, warmup=WarmUp(N_WARMUP, restarts=1), batch_size=48, top_k=2)

    def test_make_events_distinguishes_the_bounds(self) -> None:
        X, y = self.make_events(N_EVENTS, 3)
        digests = {self._fitted(X, y, bound=bound, warmup=0).state_digest() for bound in self.bounds}
        assert len(digests) == len(self.bounds), "use three experts or more, and events that make the gate confident"

    def test_em_never_decreases_the_penalized_log_likelihood(self) -> None:
        for bound in self.bounds:
            em = self._em(bound, *self.make_events(N_EVENTS, 1), prior_strength=0.1)
            theta = self._random_theta(em)
            objectives = []
            for _ in range(N_ITERATIONS):
                objective, tau = em.e_step(theta)
                objectives.append(objective)
                em.m_step(theta, tau)
            for iteration, (earlier, later) in enumerate(pairwise(objectives)):
                assert later >= earlier - 1e-10 * abs(earlier), (bound, iteration, earlier, later)
            assert objectives[-1] > objectives[0] + 1e-3, "the start already explains the events; use others"

    def test_batch_mm_never_decreases_the_penalized_log_likelihood(self) -> None:
        for bound in self.bounds:
            em = self._em(bound, *self.make_events(N_EVENTS, 1), prior_strength=0.1)
            theta = self._random_theta(em)
            objectives = [em.e_step(theta)[0]]
            for iteration in range(N_ITERATIONS):
                statistics_at(em, theta)
                objectives.append(em.e_step(theta)[0])
                assert objectives[-1] >= objectives[-2] - 1e-10 * abs(objectives[-2]), (
                    bound,
                    iteration,
                    objectives[-2:],
                )
            assert objectives[-1] > objectives[0] + 1e-3, "the start already explains the events; use others"

    def test_full_batch_steps_never_increase_the_loss(self) -> None:
        X, y = self.make_events(N_EVENTS, 1)
        for bound in self.bounds:
            model = self._fitted(
                X[:N_WARMUP],
                y[:N_WARMUP],
                bound,
                warmup=WarmUp(N_WARMUP, restarts=1),
                schedule=Constant(0.999999),
                averaging=None,
                serve="polyak",
                prior_strength=0.0,
                batch_size=N_EVENTS,
            )
            losses = [float(model.learn_array(X, y).mean()) for _ in range(N_ITERATIONS)]
            for iteration, (earlier, later) in enumerate(pairwise(losses)):
                assert later <= earlier + 1e-10 * abs(earlier), (bound, iteration, earlier, later)
            assert losses[-1] < losses[0] - 1e-4, (bound, losses[0], losses[-1])

    def test_gradient_matches_finite_differences(self) -> None:
        rng = np.random.default_rng(15)
        for bound in self.bounds:
            em = self._em(bound, *self.make_events(N_EVENTS, 15), prior_strength=0.5)
            theta = self._random_theta(em)
            slope = gradient(em, theta, em.e_step(theta)[1])
            for _ in range(5):
                direction = Parameters(*(rng.normal(size=array.shape) for array in theta))
                if theta.variances.ndim == 3:  # the free entries of a Cholesky factor
                    direction = direction._replace(variances=np.tril(direction.variances))
                ahead, behind = (em.e_step(moved(em, theta, direction, h, h))[0] for h in (1e-5, -1e-5))
                expected = (ahead - behind) / 2e-5
                directional = sum(float(np.sum(a * b)) for a, b in zip(slope, direction, strict=True))
                size = sum(float(np.sum(np.abs(a * b))) for a, b in zip(slope, direction, strict=True))
                assert abs(directional - expected) <= 1e-6 * size, (bound, directional, expected)

    def test_variances_stay_positive_under_any_move(self) -> None:
        em = self._em("tight", *self.make_events(N_EVENTS, 16), prior_strength=0.5)
        variances = self._random_theta(em).variances
        unmoved = self.family.moved_variances(variances, np.zeros_like(variances))
        assert np.abs(unmoved - variances).max(initial=0.0) <= RTOL * np.abs(variances).max(initial=1.0)
        rng = np.random.default_rng(16)
        for size in (0.1, 10.0, 1e3):
            updated = self.family.moved_variances(variances, size * rng.normal(size=variances.shape))
            assert updated.shape == variances.shape
            diagonal = np.diagonal(updated, axis1=1, axis2=2) if updated.ndim == 3 else updated
            assert (diagonal > 0.0).all() and np.isfinite(updated).all(), size  # noqa: PT018

    def test_merged_statistics_are_those_of_all_events(self) -> None:
        X, y = self.make_events(N_EVENTS, 2)
        cut = N_EVENTS // 3
        for bound in self.bounds:
            whole, first, second = (
                self._em(bound, X[part], y[part], prior_strength=0.0, like=(X, y))
                for part in (slice(None), slice(cut), slice(cut, None))
            )
            theta = self._random_theta(whole)
            states = [
                statistics_at(em, Parameters(*(array.copy() for array in theta))) for em in (first, second, whole)
            ]
            both = merged(states[:2], np.array([cut, N_EVENTS - cut], dtype=np.float64), N_EVENTS, whole.prior)
            names = ("gate", "experts", "variances", "masses", "gate_gram", "expert_grams")
            expected = {name: getattr(states[2], name) for name in names}
            _assert_close(both._asdict(), expected, f"merged under the {bound} bound")

    def test_workers_that_take_a_step_each_merge_to_one_that_takes_it_for_all(self) -> None:
        X, y = self.make_events(N_EVENTS, 17)
        half = (N_EVENTS - N_WARMUP) // 2
        # Two groups of half the size have to make the step of one group of them all.
        gamma = 0.001
        for bound in self.bounds:
            if bound == "sharp":  # shortens some steps of a gate, by what their own events say
                continue
            arguments: dict[str, Any] = {"warmup": WarmUp(N_WARMUP, restarts=1), "serve": "polyak", "averaging": None}
            start, whole = (
                self._fitted(X[:N_WARMUP], y[:N_WARMUP], bound, schedule=Constant(each), batch_size=size, **arguments)
                for each, size in ((gamma, half), (1.0 - math.sqrt(1.0 - gamma), 2 * half))
            )
            workers = [copy.deepcopy(start) for _ in range(2)]
            parts = [slice(N_WARMUP, N_WARMUP + half), slice(N_WARMUP + half, N_WARMUP + 2 * half)]
            for worker, part in zip(workers, parts, strict=True):
                worker.learn_array(X[part], y[part])
            whole.learn_array(X[N_WARMUP : N_WARMUP + 2 * half], y[N_WARMUP : N_WARMUP + 2 * half])
            found = merge_statistics(workers, start=start)
            _assert_close(found.parameters(), whole.parameters(), f"merged under the {bound} bound")
            assert found.n == whole.n

    # --- many models to one -----------------------------------------------------------------------------------------

    def test_one_model_is_reduced_to_itself(self) -> None:
        X, y = self.make_events(N_EVENTS, 18)
        model = self._fitted(X, y, warmup=WarmUp(N_WARMUP, restarts=1), serve="polyak")
        reduced = reduce([model], support=X)
        _assert_close({"": self.predict(reduced, X)}, {"": self.predict(model, X)}, "predictions", rtol=1e-6)
        losses = {"": reduced.log_likelihood_array(X, y)}
        _assert_close(losses, {"": model.log_likelihood_array(X, y)}, "losses", rtol=1e-6)
        assert reduced.n == model.n
        reduced.learn_array(X, y)
        assert reduced.is_finite()

    def test_orders_of_models_and_experts_do_not_change_a_reduction(self) -> None:
        streams = [self.make_events(N_EVENTS, seed) for seed in (19, 20, 21)]
        support = streams[0][0]
        models = [self._fitted(*each, warmup=WarmUp(N_WARMUP, restarts=1), serve="polyak") for each in streams]
        reduced = reduce(models, support=support)
        assert reduce(models[1:] + models[:1], support=support).state_digest() == reduced.state_digest()
        parameters = models[0].parameters(averaged=True)
        order = np.roll(np.arange(len(parameters["masses"])), 1)
        shuffled, same = (
            self.from_parameters(each, models[0].feature_names, bound="tight", serve="polyak")
            for each in (_permuted(parameters, order), parameters)
        )
        found, expected = (
            self.predict(reduce([first, *models[1:]], support=support), support) for first in (shuffled, same)
        )
        _assert_close({"": found}, {"": expected}, "predictions of shuffled experts", rtol=1e-6)

    def test_rounds_on_parts_are_those_on_all_events(self) -> None:
        for bound in self.bounds:
            em = self._em(bound, *self.make_events(N_EVENTS, 2), prior_strength=0.5)
            first = np.arange(N_EVENTS) < N_EVENTS // 3
            parts = InTurn([em._replace(buffer=em.buffer.rows(rows)) for rows in (first, ~first)])
            in_parts = PartitionedEm(self.family, parts, em.prior, em.options)
            whole, ours = self._random_theta(em), self._random_theta(em)
            for iteration in range(N_ITERATIONS):
                (objective, tau), (found, expected) = em.e_step(whole), in_parts.e_step(ours)
                assert abs(found - objective) <= 1e-8 * abs(objective), (bound, iteration, found, objective)
                em.m_step(whole, tau)
                in_parts.m_step(ours, expected, 1)
            # The last step of a softmax regression on rows may be lost to rounding.
            states = statistics(in_parts, ours)._asdict(), statistics_at(em, whole)._asdict()
            _assert_close(*states, f"parts under the {bound} bound", rtol=1e-5)

    def test_experts_are_exchangeable(self) -> None:
        X, y = self.make_events(N_EVENTS, 4)
        for bound in self.symmetric_bounds:
            arguments: dict[str, Any] = {"bound": bound, "prior_strength": 0.5, "schedule": SCHEDULE, "averaging": None}
            start = self._fitted(X[:100], y[:100], bound=bound, warmup=WarmUp(N_WARMUP, restarts=1))
            parameters = start.parameters()
            order = np.roll(np.arange(len(parameters["masses"])), 1)
            model = self.from_parameters(parameters, start.feature_names, **arguments)
            permuted = self.from_parameters(_permuted(parameters, order), start.feature_names, **arguments)
            _assert_close({"": self.predict(permuted, X)}, {"": self.predict(model, X)}, f"predictions, {bound}")
            losses, permuted_losses = (each.learn_array(X[100:], y[100:]) for each in (model, permuted))
            _assert_close({"": permuted_losses}, {"": losses}, f"losses, {bound}")
            _assert_close(permuted.parameters(), _permuted(model.parameters(), order), bound)

    # --- diagnostics ------------------------------------------------------------------------------------------------

    def test_duplicate_experts_are_detected(self) -> None:
        X, y = self.make_events(N_EVENTS, 16)
        for bound in self.symmetric_bounds:
            start = self._fitted(X, y, bound, warmup=WarmUp(N_WARMUP, restarts=1))
            parameters = _with_duplicate_expert(start.parameters())
            model = self.from_parameters(parameters, start.feature_names, bound=bound, averaging=None)
            first, second, *others = model.experts()
            assert (first["nearest"], second["nearest"]) == (1, 0)
            assert abs(first["divergence"]) < 1e-9 > abs(second["divergence"])
            assert {first["condition"], second["condition"]} == {"alive", "duplicate"}
            assert all(other["divergence"] > 1e-3 for other in others)

    # --- bit for bit ------------------------------------------------------------------------------------------------

    def test_equal_seeds_and_events_give_equal_models(self) -> None:
        X, y = self.make_events(N_EVENTS, 6)
        for warmup in (0, N_WARMUP):
            first, second, other = (
                self._fitted(X, y, seed=seed, warmup=WarmUp(warmup, restarts=1)) for seed in (7, 7, 8)
            )
            assert first.state_digest() == second.state_digest()
            assert warmup or first.state_digest() != other.state_digest()

    def test_chunking_does_not_change_the_model(self) -> None:
        X, y = self.make_events(N_EVENTS, 7)
        rng = np.random.default_rng(7)
        for warmup, batch_size in ((0, 1), (N_WARMUP, 1), (N_WARMUP, 7)):
            whole = self._model(warmup=WarmUp(warmup, restarts=1), batch_size=batch_size)
            losses = whole.learn_array(X, y)
            cuts = [
                [1, 2, N_WARMUP - 1, N_WARMUP, N_WARMUP + 1],
                sorted(rng.choice(np.arange(1, N_EVENTS), size=9, replace=False).tolist()),
                list(range(1, N_EVENTS)),
            ]
            for cut in cuts:
                model = self._model(warmup=WarmUp(warmup, restarts=1), batch_size=batch_size)
                chunked = [model.learn_array(X[part], y[part]) for part in np.split(np.arange(N_EVENTS), cut)]
                assert np.concatenate(chunked).tobytes() == losses.tobytes(), cut
                assert model.state_digest() == whole.state_digest(), cut

    def test_losses_are_prequential(self) -> None:
        X, y = self.make_events(N_EVENTS, 8)
        model = self._fitted(X[:150], y[:150], warmup=WarmUp(N_WARMUP, restarts=1))
        for row in range(150, N_EVENTS):
            expected = -model.log_likelihood_array(X[row : row + 1], y[row : row + 1])
            assert model.learn_array(X[row : row + 1], y[row : row + 1]).tobytes() == expected.tobytes()

    def test_reading_a_model_does_not_change_it(self) -> None:
        X, y = self.make_events(N_EVENTS, 9)
        for count in (N_WARMUP // 2, N_EVENTS):
            model = self._fitted(X[:count], y[:count], warmup=WarmUp(N_WARMUP, restarts=1))
            before = model.state_digest()
            self.predict(model, X * 1e3)
            model.log_likelihood_array(X, y)
            if not model.is_warming_up:
                for value in model.parameters().values():
                    if isinstance(value, np.ndarray):
                        value[...] = 7.0
            assert model.state_digest() == before

    def test_a_saved_model_resumes_bit_for_bit(self) -> None:
        X, y = self.make_events(N_EVENTS, 10)
        rules = (None, "polyak", 1), (Constant(0.05), "decay", 1), (SCHEDULE, None, 1), (None, "polyak", 16)
        for schedule, averaging, batch_size in rules:
            for count in (N_WARMUP // 2, N_WARMUP, 150):
                model = self._model(
                    warmup=WarmUp(N_WARMUP, restarts=1), schedule=schedule, averaging=averaging, batch_size=batch_size
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

    def test_a_sample_of_the_events_changes_nothing_and_is_always_the_same(self) -> None:
        X, y = self.make_events(N_EVENTS, 17)
        arguments: dict[str, Any] = {"warmup": WarmUp(N_WARMUP, restarts=1), "reservoir": N_WARMUP}
        whole = self._fitted(X, y, **arguments)
        assert whole.state_digest() == self._fitted(X, y, warmup=arguments["warmup"]).state_digest()
        sample = whole.learner.reservoir_rows()
        assert len(sample.weights) == N_WARMUP
        assert {tuple(row) for row in sample.X.tolist()} < {tuple(row) for row in X.tolist()}
        model = self._model(**arguments)
        for at, part in enumerate(np.split(np.arange(N_EVENTS), range(1, N_EVENTS, 20))):
            model.learn_array(X[part], y[part])
            if at == 2:
                model = type(model).from_checkpoint(model.arrays(), model.describe()["model"])
        for mine, theirs in zip(model.learner.reservoir_rows()[1:], sample[1:], strict=True):
            assert mine.tobytes() == theirs.tobytes()

    # --- weights and invalid values ---------------------------------------------------------------------------------

    def test_zero_weight_events_are_ignored(self) -> None:
        X, y = self.make_events(N_EVENTS, 11)
        keep = np.random.default_rng(11).random(N_EVENTS) < 0.7
        keep[:20] = True
        for warmup in (0, N_WARMUP):
            model = self._model(warmup=WarmUp(warmup, restarts=1))
            losses = model.learn_array(X, y, w=keep.astype(np.float64))
            without = self._fitted(X[keep], y[keep], warmup=WarmUp(warmup, restarts=1))
            assert model.n == without.n == keep.sum()
            assert np.isfinite(losses[~keep][N_WARMUP:]).sum() in {0, len(losses[~keep][N_WARMUP:])}
            _assert_close(model.parameters(), without.parameters(), "events of weight 0 among others", rtol=0.0)
            before = model.state_digest()
            model.learn_array(X[:50], y[:50], w=np.zeros(50))
            assert model.state_digest() == before

    def test_unit_weights_are_the_default(self) -> None:
        X, y = self.make_events(N_EVENTS, 12)
        for warmup in (0, N_WARMUP):
            model = self._model(warmup=WarmUp(warmup, restarts=1))
            model.learn_array(X, y, w=np.ones(N_EVENTS))
            without = self._fitted(X, y, warmup=WarmUp(warmup, restarts=1))
            assert model.state_digest() == without.state_digest()

    def test_invalid_values_are_rejected_without_changing_the_model(self) -> None:
        X, y = self.make_events(N_EVENTS, 13)
        ones = np.ones(20)
        row = 11
        for count, batch_size in ((N_WARMUP // 2, 1), (N_EVENTS, 1), (N_EVENTS, 16)):
            model = self._fitted(X[:count], y[:count], warmup=WarmUp(N_WARMUP, restarts=1), batch_size=batch_size)
            before = model.state_digest()
            rows, targets = X[:20], y[:20]
            cases = [
                *((_with(rows, (row, 1), bad), targets, ones) for bad in (math.nan, math.inf, -math.inf, 1e300)),
                *((rows, invalid, ones) for invalid in self.invalid_targets(targets, row)),
                *((rows, targets, _with(ones, row, bad)) for bad in (math.nan, math.inf, -1.0)),
            ]
            for bad_rows, bad_targets, weights in cases:
                rejected = _rejection(model, bad_rows, bad_targets, weights)
                assert rejected is not None, (bad_rows[row], bad_targets[row], weights[row])
                assert rejected.row == row
                assert model.state_digest() == before
            assert model.is_finite()

    def test_models_stay_finite_with_extreme_inputs_and_large_steps(self) -> None:
        X, y = self.make_events(N_EVENTS, 14)
        scales = 10.0 ** np.random.default_rng(14).integers(-3, 5, size=(N_EVENTS, 1))
        for batch_size in (1, 6):
            steps = Power(alpha=0.6, gamma0=0.9)
            model = self._model(warmup=0, schedule=steps, prior_strength=1.0, batch_size=batch_size)
            assert np.isfinite(model.learn_array(X * scales, y)).all()
            assert model.is_finite()
            assert np.isfinite(self.predict(model, X * 1e6)).all()

    # --- helpers ----------------------------------------------------------------------------------------------------

    def _model(self, bound: str = "tight", seed: int = 0, **arguments: Any) -> Any:
        return self.make_model(bound, seed, **arguments)

    def _fitted(self, X: FloatArray, y: AnyArray, bound: str = "tight", seed: int = 0, **arguments: Any) -> Any:
        model = self._model(bound, seed, **arguments)
        model.learn_array(X, y)
        return model

    def _compare_with_reference(self, bound: str, prior_strength: float, weights: FloatArray, **arguments: Any) -> None:
        """Compare the estimator with the reference on the same events, after the estimator's warm-up."""
        # No mini-batch is open after either: a warm-up ends in a fit, and 20 is a multiple of the other batch sizes.
        n_burn_in = N_BURN_IN if arguments["warmup"] == 0 else N_WARMUP
        X, y = self.make_events(n_burn_in + N_EVENTS, 0)
        arguments |= {"prior_strength": prior_strength, "schedule": SCHEDULE, "averaging": None}
        arguments |= {"serve": "polyak", "hold": False, "events_per_coefficient": 0.0}
        model = self._fitted(X[:n_burn_in], y[:n_burn_in], bound, **arguments)
        top_k, batch_size = arguments.get("top_k"), arguments.get("batch_size", 1)
        reference = self.make_reference(model.parameters(), bound, prior_strength, top_k)
        gammas = SCHEDULE.steps(model.n + 1, N_EVENTS)
        X, y = X[n_burn_in:], y[n_burn_in:]
        relative = relative_weights(weights, model.n)
        losses = model.learn_array(X, y, w=weights)
        design, targets = _design(X), self.encode_targets(y)
        expected: list[float] = []
        events = list(zip(design, design, targets, strict=True))
        for start in range(0, N_EVENTS, batch_size):
            batch = slice(start, start + batch_size)
            expected += self.step_reference(reference, events[batch], gammas[batch].tolist(), relative[batch].tolist())
        where = f"{bound}, prior {prior_strength:g}, top {top_k}, mini-batches of {batch_size}"
        _assert_close({"losses": losses}, {"losses": np.array(expected)}, where)
        _assert_close(model.parameters(), reference.theta, where)

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
            schedule=SCHEDULE,
        )
        weights = np.random.default_rng(len(X)).uniform(0.5, 1.5, size=len(X)) if like is None else np.ones(len(X))
        buffer = Buffer(_design(X), _design(X), self.encode_targets(y), weights)
        whole = (
            buffer
            if like is None
            else Buffer(*(_design(like[0]),) * 2, self.encode_targets(like[1]), np.ones(len(like[0])))
        )
        prior = run_job(one_expert_prior(self.family, whole, n_outputs, options))
        return Em(self.family, buffer, prior, options)

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


def _with_duplicate_expert(parameters: Mapping[str, Any]) -> dict[str, Any]:
    """Replace the second expert of a mixture by a copy of the first one, each with half of its mass."""
    changed = {name: value.copy() if isinstance(value, np.ndarray) else value for name, value in parameters.items()}
    for name in ("masses", "expert_grams"):
        changed[name][0] *= 0.5
    changed["gate"][0, 0] -= math.log(2.0)
    for name in ("gate", "experts", "variances", "masses", "expert_grams"):
        if name in changed:
            changed[name][1] = changed[name][0]
    return changed


def _statistics(state: Mapping[str, Any]) -> dict[str, FloatArray]:
    """Return the statistics that a state's parameters minimize, up to constant factors."""
    statistics = {name: state[name] for name in ("gate_gram", "expert_grams", "masses")}
    statistics["gate_linear"] = state["gate"] @ state["gate_gram"]
    statistics["expert_linear"] = state["experts"] @ state["expert_grams"]
    variances = state["variances"]
    if variances.size:
        matrices = variances if variances.ndim == 3 else variances[:, :, None] * np.eye(variances.shape[1])
        statistics["squares"] = state["masses"][:, None, None] * matrices
        statistics["squares"] += _explained(state["experts"], state["expert_grams"])
    return statistics


def _explained(experts: FloatArray, grams: FloatArray) -> FloatArray:
    """Return (K, Q, Q) Υ R Υᵀ, the part of E[τ y yᵀ] that the experts explain."""
    return np.asarray(experts @ grams @ experts.transpose(0, 2, 1))


def _assert_close(actual: Mapping[str, Any], expected: Mapping[str, Any], where: str, *, rtol: float = RTOL) -> None:
    """Assert that arrays of the same name are equal, relative to the largest entry of the array."""
    shared = [name for name, value in expected.items() if isinstance(value, np.ndarray) and name in actual]
    assert shared, where
    for name in shared:
        ours, theirs = np.asarray(actual[name]), expected[name]
        assert ours.shape == theirs.shape, (where, name, ours.shape, theirs.shape)
        if theirs.size:
            difference = np.abs(ours - theirs).max()
            assert difference <= rtol * np.abs(theirs).max(), (where, name, float(difference))


def _with(values: FloatArray, at: Any, value: float) -> FloatArray:
    changed = values.copy()
    changed[at] = value
    return changed


def _rejection(model: Any, X: FloatArray, y: AnyArray, weights: FloatArray) -> InvalidEvent | None:
    """Return the `InvalidEvent` that learning these events raised, if any."""
    try:
        model.learn_array(X, y, w=weights)
    except InvalidEvent as error:
        return error
    return None
