"""EM on rows in parts is EM on all of them: parameters, traces, statistics."""

import numpy as np
import pytest

from streammoe.engine.em import statistics_at
from streammoe.engine.gradient import gradient
from streammoe.engine.methods import METHODS, point_at
from streammoe.scaleout import partitioned
from streammoe.scaleout.partitioned import PartitionedEm, Parts, added_in_turn
from tests.unit.cases import CASES, problem, random_theta

n, p, K = 640, 4, 3
BOUNDS = ["tight", "adaptive", "sharp"]
with_bounds = pytest.mark.parametrize(("case", "bound"), list(zip(CASES, BOUNDS * 3, strict=True)), ids=str)


class InTurn(Parts):
    """Rows in parts in this process, one after the other."""

    def __init__(self, ems):
        self._ems = [em._replace(prior=em.prior._replace(strength=0.0)) for em in ems]
        self.n = sum(len(em.buffer.R) for em in ems)

    def kept(self, step, *arguments):
        return [step(em, *arguments) for em in self._ems]

    def total(self, step, kept, *arguments):
        return added_in_turn([step(em, own, *arguments) for em, own in zip(self._ems, kept, strict=True)])


def in_parts(em, sizes):
    """EM on the same rows, in parts of these sizes."""
    ends = np.cumsum(sizes)
    rows = np.arange(len(em.buffer.R))
    parts = [
        em._replace(buffer=em.buffer.rows((rows >= end - size) & (rows < end)))
        for size, end in zip(sizes, ends, strict=True)
    ]
    return PartitionedEm(em.family, InTurn(parts), em.prior, em.options)


def uneven(n, count, seed=0):
    cuts = np.sort(np.random.default_rng(seed).choice(np.arange(1, n), count - 1, replace=False))
    return np.diff([0, *cuts, n])


def same(ours, theirs, tolerance=1e-9):
    for a, b in zip(ours, theirs, strict=True):
        np.testing.assert_allclose(a, b, rtol=tolerance, atol=tolerance)


@with_bounds
def test_a_round_is_one_of_em_on_a_buffer(case, bound):
    em, theta = problem(case, n, p, K, bound=bound), random_theta(case, K, p)
    ours, method = in_parts(em, uneven(n, 16)), METHODS["em"]()
    there, here = point_at(em, theta), point_at(ours, theta)
    assert here.objective == pytest.approx(there.objective, abs=1e-11)
    same(here.tau.slope, gradient(em, theta, there.tau))
    there, here = method.advance(em, there, None), method.advance(ours, here, None)
    # There, the last step of a softmax regression may be lost to rounding.
    same(here.theta, there.theta, 1e-6)
    assert here.objective == pytest.approx(there.objective, abs=1e-8)


@with_bounds
def test_the_statistics_are_those_of_the_whole(case, bound):
    for K in (1, 3):
        em, theta = problem(case, n, p, K, bound=bound), random_theta(case, K, p)
        ours = partitioned.statistics(in_parts(em, uneven(n, 16)), theta.copied())
        same(ours, statistics_at(em, theta.copied()))
