import numpy as np
import pytest

from benchmarks.papers import baselines
from benchmarks.papers.baselines import Point, Start
from streammoe import MoERegressor

K, P = 3, 4
SIZE = (K - 1) * P + K * P + K


def loss(theta, w, y):
    return baselines.loss_and_gradient(theta, K, w, y, np.empty(SIZE))


@pytest.mark.parametrize("seed", range(3))
def test_the_gradient_is_that_of_numerical_differences(seed):
    rng = np.random.default_rng(seed)
    theta, w, y = rng.normal(size=SIZE), rng.normal(size=P), rng.normal()
    gradient = np.empty(SIZE)
    baselines.loss_and_gradient(theta, K, w, y, gradient)
    step = 1e-6 * np.eye(SIZE)
    differences = [(loss(theta + e, w, y) - loss(theta - e, w, y)) / 2e-6 for e in step]
    assert gradient == pytest.approx(differences, abs=1e-7)


def stream(n=600, seed=0):
    rng = np.random.default_rng(seed)
    X = rng.uniform(-1.0, 1.0, (n, P - 1))
    return X, np.where(X[:, 0] > 0.0, X[:, 1], -X[:, 1]) + 0.1 * rng.normal(size=n)


@pytest.fixture(scope="module")
def warmed():
    X, y = stream()
    model = MoERegressor(n_experts=K, warmup=200)
    model.learn_array(X[:200], y[:200])
    return model, X[200:], y[200:]


def test_the_start_has_the_loss_and_the_regression_function_of_the_model_it_is_taken_from(warmed):
    model, X, y = warmed
    start = baselines.start_of(model, X, y)
    ours = model.predict_distribution_one({f"x{j}": X[0, j] for j in range(P - 1)})
    assert loss(start.theta, start.W[0], start.y[0]) == pytest.approx(-np.log(ours.pdf(y[0])))
    assert baselines.regression(start.theta, K, X) == pytest.approx(model.predict_array(X))


@pytest.mark.slow  # compiles the loop over events
@pytest.mark.parametrize("name", baselines.OPTIMISERS)
@pytest.mark.parametrize("mean_serves", [False, True])
def test_every_optimiser_learns(name, mean_serves):
    X, y = stream(2000)
    rng = np.random.default_rng(1)
    start = Start(0.1 * rng.normal(size=SIZE), K, baselines.features(X), y)
    still, _ = baselines.learned(name, Point(0.0, 0.0, 0.05, mean_serves), start, 100)[mean_serves]
    moving, trail = baselines.learned(name, Point(0.01, 0.0, 0.05, mean_serves), start, 100)[mean_serves]
    assert moving < still - 0.1
    assert trail.shape == (20, SIZE)
    assert np.isfinite(trail).all()


@pytest.mark.slow
def test_an_optimiser_that_is_lost_has_infinite_loss_and_no_warning():
    X, y = stream()
    start = Start(np.zeros(SIZE), K, baselines.features(X), 0.0 * y)  # variances shrink until nothing finite is left
    for total, trail in baselines.learned("SGD", Point(1e3, 0.0, 0.0, False), start, 100):
        assert total == np.inf
        assert np.isnan(trail[-1]).all()


class TestOneStep:
    gradient = np.array([3.0, -0.5, 0.0])

    def test_of_adam_is_as_long_as_the_rate(self):
        theta = np.zeros(3)
        baselines.adam(theta, self.gradient, np.zeros(3), np.zeros(3), 1, 0.1)
        assert theta == pytest.approx([-0.1, 0.1, 0.0])

    def test_of_adamw_shrinks_as_well(self):
        theta = np.ones(3)
        baselines.adamw(theta, self.gradient, np.zeros(3), np.zeros(3), 1, 0.1, 0.2)
        assert theta == pytest.approx([0.88, 1.08, 0.98])

    def test_of_rmsprop_is_ten_times_the_rate(self):
        theta = np.zeros(3)
        baselines.rmsprop(theta, self.gradient, np.zeros(3), 0.1)
        assert theta == pytest.approx([-1.0, 1.0, 0.0])

    def test_of_sophia_is_never_longer_than_the_rate(self):
        theta = np.zeros(3)
        # Momentum 0.105, −0.0175, 0 over curvature times ρ.
        baselines.sophia(theta, self.gradient, np.zeros(3), np.array([0.1, 1.0, 1.0]), 0.1, 0.5)
        assert theta == pytest.approx([-0.1, 0.0035, 0.0])


def test_targets_are_drawn_from_the_model():
    rng = np.random.default_rng(0)
    theta, w = rng.normal(size=SIZE), rng.normal(size=P)
    gradients = np.empty((20_000, SIZE))
    for row in gradients:
        baselines.loss_and_gradient(theta, K, w, baselines.drawn_target(theta, K, w, rng.random(), rng.normal()), row)
    # The score has mean 0 under the model's own distribution, and nowhere else.
    assert np.abs(gradients.mean(axis=0)).max() < 5.0 * gradients.std(axis=0).max() / np.sqrt(len(gradients))


@pytest.mark.slow
def test_the_mean_of_the_iterates_is_scored_beside_the_last(warmed):
    start = baselines.start_of(*warmed)
    last, mean = (trail for _, trail in baselines.learned("SGD", Point(0.01, 0.0, 0.0, False), start, 1))
    assert mean == pytest.approx(np.cumsum(last, axis=0) / np.arange(1, len(last) + 1)[:, None])


@pytest.mark.slow
def test_each_point_of_a_grid_is_tried_in_its_order(warmed):
    start = baselines.start_of(*warmed)
    found = baselines.tried(start, "SGD", lambda theta: theta)
    for point, (loss, theta) in zip(baselines.grid("SGD"), found, strict=True):
        alone, trail = baselines.learned("SGD", point, start, 100)[point.mean_serves]
        assert loss == alone
        assert np.array_equal(theta, trail[-1], equal_nan=True)


def test_a_grid_holds_each_point_once():
    points = baselines.grid("Sophia")
    assert len(points) == len(set(points)) == 9 * 2 * 3 * 2
    assert len(baselines.grid("SGD")) == 9 * 2 * 2


def test_the_best_point_is_that_of_the_least_mean_loss_and_never_a_lost_one():
    assert baselines.best_point([[1.0, 0.0, 3.0], [1.0, np.inf, 0.0]]) == 0
