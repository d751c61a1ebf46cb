"""The life of experts inside a model: told of once, begun anew, tried beside the model as it is, chosen by a race."""

import copy
import logging
import pickle
import re

import numpy as np
import pytest

from streammoe import MoEClassifier, MoEMultiTargetRegressor, MoERegressor, load
from streammoe.errors import CheckpointError, ConfigError
from streammoe.estimators import living

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


@pytest.mark.parametrize("n", [0, 1, 2047, 2048, 40_000, 65_535, 65_536, 200_000, 10**9])
def test_the_next_look_depends_on_the_count_alone_and_lies_ahead(n):
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
    monkeypatch.setattr("streammoe.engine.racing.Race.learn", _first_alone)
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

    first = self.runners[0]
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


@pytest.mark.parametrize(
    ("n_experts", "events", "expert", "told"),
    [(2, 50, 0, "the warm-up is not over"), (2, 200, 2, "the model has 2"), (2, 200, -1, "the model has 2"),
     (1, 200, 0, "the model has 1; two are the least")],
)  # fmt: skip
def test_what_cannot_begin_anew_is_refused(n_experts, events, expert, told):
    model = MoERegressor(n_experts, warmup=100, warmup_restarts=1)
    model.learn_array(X[:events], Y[:events])
    digest = model.state_digest()
    with pytest.raises(ConfigError, match=told):
        model.reseed_expert(expert)
    assert model.state_digest() == digest


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


@pytest.mark.parametrize("target", NOISELESS)
@pytest.mark.parametrize("more", [{}, {"batch_size": 8}], ids=["one by one", "in groups"])
def test_without_noise_there_are_no_more_experts_than_it_takes(target, more):
    y, n_experts = NOISELESS[target]
    model = MoERegressor("auto", **{**AUTO, "max_experts": 4}, **more)
    model.learn_array(X[:2_500], y[:2_500])
    assert (model.chosen_n_experts, model.n_candidates) == (n_experts, 1)


@pytest.mark.parametrize("covariance", ["diagonal", "full"])
def test_nor_with_several_targets(covariance):
    model = MoEMultiTargetRegressor("auto", covariance=covariance, **AUTO)
    model.learn_array(X[:2_500], np.column_stack([2.0 * X[:2_500, 0] - X[:2_500, 1], X[:2_500, 2]]))
    assert (model.chosen_n_experts, model.n_candidates) == (1, 1)


def test_with_noise_the_division_of_the_prior_changes_nothing_but_totals(chosen, monkeypatch):
    monkeypatch.setattr("streammoe.engine.choice.prior_gain", lambda state: 0.0)
    monkeypatch.setattr("streammoe.engine.racing.prior_gain", lambda state: 0.0)
    model = MoERegressor("auto", **AUTO)
    model.learn_array(X[:1_000], Y[:1_000])
    totals = model._race.totals
    np.testing.assert_allclose(racing(chosen)._race.totals, totals, atol=2.0)
    model.learn_array(X[1_000:4_000], Y[1_000:4_000])
    assert model.state_digest() == chosen[0].state_digest()


@pytest.mark.parametrize("cuts", [[1_029], [1_030, 1_031, 1_129, 1_131], [500, 3_000]])
def test_a_race_that_is_charged_is_saved_and_goes_on_bit_for_bit(cuts, tmp_path):
    """The race takes 2,020 events, so the first charge is for 20; totals are in the digest while it lasts."""
    whole, parts = (MoERegressor("auto", **{**AUTO, "warmup": 1_010}) for _ in range(2))
    y = np.abs(X[:, 0])
    whole.learn_array(X[:3_029], y[:3_029])
    assert whole.n_candidates == 3
    for part in np.split(np.arange(3_029), cuts):
        parts.learn_array(X[part], y[part])
        parts.save(tmp_path / "model")
        parts = load(tmp_path / "model")
    assert parts.state_digest() == whole.state_digest()
    for model in (whole, parts):
        model.learn_array(X[3_029:3_100], y[3_029:3_100])
    assert parts.state_digest() == whole.state_digest()
    assert (parts.chosen_n_experts, parts.n_candidates) == (2, 1)


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


def test_the_log_says_who_races_and_who_has_won(caplog):
    with caplog.at_level(logging.INFO, "streammoe.estimators"):
        MoERegressor("auto", **AUTO).learn_array(X[:2_500], Y[:2_500])
    assert "warm-up: 2, 3, 1 experts are the best of 1 to 3; they learn side by side until event 2400" in caplog.text
    assert "the model has 2 experts from here; nats lost by each candidate: 2: 0.0, 3: " in caplog.text


def test_river_clones_the_word(chosen):
    model, _ = chosen
    assert model.clone().n_experts == "auto"
    assert copy.deepcopy(racing(chosen)).state_digest() == racing(chosen).state_digest()


def test_a_saved_race_goes_on_bit_for_bit(chosen, tmp_path):
    model = racing(chosen)
    model.save(tmp_path / "model")
    read = load(tmp_path / "model")
    assert read.state_digest() == model.state_digest()
    assert (read.n_candidates, read.chosen_n_experts) == (model.n_candidates, model.chosen_n_experts)
    assert read.convergence_residual == model.convergence_residual
    losses, read_losses = (each.learn_array(X[1_000:4_000], Y[1_000:4_000]) for each in (model, read))
    assert read_losses.tobytes() == losses.tobytes()
    assert read.state_digest() == model.state_digest() == chosen[0].state_digest()
    assert read.convergence_residual == model.convergence_residual


def test_counts_of_experts_begun_anew_are_kept(pair, tmp_path):
    pair["auto"].save(tmp_path / "model")
    assert load(tmp_path / "model").n_reseeds == (1, 1)


@pytest.mark.parametrize("kind", [MoERegressor, MoEMultiTargetRegressor, MoEClassifier])
def test_columns_and_classes_that_come_amid_a_race_are_taken_up_by_all(kind, tmp_path):
    targets = {
        MoERegressor: Y,
        MoEMultiTargetRegressor: np.column_stack([Y, -Y]),
        MoEClassifier: np.where(np.arange(len(Y)) > 700, np.digitize(Y, [-1.0, 1.0]), Y > 0).astype(int),
    }[kind]
    model = kind("auto", warmup=300, warmup_restarts=1, max_experts=2)
    model.learn_array(X[:600, :2], targets[:600])
    assert model.n_candidates == 2
    model.learn_array(X[600:1_000], targets[600:1_000])
    assert model.n_candidates == 2
    widths = {runner.state.experts.shape[1:] for runner in model._race.runners}
    assert widths == {model._state.experts.shape[1:]}
    model.save(tmp_path / "model")
    read = load(tmp_path / "model")
    for each in (model, read):
        each.learn_array(X[1_000:2_600], targets[1_000:2_600])
    assert read.n_candidates == 1
    assert read.state_digest() == model.state_digest()
    assert len(model.feature_names) == 3


def test_poison_amid_a_race_is_refused_and_changes_nothing():
    arguments = {"warmup": 300, "warmup_restarts": 1, "max_experts": 2, "range_factor": 0.0, "degree": 4}
    models = [MoERegressor("auto", **arguments) for _ in range(2)]
    for model in models:
        model.learn_array(X[:600], Y[:600])
        assert model.n_candidates == 2
    rows = X[600:620].copy()
    rows[10] = 3e37  # in range, and its fourth power predicts more than can be squared
    outcome = models[0].learn_rows(rows, Y[600:620, None])
    assert list(outcome.refused) == [10]
    clean = np.delete(np.arange(20), 10)
    models[1].learn_array(rows[clean], Y[600:620][clean])
    for model in models:
        assert model.n_candidates == 2
        model.learn_array(X[620:800], Y[620:800])
    assert models[0].state_digest() == models[1].state_digest()


def test_statistics_may_be_given_to_one_that_would_choose():
    parameters = MoERegressor(3, warmup=100, warmup_restarts=1)
    parameters.learn_array(X[:200], Y[:200])
    model = MoERegressor.from_parameters(parameters.parameters(), feature_names=NAMES, n_experts="auto")
    assert (model.chosen_n_experts, model.n_candidates) == (3, 1)


@pytest.mark.parametrize(
    ("arguments", "told"),
    [
        ({"n_experts": "many"}, "n_experts: got 'many'; it must be a whole number ≥ 1 or 'auto'"),
        ({"n_experts": 0}, "n_experts: got 0; it must be a whole number ≥ 1 or 'auto'"),
        ({"n_experts": "auto", "warmup": 0}, "n_experts: 'auto' needs a warm-up to judge candidates by"),
        ({"max_experts": 1}, "max_experts: got 1; it must be a whole number ≥ 2"),
        ({"reseed": "always"}, "reseed: 'always' is not known; choose one of 'off', 'auto'"),
    ],
)
def test_arguments_are_checked(arguments, told):
    with pytest.raises(ConfigError) as refused:
        MoERegressor(**arguments)
    assert told in str(refused.value)


DAMAGE = {
    "both": (lambda a: a.update({"state.n": np.array([5])}), "both a mixture and a race"),
    "one candidate": (lambda a: a.update({"race.totals": np.zeros(1)}), "race.totals holds 1 candidates"),
    "too many": (lambda a: a.update({"race.totals": np.zeros(10**6)}), "race.totals holds 1000000 candidates"),
    "one too many": (lambda a: a.update({"race.totals": np.zeros(4)}), "race.3.masses is missing"),
    "one too few": (lambda a: a.update({"race.totals": np.zeros(2)}), "diagnostics.residual is"),
    "endless total": (lambda a: a["race.totals"].fill(np.inf), "race.totals holds NaN or infinity"),
    "over already": (lambda a: a["race.counts"].__setitem__(0, 1_000), "ends a race at 1000 that goes on at 1000"),
    "about nobody": (lambda a: a["race.counts"].__setitem__(1, 1), "names expert 1, and candidates have"),
    "out of step": (lambda a: a["race.1.n"].__setitem__(0, 999), "different numbers of events"),
    "too wide": (lambda a: a.update({"race.0.masses": np.ones(4)}), "speaks of 4 experts; there may be 1 to 3"),
    "without experts": (lambda a: a.update({"race.0.masses": np.ones(0)}), "speaks of 0 experts"),
    "unknown": (lambda a: a.update({"race.7.n": np.zeros(1)}), "no such model"),
    "negative reseeds": (lambda a: a["diagnostics.reseeds"].fill(-1), "reseeds holds values outside of 0 to"),
}


@pytest.mark.parametrize("damage", DAMAGE)
def test_a_race_that_cannot_be_is_refused(chosen, damage):
    model = racing(chosen)
    arrays = {name: array.copy() for name, array in model.arrays().items()}
    change, told = DAMAGE[damage]
    change(arrays)
    with pytest.raises(CheckpointError, match=told):
        MoERegressor.from_checkpoint(arrays, model.describe()["model"])


@pytest.mark.parametrize("expert", ["a", None, 1.0, True, -1, 2])
def test_what_is_no_expert_is_refused_in_words(expert):
    model = MoERegressor(2, warmup=50, warmup_restarts=1)
    X = np.random.default_rng(0).normal(size=(60, 2))
    model.learn_array(X, X[:, 0])
    before = model.state_digest()
    with pytest.raises(ConfigError, match="no expert"):
        model.reseed_expert(expert)
    assert model.state_digest() == before


def test_settings_that_may_change_are_held_to_their_rules():
    model = MoERegressor(2, categorical=("c",))
    for change, value, said in (
        (model.set_reseed, "x", "reseed: 'x' is not known"),
        (model.set_range_factor, -1.0, "range_factor: got -1.0"),
        (model.set_range_factor, np.nan, "range_factor: got nan"),
        (model.set_max_levels, 0, "max_levels: got 0; it must be a whole number ≥ 1"),
    ):
        with pytest.raises(ConfigError, match=said) as refused:
            change(value)
        assert len(refused.value.problems) == 1
    assert (model.reseed, model.range_factor, model.max_levels) == ("off", 1e6, 64)
    model.set_max_levels(2)
    for level in "abc":
        model.learn_one({"c": level}, 1.0)
    assert (model.max_levels, model.n_expert_features) == (2, 1 + 2)
