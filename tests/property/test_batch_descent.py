"""Whatever the events are, no round of EM lowers the penalised likelihood."""

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st

from streammoe.engine import batch
from streammoe.engine.em import Buffer
from streammoe.engine.jobs import run_job
from streammoe.engine.search import with_own_prior
from tests.unit.cases import Case, options, random_theta

NUMBERS = st.floats(-1e3, 1e3, width=32)
KINDS = [
    Case("gaussian", 2),
    Case("gaussian_full", 2),
    Case("student_t", 2),
    Case("laplace", 1),
    Case("categorical", 3),
]


@st.composite
def problems(draw):
    case = draw(st.sampled_from(KINDS))
    n, d, K = draw(st.integers(2, 25)), draw(st.integers(1, 3)), draw(st.integers(1, 3))
    bound, strength = (
        draw(st.sampled_from(["sharp", "tight", "adaptive", "paper"])),
        draw(st.sampled_from([0.01, 0.5, 5.0])),
    )
    rows = draw(st.lists(st.lists(NUMBERS, min_size=d, max_size=d), min_size=n, max_size=n))
    W = np.column_stack([np.ones(n), np.array(rows)])
    if case.family.is_metric:
        Q = case.n_outputs
        Y = np.array(draw(st.lists(st.lists(NUMBERS, min_size=Q, max_size=Q), min_size=n, max_size=n)))
    else:
        Y = np.array(draw(st.lists(st.integers(0, 2), min_size=n, max_size=n)), float)[:, None]
    weights = np.array(draw(st.lists(st.sampled_from([0.5, 1.0, 3.0]), min_size=n, max_size=n)))
    chosen = options(case, K, strength, bound)
    em = run_job(with_own_prior(case.family, Buffer(W, W, Y, weights), case.n_outputs, chosen))
    return em, random_theta(case, K, d + 1, draw(st.integers(0, 3)))


@settings(max_examples=40)
@given(problem=problems())
def test_no_round_lowers_the_likelihood(problem):
    em, theta = problem
    with np.errstate(all="ignore"):
        way = batch.descend(em, theta, rounds=6, tolerance=0.0)
    assert way is not None
    assert way.reason != batch.DIVERGED
    for before, after in zip(way.trace, way.trace[1:], strict=False):
        assert after.change >= -1e-9 * max(abs(before.objective), 1.0), (before, after)
