"""EM on rows in parts is EM on all of them: likelihoods, where it ends, and the statistics there."""

import numpy as np
import pytest

from streammoe.engine.batch import CONVERGED, descend
from streammoe.engine.em import statistics_at
from streammoe.scaleout import partitioned
from streammoe.scaleout.partitioned import PartitionedEm, one_pass
from tests.unit.cases import CASES, problem, random_theta

n, p, K = 640, 4, 3
BOUNDS = ["tight", "adaptive", "sharp"]
with_bounds = pytest.mark.parametrize(("case", "bound"), list(zip(CASES, BOUNDS * 3, strict=True)), ids=str)


class InTurn:
    """Rows in parts in this process, one after the other."""

    def __init__(self, em, sizes):
        rows, ends = np.arange(len(em.buffer.R)), np.cumsum(sizes)
        em = em._replace(prior=em.prior._replace(strength=0.0))
        chosen = [(rows >= end - size) & (rows < end) for size, end in zip(sizes, ends, strict=True)]
        self._ems = [em._replace(buffer=em.buffer.rows(each)) for each in chosen]
        self.n = len(rows)

    def total(self, sums, *arguments):
        return tuple(sum(each) for each in zip(*(sums(em, *arguments) for em in self._ems), strict=True))


def in_parts(em):
    """EM on the same rows, in 16 parts of uneven sizes."""
    cuts = np.sort(np.random.default_rng(0).choice(np.arange(1, n), 15, replace=False))
    return PartitionedEm(em.family, InTurn(em, np.diff([0, *cuts, n])), em.prior, em.options)


def same(ours, theirs, tolerance=1e-9):
    for a, b in zip(ours, theirs, strict=True):
        np.testing.assert_allclose(a, b, rtol=tolerance, atol=tolerance)


@with_bounds
def test_likelihood_and_statistics_are_those_of_the_whole(case, bound):
    for K in (1, 3):
        em, theta = problem(case, n, p, K, bound=bound), random_theta(case, K, p)
        ours = in_parts(em)
        assert ours.e_step(theta)[0] == pytest.approx(em.e_step(theta)[0], abs=1e-11)
        same(partitioned.statistics(ours, theta.copied()), statistics_at(em, theta.copied()))


@pytest.mark.parametrize("case", CASES, ids=str)
def test_no_round_lowers_the_likelihood_where_a_whole_step_would(case):
    """From gates, and classes, that are far too sure."""
    theta, ours = random_theta(case, K, p), in_parts(problem(case, n, p, K))
    for array in (theta.gate,) if case.family.is_metric else (theta.gate, theta.experts):
        array[:] *= 20.0
    way = descend(ours, theta, one_pass, rounds=3, tolerance=0.0)
    assert min(each.change for each in way.trace[1:]) > 0.0


@with_bounds
def test_it_ends_where_em_ends(case, bound):
    em = problem(case, n, p, K, bound=bound)
    begun = descend(em, random_theta(case, K, p), rounds=30, tolerance=0.0)  # as a sample's fit does
    there = descend(em, begun.theta, rounds=2_000, tolerance=1e-12)
    here = descend(in_parts(em), begun.theta, one_pass, rounds=2_000, tolerance=1e-12)
    assert here.reason == CONVERGED
    assert here.objective == pytest.approx(there.objective, abs=1e-8)
