"""States by name, with more features, and with a class more."""

import numpy as np
import pytest

from streammoe import schedules
from streammoe.engine import mm
from streammoe.engine.state import (
    copy_state,
    grouping,
    is_finite,
    restart_average,
    restored_state,
    state_arrays,
    widen,
    with_class,
)
from streammoe.kernels.groups import n_waiting
from tests.unit.cases import Case, draw, options, same_bits

STEADY = schedules.power(0.6, gamma0=0.5, offset=20)
LINE = Case("gaussian", 1)
K, P = 3, 4
SOME = [LINE, Case("gaussian_full", 3), Case("student_t", 3), Case("categorical", 3)]


def steady(case, n_experts=K):
    return options(case, n_experts, 0.3, schedule=STEADY)


def learn(case, state, R, Y, *, W=None):
    residual = mm.new_residual(case.family, state, case.n_outputs)
    W = R if W is None else W
    given = steady(case, len(state.experts)), STEADY, W, R, Y
    return mm.learn(case.family, state, residual, *given, n_outputs=case.n_outputs)


def learned(case=LINE, n_experts=K, n=70, seed=0):
    """A state in the middle of a refresh window, where stored and true Gram matrices differ."""
    state = mm.random_start(
        case.family, n_experts=n_experts, p_w=P, p_v=P, n_outputs=case.n_outputs, prior_strength=0.3, seed=seed
    )
    learn(case, state, *draw(case, n, P, 2, seed))
    assert state.decay[0] < 1.0
    return state


@pytest.mark.parametrize("case", SOME, ids=str)
class TestArrays:
    def test_a_copy_shares_nothing(self, case):
        state = learned(case)
        for array in copy_state(state):
            array.fill(7)
        assert not any(array.size and (array == 7).all() for array in state)

    def test_by_name_and_back(self, case):
        """Without a group its array has no name; with one, events that wait come back too."""
        state = learned(case)
        arrays = state_arrays(state, "here")
        assert set(arrays) == {f"here.{name}" for name in state._fields if name != "group"}
        sizes = {"n_experts": K, "n_outputs": case.n_outputs, "p_w": P, "p_v": P}
        assert same_bits(state, restored_state(arrays, "here", case.family, **sizes))
        state = grouping(state, 6, case.family.n_targets(case.n_outputs))
        learn(case, state, *draw(case, 10, P, 2, 3))
        assert n_waiting(state) == 4
        arrays = state_arrays(state, "here")
        assert set(arrays) == {f"here.{name}" for name in state._fields}
        assert same_bits(state, restored_state(arrays, "here", case.family, **sizes, batch_size=6))

    def test_one_bad_number_anywhere_is_not_finite(self, case):
        assert is_finite(learned(case))
        for field in ("gate", "experts", "variances", "masses", "expert_inverses", "average_gate"):
            for value in (np.nan, np.inf):
                state = learned(case)
                if getattr(state, field).size:
                    getattr(state, field).flat[-1] = value
                    assert not is_finite(state), field


def averages_begin(state):
    raw = [state.gate, state.experts, state.variances]
    served = [state.average_gate, state.average_experts, state.average_variances]
    return state.n_average[0] == 1 and same_bits(served, raw) and not any(map(np.shares_memory, served, raw))


@pytest.mark.parametrize("case", SOME, ids=str)
class TestWiden:
    gate_at = np.array([0, 1, 2, 4])
    expert_at = np.array([0, 1, 3, 4])

    def widened(self, state):
        return widen(state, self.gate_at, 5, self.expert_at, 6)

    def test_old_entries_keep_their_places_and_new_coefficients_are_zero(self, case):
        state = learned(case)
        wide = self.widened(state)
        assert (wide.gate[:, self.gate_at] == state.gate).all()
        assert (wide.gate[:, 3] == 0).all()
        assert (wide.experts[..., self.expert_at] == state.experts).all()
        assert (wide.experts[..., [2, 5]] == 0).all()
        assert same_bits([wide.masses, wide.variances, wide.n], [state.masses, state.variances, state.n])

    def test_events_that_wait_have_zeros_in_new_columns(self, case):
        state = grouping(learned(case), 6, case.family.n_targets(case.n_outputs))
        learn(case, state, *draw(case, 10, P, 2, 3))
        assert n_waiting(state) == 4
        wide = self.widened(state)
        kept = [*self.gate_at, *(5 + self.expert_at), *range(11, wide.group.shape[1])]
        assert same_bits([wide.group[:, kept]], [state.group])
        assert (np.delete(wide.group, kept, axis=1) == 0.0).all()

    def test_averages_restart_and_inverses_stay_the_inverses(self, case):
        """Averages held zeros of the new coordinates, which would be served for as long as they had been gathered."""
        wide = self.widened(learned(case))
        assert averages_begin(wide)
        np.testing.assert_allclose(wide.gate_inverse @ wide.gate_gram, np.eye(5), atol=1e-9)
        for gram, inverse in zip(wide.expert_grams, wide.expert_inverses, strict=True):
            np.testing.assert_allclose(inverse @ gram, np.eye(6), atol=1e-9)

    def test_new_entries_weigh_what_the_prior_weighs_now(self, case):
        state = learned(case)
        weight = max(float(state.prior_weight[0]), 1.0 / (1.0 + state.n[0]))
        wide = self.widened(state)
        assert wide.decay[0] * wide.gate_gram[3, 3] == pytest.approx(weight)
        assert wide.decay[0] * wide.expert_grams[1, 2, 2] == pytest.approx(weight / K)

    def test_a_feature_that_stays_zero_changes_nothing(self, case):
        """Over several refreshes: to the model without it, the new columns are not there."""
        state = learned(case)
        wide = self.widened(copy_state(state))
        state = restart_average(state)
        R, Y = draw(case, 500, P, 2, seed=1)
        wide_w, wide_r = np.zeros((500, 5)), np.zeros((500, 6))
        wide_w[:, self.gate_at] = R
        wide_r[:, self.expert_at] = R
        narrow = learn(case, state, R, Y)
        broad = learn(case, wide, wide_r, Y, W=wide_w)
        np.testing.assert_allclose(broad.losses, narrow.losses, rtol=1e-7)
        np.testing.assert_allclose(wide.experts[..., self.expert_at], state.experts, rtol=1e-7, atol=1e-9)
        np.testing.assert_allclose(wide.gate[:, self.gate_at], state.gate, rtol=1e-7, atol=1e-9)
        assert (wide.experts[..., [2, 5]] == 0).all()


def probabilities(case, state, R):
    """Of a state that has met one class more than `case` says."""
    scores, _ = mm.score(case.family, state, R, R, n_outputs=state.experts.shape[1] + 1)
    return scores.predictions


@pytest.mark.parametrize(("case", "n_experts"), [(Case("categorical", 2), 1), (Case("categorical", 3), 3)], ids=str)
class TestWithClass:
    def test_odds_of_the_others_are_as_before_and_the_new_one_is_rare(self, case, n_experts):
        state = learned(case, n_experts, n=800)
        R, _ = draw(case, 200, P, 2, seed=1)
        before = probabilities(case, restart_average(state), R)
        after = probabilities(case, with_class(state, np.random.default_rng(0), P, 0.01), R)
        assert after.shape == (200, case.n_outputs + 1)
        np.testing.assert_allclose(after.sum(axis=1), 1.0, rtol=1e-12)
        # The odds of the new class to the reference of each expert begin at γ to 1, but for small slopes.
        assert (after[:, -1] > 0.0).all()
        assert after[:, -1].max() < 0.011
        np.testing.assert_allclose(after[:, :-1], before, atol=0.011)

    def test_what_was_there_keeps_its_bits_and_padding_stays_zero(self, case, n_experts):
        state = learned(case, n_experts)
        wide = with_class(state, np.random.default_rng(0), 2, 0.01)
        M = case.n_outputs
        assert wide.experts.shape == (n_experts, M, P)
        assert same_bits([wide.experts[:, :-1].copy()], [state.experts])
        assert averages_begin(wide)
        assert (wide.experts[:, -1, 2:] == 0.0).all()
        assert (wide.prior_experts[-1] == 0.0).all()
        changed = {"experts", "prior_experts", "n_average", "average_gate", "average_experts", "average_variances"}
        unchanged = set(state._fields) - changed
        assert same_bits([getattr(state, f) for f in unchanged], [getattr(wide, f) for f in unchanged])

    def test_experts_that_know_nothing_can_part(self, case, n_experts):
        family = case.family
        given = {"n_experts": n_experts, "p_w": P, "p_v": P, "prior_strength": 0.3, "seed": 0}
        fresh = mm.random_start(family, n_outputs=case.n_outputs, **given)
        new = with_class(fresh, np.random.default_rng(0), P, 1.0).experts[:, -1]
        assert len(np.unique(new.round(12), axis=0)) == n_experts
        late = with_class(learned(case, n_experts, n=800), np.random.default_rng(0), P, 1e-3).experts[:, -1]
        assert np.abs(late[:, 1:]).max() < 0.01

    def test_the_new_class_is_learned(self, case, n_experts):
        state = with_class(learned(case, n_experts, n=300), np.random.default_rng(0), P, 0.05)
        wider = Case("categorical", case.n_outputs + 1)
        rng = np.random.default_rng(2)
        R, Y = draw(case, 3000, P, 2, seed=2)
        new = rng.random(3000) < 1.0 / (1.0 + np.exp(-4.0 * R[:, 1]))
        Y[new] = case.n_outputs
        learn(wider, state, R, Y)
        found = probabilities(case, state, R[-1000:])[:, -1]
        assert is_finite(state)
        assert found[new[-1000:]].mean() > found[~new[-1000:]].mean() + 0.4
