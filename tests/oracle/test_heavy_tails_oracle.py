"""Student-t and Laplace experts against the literal algorithm, and the surrogate that it stands on."""

import numpy as np
import pytest
from scipy.integrate import quad
from scipy.stats import multivariate_t

from benchmarks.oracle_agreement import HOSTILE, STEPS, Case, estimator, run, start_of, start_with_prior, stream
from streammoe import MoERegressor
from tests.oracle.heavy_tails import ALGORITHMS, StudentT

EVENTS = 200
SOUND = [steps for steps in STEPS if steps != HOSTILE]
HEAVY = [{"expert": "student_t"}, {"expert": "student_t", "outputs": 3}, {"expert": "laplace"}]
BOUNDS = ["tight", "paper", "adaptive"]
families = pytest.mark.parametrize("family", HEAVY, ids=lambda family: " ".join(map(str, family.values())))


def at(expert, upsilon, sigma2):
    """The literal algorithm with a single expert at these parameters."""
    Q, p = upsilon.shape
    start = {
        "gate": np.zeros((0, p)),
        "experts": upsilon[None],
        "variances": sigma2[None],
        "masses": np.ones(1),
        "gate_gram": np.eye(p),
        "expert_grams": np.eye(p)[None],
        "decay": 1.0,
        "prior_weight": 0.0,
        "prior": {
            "gate_gram": np.ones(p),
            "expert_gram": np.ones(p),
            "experts": np.zeros((Q, p)),
            "variances": np.ones(Q),
        },
    }
    return ALGORITHMS[expert](start)


def surrogate(algorithm, r, y):
    """½ [ s6 Σ_q log σ_q² + Σ_q (s3 + s4 Υᵀ + Υ s5 Υᵀ)_qq / σ_q² ] of one event, a function of (Υ, σ²)."""
    s = {name: value[0] for name, value in algorithm.expert_statistics(r, y, np.ones(1)).items()}

    def value(upsilon, sigma2):
        squares = s["s3"] + np.sum(s["s4"] * upsilon, axis=1) + np.einsum("qi,ij,qj->q", upsilon, s["s5"], upsilon)
        return 0.5 * (s["s6"] * np.sum(np.log(sigma2)) + np.sum(squares / sigma2))

    return value


@pytest.mark.parametrize(("expert", "Q"), [("student_t", 1), ("student_t", 3), ("laplace", 1)])
def test_the_surrogate_of_an_event_touches_its_loss_and_lies_above_it_everywhere(expert, Q):
    rng = np.random.default_rng(Q)
    for _ in range(300):
        r = rng.normal(size=4)
        upsilon, sigma2 = rng.normal(size=(Q, 4)), 10.0 ** rng.uniform(-2, 2, size=Q)
        # From inside the tip of a Laplace expert to far out.
        y = upsilon @ r + np.sqrt(sigma2) * rng.normal(size=Q) * 10.0 ** rng.uniform(-3, 3)
        here = at(expert, upsilon, sigma2)
        bound = surrogate(here, r, y)
        level = -here.log_experts(r, y)[0] - bound(upsilon, sigma2)
        for size in 10.0 ** rng.uniform(-4, 1.5, size=20):
            moved = upsilon + size * rng.normal(size=upsilon.shape), sigma2 * np.exp(size * rng.normal(size=Q))
            loss, above = -at(expert, *moved).log_experts(r, y)[0], bound(*moved) + level
            assert loss <= above + 1e-9 * max(abs(loss), abs(above), abs(level), 1.0)


def test_a_weight_that_is_cut_off_majorizes_the_rounded_tip_and_not_the_kink():
    """|e| ≤ e²/(2|e₀|) + |e₀|/2 holds as it stands; with the weight 1/ε for |e₀| < ε it needs the parabola."""
    tip, e0 = 0.1, 0.02
    e = np.linspace(-1.0, 1.0, 2001)
    tangent = e**2 / (2.0 * tip)
    kinked = tangent - tangent[np.argmin(np.abs(e - e0))] + e0
    assert (kinked < np.abs(e) - 0.01).any()
    rounded = np.where(np.abs(e) > tip, np.abs(e), e**2 / (2.0 * tip) + tip / 2.0)
    assert (tangent + tip / 2.0 >= rounded - 1e-12).all()


@pytest.mark.parametrize("expert", ["student_t", "laplace"])
def test_densities_of_one_output_have_area_1(expert):
    one = at(expert, np.array([[0.3]]), np.array([[0.7]])[0])
    density = lambda y: np.exp(one.log_experts(np.ones(1), np.array([y]))[0])  # noqa: E731 - a formula
    area = sum(quad(density, 0.3 + start, 0.3 + end, limit=200)[0] for start, end in [(0, 0.09), (0.09, 5), (5, 4000)])
    assert 2.0 * area == pytest.approx(1.0, abs=1e-6)


def test_the_density_of_several_outputs_is_that_of_scipy():
    upsilon, sigma2 = np.array([[0.3], [-1.0], [2.0]]), np.array([0.5, 2.0, 1.3])
    for y in np.random.default_rng(0).normal(size=(20, 3)) * 5.0:
        expected = multivariate_t(upsilon[:, 0], np.diag(sigma2), df=4.0).logpdf(y)
        assert at("student_t", upsilon, sigma2).log_experts(np.ones(1), y)[0] == pytest.approx(expected, rel=1e-12)


@pytest.mark.sampled(one_in=7)
@families
@pytest.mark.parametrize("weighted", [False, True], ids=["", "weights"])
@pytest.mark.parametrize("bound", BOUNDS)
@pytest.mark.parametrize("K", [1, 4])
def test_iterates_of_the_plain_algorithm(K, bound, weighted, family):
    case = Case(K, 5, bound, SOUND[weighted], weighted=weighted, **family)
    agreement = run(case, EVENTS, twins=1)
    assert agreement.decides
    assert agreement.finite
    assert agreement.difference <= agreement.target(case), agreement


@pytest.mark.sampled(one_in=5)
@families
@pytest.mark.parametrize("seed", range(4))
@pytest.mark.parametrize("K", [1, 2, 4])
def test_iterates_under_hostile_steps_with_a_prior(K, seed, family):
    case = Case(K, 5, BOUNDS[seed % 3], HOSTILE, prior=1.0, seed=seed, weighted=seed > 0, **family)
    agreement = run(case, EVENTS, twins=1)
    assert agreement.decides
    assert agreement.finite
    assert agreement.smallest_mass >= 1e-3 / K
    assert agreement.difference <= agreement.target(case), agreement


@families
def test_hostile_steps_without_a_prior_leave_what_the_literal_algorithm_leaves(family):
    case = Case(1, 3, "tight", HOSTILE, **family)
    agreement = run(case, EVENTS, twins=1)
    assert agreement.finite
    assert agreement.decides
    assert agreement.difference <= agreement.target(case), agreement


@families
def test_another_family_is_noticed(family):
    case = Case(3, 3, "tight", SOUND[0], **family)
    make = lambda case, start, bound: estimator(case._replace(expert="gaussian"), start, bound)  # noqa: E731 - a formula
    assert run(case, 60, twins=1, make=make).difference > 1e-3


@pytest.mark.parametrize("degrees", [2.5, 30.0])
def test_other_degrees_of_freedom(degrees, monkeypatch):
    case = Case(3, 3, "tight", HOSTILE, prior=1.0, expert="student_t")

    def make(case, start, bound):
        return MoERegressor.from_parameters(
            start,
            feature_names=["x000", "x001"],
            expert="student_t",
            degrees_of_freedom=degrees,
            bound=bound,
            schedule=STEPS[HOSTILE],
            prior_strength=1.0,
            averaging=None,
        )

    assert run(case, EVENTS, twins=1, make=make).difference > 1e-2
    monkeypatch.setattr(StudentT, "degrees", degrees)
    agreement = run(case, EVENTS, twins=1, make=make)
    assert agreement.difference <= agreement.target(case), agreement


@pytest.mark.parametrize("outputs", [1, 3])
def test_with_many_degrees_of_freedom_the_literal_algorithm_is_that_of_gaussian_experts(outputs):
    case = Case(2, 3, "tight", SOUND[0], prior=1.0, expert="student_t", outputs=outputs)
    start, events = start_with_prior(case), stream(case, 60)
    gaussian, heavy = (ALGORITHMS[name](start, prior_strength=1.0) for name in ("gaussian", "student_t"))
    heavy.degrees = 1e7
    for x, y in zip(events.X, events.y.reshape(60, -1), strict=True):
        w = np.append(1.0, x)
        for each in (gaussian, heavy):
            each.learn(w, w, y, 0.05)
    np.testing.assert_allclose(heavy.upsilon, gaussian.upsilon, rtol=1e-3, atol=1e-4)


def test_a_start_stands_for_its_case():
    case = Case(3, 3, "tight", SOUND[0], expert="laplace")
    model = estimator(case, start_of(case, stream(case, 50)), "tight")
    assert model.expert == "laplace"
