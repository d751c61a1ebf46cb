"""What counts as a jump of the loss, and what does not."""

import json

import numpy as np
import pytest

from streammoe.daemon.guards import MIN_HISTORY, MIN_RISE, MIN_WINDOW, WINDOWS_PER_JUMP, LossGuard, LossState

USUAL = MIN_HISTORY + 2
"""Windows of usual losses."""


def noise(windows, mean=0.0, seed=0):
    return mean + 0.3 * np.random.default_rng(seed).normal(size=int(windows * MIN_WINDOW))


def watching(*known, gamma=0.1):
    """Return a guard that has seen these losses, of which none was a jump."""
    guard = LossGuard(lambda _: gamma)
    for losses in known:
        assert guard.watch(losses) is None
    return guard


def test_three_high_windows_in_a_row_are_a_jump():
    guard = watching(noise(USUAL), noise(WINDOWS_PER_JUMP - 1, MIN_RISE + 0.5))
    assert (len(guard.state.high), guard.state.sound) == (WINDOWS_PER_JUMP - 1, USUAL * MIN_WINDOW)
    jump = guard.watch(noise(1, MIN_RISE + 0.5))
    assert (jump.loss, jump.usual) == pytest.approx((MIN_RISE + 0.5, 0.0), abs=0.1)
    assert (jump.events, jump.sound) == (WINDOWS_PER_JUMP * MIN_WINDOW, USUAL * MIN_WINDOW)
    assert guard.watch(noise(50, MIN_RISE + 0.5)) is None, "what is usual is measured again"
    assert guard.watch(noise(WINDOWS_PER_JUMP, 40.0)) is not None
    assert guard.state.jumps == 2


def test_what_is_no_jump():
    of_a_weekend = np.concatenate(
        [noise(WINDOWS_PER_JUMP - 1, 50.0), noise(1), noise(WINDOWS_PER_JUMP - 1, 50.0), noise(1)]
    )
    watching(noise(USUAL), noise(10, -30.0))  # lower
    watching(noise(USUAL), noise(10, MIN_RISE - 0.5))  # a little higher
    watching(noise(USUAL), of_a_weekend)  # high, but not for long
    watching(noise(USUAL), np.concatenate([[1e200], noise(2)]))  # one absurd event
    watching(noise(MIN_HISTORY - WINDOWS_PER_JUMP), noise(WINDOWS_PER_JUMP, 50.0))  # little is known


def test_the_more_a_loss_varies_the_higher_a_jump_has_to_be():
    rng = np.random.default_rng(0)
    varied = np.concatenate([noise(1, rng.normal(scale=3.0)) for _ in range(30)])
    assert watching(varied, noise(WINDOWS_PER_JUMP, 12.0), noise(1)).watch(noise(WINDOWS_PER_JUMP, 60.0)) is not None
    days_and_nights = np.concatenate([noise(1, 10.0 if i % 10 > 5 else 0.0) for i in range(60)])
    known = MIN_HISTORY * MIN_WINDOW
    assert watching(days_and_nights[:known], days_and_nights[known:]).watch(noise(WINDOWS_PER_JUMP, 20.0)) is not None
    absurd = np.concatenate([noise(USUAL), [1e6], noise(USUAL)])
    assert watching(absurd).watch(noise(WINDOWS_PER_JUMP, MIN_RISE + 1.0)) is not None, "one absurd window hides none"


def test_small_steps_have_long_windows():
    guard = watching(noise(USUAL * 10), noise(WINDOWS_PER_JUMP * 10 - 1, 50.0), gamma=0.001)
    assert guard.watch(noise(1, 50.0)).events == WINDOWS_PER_JUMP * 5000


@pytest.mark.parametrize("cuts", [(1,), (499, 3)], ids=str)
def test_what_is_found_does_not_depend_on_how_events_came(cuts):
    losses = np.concatenate([noise(USUAL + 0.3), noise(WINDOWS_PER_JUMP + 1, 9.0)])
    whole, parts = LossGuard(lambda _: 0.1), LossGuard(lambda _: 0.1)
    expected = whole.watch(losses)
    found, at, turn = None, 0, 0
    while at < len(losses):
        size = cuts[turn % len(cuts)]
        found = parts.watch(losses[at : at + size]) or found
        at, turn = at + size, turn + 1
        if turn % 100 == 0:  # a restart in between
            parts = LossGuard(lambda _: 0.1, LossState(**json.loads(parts.state.model_dump_json())))
    assert found == expected is not None
    assert parts.state == whole.state
