"""The life of experts inside a model: told of once, begun anew, tried beside the model as it is, chosen by a race."""

import logging
import pickle
import re

import numpy as np
import pytest

from streammoe import MoERegressor
from streammoe.estimators import living
from tests.pairs import pairwise

NAMES = ["x0", "x1", "x2"]
RNG = np.random.default_rng(0)
X = RNG.uniform(-1.0, 1.0, size=(9_000, 3))
Y = np.where(RNG.random(9_000) < 1.0 / (1.0 + np.exp(-8.0 * X[:, 0])), X @ [0.5, 2.0, -1.0], X @ [-1.0, -2.0, 1.5])
Y += 0.1 * RNG.normal(size=9_000)


def spoilt(**arguments):
    """A model of two experts, the first of which has a logit of −30 everywhere."""
    first = MoERegressor(2, warmup=300, warmup_restarts=1)
    first.learn_array(X[:1_000], Y[:1_000])
    parameters = first.parameters()
    parameters["gate"][0] = [-30.0, 0.0, 0.0, 0.0]
    parameters["masses"][0] = 1e-6
    parameters["experts"][0] = 0.0
    parameters["expert_grams"][0] *= 1e-6
    return MoERegressor.from_parameters(parameters, feature_names=NAMES, **arguments)


@pytest.fixture(scope="module")
def pair():
    """What becomes of a bad start, with and without experts that begin anew."""
    models = {}
    for reseed in ("off", "auto"):
        models[reseed] = spoilt(reseed=reseed)
        models[reseed].losses = models[reseed].learn_array(X[1_000:], Y[1_000:])
    return models


# --- seen -----------------------------------------------------------------------------------------------------------


def test_experts_are_listed_with_how_they_fare(pair):
    starved, alive = pair["off"].experts()
    assert list(starved) == ["share", "loss", "nearest", "divergence", "condition"]
    assert (starved["condition"], alive["condition"]) == ("starved", "alive")
    assert (starved["nearest"], alive["nearest"]) == (1, 0)
    assert starved["share"] + alive["share"] == pytest.approx(1.0)
    assert starved["share"] < 0.01
    assert alive["loss"] > 1.0
    assert {expert["condition"] for expert in pair["auto"].experts()} == {"alive"}
    assert MoERegressor(2).experts() == []


def test_one_expert_has_no_nearest():
    model = MoERegressor(1, warmup=50)
    model.learn_array(X[:100], Y[:100])
    (only,) = model.experts()
    assert (only["share"], only["nearest"], only["divergence"], only["condition"]) == (1.0, None, None, "alive")


def test_losses_are_in_the_targets_own_units():
    models = [MoERegressor(2, warmup=200, warmup_restarts=1, standardize=True) for _ in range(2)]
    for model, unit in zip(models, (1.0, 1000.0), strict=True):
        model.learn_array(X[:500], unit * Y[:500])
    for expert, other in zip(models[0].experts(), models[1].experts(), strict=True):
        assert other["loss"] == pytest.approx(expert["loss"] + np.log(1000.0))
        assert other["divergence"] == pytest.approx(expert["divergence"])


def test_the_next_look_depends_on_the_count_alone_and_lies_ahead():
    for n in (0, 1, 2047, 2048, 40_000, 65_535, 65_536, 200_000, 10**9):
        found = living.next_look(n)
        assert n < found <= max(2 * n, living.FIRST_LOOK, n + living.LOOK_EVERY)
        assert living.next_look(found - 1) == found


def test_the_log_tells_once_of_a_starved_expert(caplog):
    model = spoilt()
    with caplog.at_level(logging.WARNING, "streammoe.estimators"):
        model.learn_array(X[1_000:8_500], Y[1_000:8_500])
    (told,) = caplog.messages
    assert "expert 0 is starved: it answers for a share of" in told
    assert "(event 2048)" in told


def test_the_log_tells_of_a_duplicate(caplog):
    first = MoERegressor(2, warmup=300, warmup_restarts=1)
    first.learn_array(X[:1_000], Y[:1_000])
    parameters = first.parameters()
    parameters["gate"][:] = 0.0
    for name in ("experts", "variances", "masses", "expert_grams"):
        parameters[name][1] = parameters[name][0]
    model = MoERegressor.from_parameters(parameters, feature_names=NAMES)
    with caplog.at_level(logging.WARNING, "streammoe.estimators"):
        model.learn_array(X[1_000:2_100], Y[1_000:2_100])
    (told,) = caplog.messages
    assert re.match(
        r"expert (0 is a duplicate: it says what expert 1|1 is a duplicate: it says what expert 0) says", told
    )


# --- begun anew -----------------------------------------------------------------------------------------------------


def test_a_dead_expert_finds_work_when_it_begins_anew(pair):
    assert pair["off"].n_reseeds == (0, 0)
    assert pair["auto"].n_reseeds == (1, 1)
    assert pair["auto"].n_candidates == pair["off"].n_candidates == 1
    last = {reseed: model.losses[-2_000:].mean() for reseed, model in pair.items()}
    assert last["auto"] < last["off"] - 1.0
    assert min(pair["auto"].masses) > 0.3


def test_until_the_trial_is_won_the_model_as_it_is_serves(pair):
    same = pair["auto"].losses == pair["off"].losses
    assert same[:1_048].all()
    assert same[1_048:1_060].any()
    assert not same[-1_000:].any()


def test_a_model_without_idle_experts_is_not_touched():
    models = [MoERegressor(2, warmup=300, warmup_restarts=1, reseed=reseed) for reseed in ("off", "auto")]
    for model in models:
        model.learn_array(X[:5_000], Y[:5_000])
    assert models[1].n_reseeds == (0, 0)
    assert models[0].state_digest() == models[1].state_digest()


def test_a_trial_that_is_not_won_leaves_the_model_as_it_was(monkeypatch, caplog):
    monkeypatch.setattr(living.Living, "_handicap", lambda self: 1e9)
    monkeypatch.setattr("streammoe.estimators.living.copy_state", lambda state: state._replace(n=state.n + 0))
    monkeypatch.setattr("streammoe.engine.model_selection.Race.learn", _first_alone)
    tried, plain = spoilt(reseed="auto"), spoilt()
    with caplog.at_level(logging.INFO, "streammoe.estimators"):
        for model in (tried, plain):
            model.learn_array(X[1_000:3_500], Y[1_000:3_500])
    assert tried.n_reseeds == (1, 0)
    assert tried.state_digest() == plain.state_digest()
    assert "expert 0 is tried as half of another until event 3072" in caplog.text
    assert "expert 0 stays as it is" in caplog.text


def _first_alone(self, family, schedule, W, R, Y, **arguments):
    from streammoe.engine import mm

    first = self.candidates[0]
    return mm.learn(family, first.state, first.residual, first.options, schedule, W, R, Y, **arguments)


def test_an_expert_can_be_begun_anew_by_hand():
    model = spoilt()
    before = model.parameters()
    model.reseed_expert(0)
    after = model.parameters()
    assert model.n_reseeds == (1, 1)
    assert after["masses"].sum() == pytest.approx(before["masses"].sum())
    assert after["masses"][0] == after["masses"][1]
    losses = model.learn_array(X[1_000:4_000], Y[1_000:4_000])
    assert losses[-500:].mean() < spoilt().learn_array(X[1_000:4_000], Y[1_000:4_000])[-500:].mean() - 1.0
    again = spoilt()
    again.reseed_expert(0)
    again.learn_array(X[1_000:4_000], Y[1_000:4_000])
    assert again.state_digest() == model.state_digest()


def test_what_is_idle_may_begin_anew_from_now_on():
    model = spoilt()
    model.learn_array(X[1_000:3_000], Y[1_000:3_000])
    model.set_reseed("auto")
    model.learn_array(X[3_000:8_000], Y[3_000:8_000])
    assert model.n_reseeds == (1, 1)


# --- as many as the stream asks for ---------------------------------------------------------------------------------

AUTO = {"warmup": 400, "warmup_restarts": 2, "max_experts": 3}


@pytest.fixture(scope="module")
def chosen():
    """A model that chose, after its race; and copies of it amid the race, as bytes and as they were."""
    model = MoERegressor("auto", **AUTO)
    model.learn_array(X[:1_000], Y[:1_000])
    kept = pickle.dumps(model)
    model.learn_array(X[1_000:4_000], Y[1_000:4_000])
    return model, kept


def racing(chosen):
    return pickle.loads(chosen[1])


def test_the_right_number_is_found_and_the_rest_is_as_if_it_had_been_given(chosen):
    model, _ = chosen
    assert (model.n_experts, model.chosen_n_experts, model.n_candidates) == ("auto", 2, 1)
    fixed = MoERegressor(2, warmup=400, warmup_restarts=2)
    fixed.learn_array(X[:4_000], Y[:4_000])
    assert model.state_digest() == fixed.state_digest()
    assert model.masses.shape == (2,)
    assert model.parameters()["experts"].shape == (2, 1, 4)


def test_one_expert_is_enough_where_there_is_one():
    model = MoERegressor("auto", **AUTO)
    model.learn_array(X[:3_000], X[:3_000] @ [1.0, 2.0, 3.0] + 0.1 * RNG.normal(size=3_000))
    assert (model.chosen_n_experts, model.n_candidates) == (1, 1)


NOISELESS = {
    "a line": (2.0 * X[:, 0] - X[:, 1], 1),
    "always the same": (np.full(len(X), 3.0), 1),
    "always 0": (np.zeros(len(X)), 1),
    "two lines": (np.abs(X[:, 0]), 2),
    "two lines, noise far below what the prior leaves": (np.abs(X[:, 0]) + 1e-3 * RNG.normal(size=len(X)), 2),
    "two lines, noise as large as what the prior leaves": (np.abs(X[:, 0]) + 0.02 * RNG.normal(size=len(X)), 2),
}


@pytest.mark.parametrize("case", pairwise(target=NOISELESS, batch_size=[1, 8])[:6], ids=str)
def test_without_noise_there_are_no_more_experts_than_it_takes(case):
    target, more = case["target"], {"batch_size": case["batch_size"]}
    y, n_experts = NOISELESS[target]
    model = MoERegressor("auto", **{**AUTO, "max_experts": 4}, **more)
    model.learn_array(X[:2_500], y[:2_500])
    assert (model.chosen_n_experts, model.n_candidates) == (n_experts, 1)


def test_with_noise_the_division_of_the_prior_changes_nothing_but_totals(chosen, monkeypatch):
    monkeypatch.setattr("streammoe.engine.model_selection.prior_gain", lambda state: 0.0)
    monkeypatch.setattr("streammoe.engine.model_selection.prior_gain", lambda state: 0.0)
    model = MoERegressor("auto", **AUTO)
    model.learn_array(X[:1_000], Y[:1_000])
    totals = model._race.totals
    np.testing.assert_allclose(racing(chosen)._race.totals, totals, atol=2.0)
    model.learn_array(X[1_000:4_000], Y[1_000:4_000])
    assert model.state_digest() == chosen[0].state_digest()


def test_amid_a_race_the_best_so_far_speaks(chosen):
    model = racing(chosen)
    assert model.n_candidates == 3
    assert model.chosen_n_experts == len(model.masses) == len(model.experts()) == len(model.parameters()["masses"])
    assert model.gate_one(dict(zip(NAMES, X[0].tolist(), strict=True))).shape == (model.chosen_n_experts,)
    leader = model._race.leader()
    assert leader.state is model._state
    assert leader.residual is model._residual


def test_before_there_is_a_mixture_nothing_is_chosen():
    model = MoERegressor("auto", **AUTO)
    assert (model.chosen_n_experts, model.n_candidates, model.most_experts) == (None, 0, 3)
    assert np.isnan(model.masses).tolist() == [True] * 3
    assert model._warm_up_size() == 400
    assert MoERegressor("auto", max_experts=8)._warm_up_size() >= MoERegressor(8)._warm_up_size()


def test_statistics_may_be_given_to_one_that_would_choose():
    parameters = MoERegressor(3, warmup=100, warmup_restarts=1)
    parameters.learn_array(X[:200], Y[:200])
    model = MoERegressor.from_parameters(parameters.parameters(), feature_names=NAMES, n_experts="auto")
    assert (model.chosen_n_experts, model.n_candidates) == (3, 1)
