"""EM on a buffer: how it ends. Its rounds are held to literal ones in tests/oracle, its descent by the contract."""

from typing import ClassVar

import numpy as np
import pytest

from streammoe.engine.em import Buffer, Em
from streammoe.experts import Parameters
from tests.unit.cases import Case, draw, options, random_prior, random_theta

cases = pytest.mark.parametrize("case", [Case("gaussian_full", 3), Case("laplace", 1), Case("categorical", 3)], ids=str)


class Watched(Em):
    """EM that notes of each round whether its responsibilities are the plain ones."""

    plain: ClassVar[list] = []

    def maximise(self, theta, tau, rounds=1):
        self.plain.append(np.allclose(tau, self.expect(theta)[1]))
        super().maximise(theta, tau, rounds)


def em_of(case):
    R, Y = draw(case, 150, 3, 2)
    Watched.plain.clear()
    return Watched(case.family, Buffer(R, R, Y, np.ones(150)), random_prior(case, 1.0, 3), options(case, 2, 1.0))


@cases
def test_it_stops_when_it_gains_too_little(case):
    em, theta = em_of(case), random_theta(case, 2, 3)
    short = em.run(Parameters(*(array.copy() for array in theta)), 3)
    last = em.run(theta, 5000)
    assert short < last
    assert 3 < len(em.plain) < 5000
    assert all(em.plain)
    em.plain.clear()
    assert em.run(theta, 5000) == pytest.approx(last, abs=1e-6)
    assert len(em.plain) < 10


@cases
def test_annealing_ends_with_plain_rounds(case):
    em, theta = em_of(case), random_theta(case, 2, 3)
    first, _ = em.expect(theta)
    em.anneal(theta, 30)
    assert len(em.plain) == 30
    assert not any(em.plain[:15])
    assert all(em.plain[-10:])
    assert em.expect(theta)[0] > first
