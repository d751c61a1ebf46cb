"""Which expert is starved, which a duplicate, which is to be reseeded, and as half of which."""

import numpy as np
import pytest

from streammoe.engine.life import DUPLICATE_BELOW, STARVED_BELOW, Life, costliest, idle, life
from streammoe.experts.gaussian import Gaussian

INF = np.inf


class State:
    def __init__(self, masses):
        self.masses = np.array(masses)


class Given(Gaussian):
    def __init__(self, apart, losses):
        self.apart, self.losses = np.array(apart, dtype=float), np.array(losses, dtype=float)

    def divergences(self, state, options):
        return self.apart.copy()

    def expert_losses(self, state):
        return self.losses


def judged(masses, apart=None, losses=None):
    K = len(masses)
    apart = 1.0 - np.eye(K) if apart is None else apart
    return life(Given(apart, np.zeros(K) if losses is None else losses), State(masses), None)


def test_shares_are_those_of_the_masses():
    assert judged([1.0, 3.0]).shares == pytest.approx([0.25, 0.75])


def test_one_alone_is_neither_starved_nor_a_duplicate():
    found = judged([0.3])
    assert (found.nearest.tolist(), found.divergences.tolist()) == ([-1], [INF])
    assert not found.starved.any()
    assert not found.duplicate.any()
    assert idle(found) is None


def test_below_its_limit_a_share_is_starved_and_not_at_it():
    limit = STARVED_BELOW / 2
    assert judged([limit * 0.99, 1.0 - limit * 0.99]).starved.tolist() == [True, False]
    assert judged([limit, 1.0 - limit]).starved.tolist() == [False, False]


def test_of_two_that_say_the_same_the_smaller_is_the_duplicate_and_of_equals_the_later():
    near = DUPLICATE_BELOW * 0.9
    apart = [[0.0, near, 9.0], [near, 0.0, 9.0], [9.0, 9.0, 0.0]]
    assert judged([0.2, 0.3, 0.5], apart).duplicate.tolist() == [True, False, False]
    assert judged([0.25, 0.25, 0.5], apart).duplicate.tolist() == [False, True, False]
    assert judged([0.2, 0.3, 0.5], np.array(apart) / 0.9).duplicate.tolist() == [False, False, False]
    assert judged([0.2, 0.3, 0.5], apart).nearest.tolist() == [1, 0, 0]


def test_a_starved_expert_is_nobodys_duplicate_and_makes_none():
    near = DUPLICATE_BELOW / 2
    apart = [[0.0, near, 9.0], [near, 0.0, 9.0], [9.0, 9.0, 0.0]]
    found = judged([0.001, 0.499, 0.5], apart)
    assert found.starved.tolist() == [True, False, False]
    assert not found.duplicate.any()


def test_the_most_starved_is_reseeded_first_then_the_duplicate_that_is_nearest():
    assert idle(judged([0.01, 0.005, 0.985])) == 1
    apart = np.array([[0.0, 0.015, 9, 9], [0.015, 0.0, 9, 9], [9, 9, 0.0, 0.001], [9, 9, 0.001, 0.0]])
    assert idle(judged([0.2, 0.3, 0.3, 0.2], apart)) == 3
    assert idle(judged([0.5, 0.5])) is None


def test_the_costliest_is_the_one_whose_loss_above_the_best_weighs_most():
    found = Life(
        shares=np.array([0.1, 0.5, 0.1, 0.3]),
        losses=np.array([9.0, 1.0, 3.0, 2.0]),
        nearest=np.zeros(4, int),
        divergences=np.ones(4),
        starved=np.zeros(4, bool),
        duplicate=np.zeros(4, bool),
    )
    # Without expert 0: 0.5 · 0, 0.1 · 2, 0.3 · 1.
    assert costliest(found, 0) == [3, 2, 1]
    # Without the best one: 0.1 · 7, 0.1 · 1, 0.3 · 0.
    assert costliest(found, 1) == [0, 2, 3]
