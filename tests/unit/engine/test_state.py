import numpy as np
import pytest

from streammoe import schedules
from streammoe.engine import mm
from streammoe.engine.state import copy_state, is_finite, state_arrays, state_from_arrays, widen

STEADY = schedules.power(0.6, gamma0=0.5, offset=20)


def options(K, prior_strength=0.3):
    return mm.learning_options(
        bound="tight", n_experts=K, prior_strength=prior_strength, averaging="polyak", schedule=STEADY
    )


def learned(K=3, p=4, events=70, seed=0):
    """A state in the middle of a refresh window, where stored and true Gram matrices differ."""
    rng = np.random.default_rng(seed)
    R = np.column_stack([np.ones(events), rng.normal(size=(events, p - 1))])
    Y = R @ rng.normal(size=(p, 1)) + 0.3 * rng.normal(size=(events, 1))
    state = mm.random_start(n_experts=K, p_w=p, p_v=p, n_outputs=1, prior_strength=0.3, seed=seed)
    mm.learn(state, mm.new_residual(state), options(K), STEADY, R, R, Y)
    assert state.decay[0] < 1.0
    return state


def test_a_copy_shares_nothing():
    state = learned()
    copy = copy_state(state)
    for array in copy:
        array.fill(7)
    assert not any((array == 7).all() for array in state)


def test_arrays_by_name_and_back():
    state = learned()
    arrays = state_arrays(state, "here")
    assert set(arrays) == {f"here.{name}" for name in state._fields}
    again = state_from_arrays(arrays, "here")
    assert all(a.tobytes() == b.tobytes() and a.dtype == b.dtype for a, b in zip(state, again, strict=True))


@pytest.mark.parametrize("field", ["gate", "experts", "variances", "masses", "expert_inverses", "average_gate"])
@pytest.mark.parametrize("value", [np.nan, np.inf])
def test_one_bad_number_anywhere_is_not_finite(field, value):
    state = learned()
    assert is_finite(state)
    getattr(state, field).flat[-1] = value
    assert not is_finite(state)


class TestWiden:
    gate_at = np.array([0, 1, 2, 4])
    expert_at = np.array([0, 1, 3, 4])

    def widened(self, state):
        return widen(state, self.gate_at, 5, self.expert_at, 6)

    def test_old_entries_stand_where_told_and_new_coefficients_are_zero(self):
        state = learned()
        wide = self.widened(state)
        assert (wide.gate[:, self.gate_at] == state.gate).all()
        assert (wide.gate[:, 3] == 0).all()
        assert (wide.experts[..., self.expert_at] == state.experts).all()
        assert (wide.experts[..., [2, 5]] == 0).all()
        assert (wide.average_experts[..., [2, 5]] == 0).all()
        assert (wide.masses == state.masses).all()
        assert wide.n[0] == state.n[0]

    def test_inverses_are_still_the_inverses(self):
        wide = self.widened(learned())
        np.testing.assert_allclose(wide.gate_inverse @ wide.gate_gram, np.eye(5), atol=1e-9)
        for gram, inverse in zip(wide.expert_grams, wide.expert_inverses, strict=True):
            np.testing.assert_allclose(inverse @ gram, np.eye(6), atol=1e-9)

    def test_new_entries_weigh_what_the_prior_weighs_now(self):
        state = learned()
        weight = max(float(state.prior_weight[0]), 1.0 / (1.0 + state.n[0]))
        wide = self.widened(state)
        assert wide.decay[0] * wide.gate_gram[3, 3] == pytest.approx(weight)
        assert wide.decay[0] * wide.expert_grams[1, 2, 2] == pytest.approx(weight / 3)

    def test_a_feature_that_stays_zero_changes_nothing(self):
        """Over several refreshes: to the model without it, the new columns are not there."""
        state = learned()
        wide = self.widened(copy_state(state))
        rng = np.random.default_rng(1)
        R = np.column_stack([np.ones(500), rng.normal(size=(500, 3))])
        Y = R @ rng.normal(size=(4, 1)) + 0.3 * rng.normal(size=(500, 1))
        wide_w, wide_r = np.zeros((500, 5)), np.zeros((500, 6))
        wide_w[:, self.gate_at] = R
        wide_r[:, self.expert_at] = R
        narrow = mm.learn(state, mm.new_residual(state), options(3), STEADY, R, R, Y)
        broad = mm.learn(wide, mm.new_residual(wide), options(3), STEADY, wide_w, wide_r, Y)
        np.testing.assert_allclose(broad.losses, narrow.losses, rtol=1e-9)
        np.testing.assert_allclose(wide.experts[..., self.expert_at], state.experts, rtol=1e-9)
        np.testing.assert_allclose(wide.gate[:, self.gate_at], state.gate, rtol=1e-8, atol=1e-12)
        assert (wide.experts[..., [2, 5]] == 0).all()

    def test_a_feature_that_matters_is_learned(self):
        state = learned(K=1)
        wide = widen(state, np.arange(4), 5, np.arange(4), 5)
        rng = np.random.default_rng(1)
        R = np.column_stack([np.ones(3000), rng.normal(size=(3000, 4))])
        Y = 3.0 * R[:, 4:] + 0.1 * rng.normal(size=(3000, 1))
        mm.learn(wide, mm.new_residual(wide), options(1), STEADY, R, R, Y)
        assert wide.experts[0, 0, 4] == pytest.approx(3.0, abs=0.05)
