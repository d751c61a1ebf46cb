"""What a model says of itself: explanations, coefficients, regions, and a picture."""

import json
import math
from datetime import datetime

import numpy as np
import pandas as pd
import pytest

from streammoe import ConfigError, MoEClassifier, MoERegressor, StudentT
from tests.invariants.configurations import CONFIGURATIONS, N, event

CASES = [pytest.param(configuration, id=f"{at}") for at, configuration in enumerate(CONFIGURATIONS)]


def parts(configuration, i):
    """The inputs of the i-th event, its target in the form of `learn_one`, and its weight."""
    given = event(configuration, i)
    weight, targets = given.pop("w"), {name: given.pop(name) for name in configuration.targets}
    return given, targets if len(targets) > 1 else next(iter(targets.values())), weight


def softmax(log_odds):
    odds = np.exp(np.array(log_odds) - max(log_odds))
    return odds / odds.sum()


def check_experts(member, outputs, is_classifier, tolerance):
    """Baselines and contributions add up to the predictions of experts, and these to that of their member."""
    for expert in member.experts:
        sums = [expert.baseline.get(o, 0.0) + sum(expert.contributions.get(o, {}).values()) for o in outputs]
        sums = softmax(sums) if is_classifier else sums
        assert sums == pytest.approx([expert.prediction[o] for o in outputs], rel=1e-9, abs=tolerance)
    together = [sum(expert.share * expert.prediction[o] for expert in member.experts) for o in outputs]
    assert together == pytest.approx([member.prediction[o] for o in outputs], rel=1e-9, abs=tolerance)


@pytest.mark.parametrize("configuration", CASES)
def test_members_experts_and_inputs_add_up_to_what_is_predicted(configuration):
    model, reached = configuration.new(), set()
    for i in range(N):
        x, y, weight = parts(configuration, i)
        if i % 9 == 4:
            seen = {**x, "a": 1e3} if i % 2 else x
            explained, before = model.explain_one(seen), model.state_digest()
            predicted = model.predict_proba_one(seen) if model.is_classifier else model.predict_one(seen)
            assert model.state_digest() == before
            outputs = list(predicted) if isinstance(predicted, dict) else ["y"]
            values = predicted if isinstance(predicted, dict) else {"y": predicted}
            own = explained.prediction if isinstance(predicted, dict) else {"y": explained.prediction}
            tolerance = 1e-9 * max([1.0, *map(abs, values.values())])
            assert own == pytest.approx(values, rel=1e-9, abs=tolerance)
            if explained.members:
                assert sum(member.share for member in explained.members) == pytest.approx(1.0)
            for member in explained.members:
                reached |= {member.member} if member.share > 1e-6 else set()
                check_experts(member, outputs, model.is_classifier, tolerance)
            for o in outputs if explained.members else ():
                whole = sum(member.share * member.prediction[o] for member in explained.members)
                assert whole + explained.holding.get(o, 0.0) == pytest.approx(values[o], abs=tolerance)
                if not model.is_classifier:
                    total = explained.baseline[o] + sum(explained.contributions[o].values()) + explained.holding[o]
                    assert total == pytest.approx(values[o], abs=tolerance)
            json.loads(explained.to_json())
        elif i % 18 < 9:  # the last targets count for the next prediction then
            model.predict_one(x)
        model.learn_one(x, y, weight)
    if model.options.warmup != 0:  # there are no bounds for long then
        held = model.explain_one({**x, "a": 1e3}).held
        assert [value for value, _ in held.values()] == [1e3] * model.options.hold
    assert not model.options.has_portfolio or len(reached) > 3


def features(model, x):
    """The columns of an event by their names, written out; a missing number is its column's mean."""
    scaler, columns = model.learner.encoder.scaler, model.learner.encoder.columns
    fills = dict(zip(columns.feature_names, scaler.fill.tolist(), strict=True))
    raw = model.learner.context.with_last(model.learner.encoder.row(x))[0].tolist()
    numbers, found = dict(zip(columns.fields, raw, strict=True)), {}
    for name in columns.feature_names:
        if name.startswith("Z="):
            found[name] = float("Z" in x and str(x["Z"]) == name[2:])
        elif name.startswith("t:"):
            at = datetime.fromisoformat(x["t"]).timestamp()
            period = {"day": 86_400.0, "week": 604_800.0, "year": 31_556_952.0}[name[2:-4]]
            angle = 2.0 * math.pi * (at + 259_200.0 * (period == 604_800.0)) / period
            found[name] = (math.sin if name.endswith("sin") else math.cos)(angle)
        else:
            found[name] = fills[name] if math.isnan(numbers[name]) else numbers[name]
    last = model.learner.context.last_targets(model.n)[0].tolist()
    outputs = model.output_names or ["y"]
    places = [(name, i) for name in outputs for i in (1, 2, 3)] if last else []
    for at, (name, i) in enumerate(places):
        of = 0 if model.is_classifier else outputs.index(name)
        value = last[at] * float(scaler.target_scale[of]) + float(scaler.target_center[of])
        found[f"y:lag{i}={name}" if model.is_classifier else f"{name}:lag{i}"] = value
    return found


def value_of(feature, columns):
    """The value of a product of powers, such as ``a^2 * b``."""
    if feature == "intercept":
        return 1.0
    powers = [factor.partition("^") for factor in feature.split(" * ")]
    return math.prod(columns[name] ** int(power or 1) for name, _, power in powers)


@pytest.mark.parametrize("configuration", CASES)
def test_coefficients_are_what_experts_predict_by(configuration):
    model = configuration.new()
    for i in range(N - 1):
        x, y, weight = parts(configuration, i)
        model.predict_one(x)
        model.learn_one(x, y, weight)
    x = {**parts(configuration, N - 1)[0], "a": 0.3}
    explained, columns = model.explain_one(x), features(model, x)
    table = pd.DataFrame(model.coefficients())
    assert not explained.held
    assert [*dict.fromkeys(table.member)] == list(model.member_shares)
    assert not table.feature.str.contains(r"Z=\d\^").any()  # the square of 0 or 1
    table["term"] = table.value * [value_of(feature, columns) for feature in table.feature]
    sums = table.groupby(["member", "expert", "output"], sort=False).term.sum()
    for member in explained.members:
        for expert in member.experts:
            outputs = list(expert.prediction)
            if model.is_classifier:
                log_odds = [0.0, *(sums[member.member, expert.expert, label] for label in outputs[1:])]
                assert softmax(log_odds) == pytest.approx(list(expert.prediction.values()), abs=1e-8)
            else:
                found = [sums[member.member, expert.expert, output] for output in outputs]
                assert found == pytest.approx(list(expert.prediction.values()), rel=1e-8, abs=1e-8)


def line(n, noise):
    rng = np.random.default_rng(3)
    X = rng.normal(size=(n, 2)) * [1.0, 40.0] + [0.0, 100.0]
    return X, 5.0 + X @ [0.5, -0.01] + (rng.normal(size=n) if noise == "gaussian" else rng.standard_t(4.0, n))


@pytest.mark.parametrize(("expert", "factor"), [("gaussian", 1.0), (StudentT(4.0), 7.0 / 5.0)])
def test_standard_errors_are_those_of_least_squares(expert, factor):
    """Of the member whose events all count alike; for Student-t noise with its Fisher information (ν + 1)/(ν + 3)."""
    X, y = line(1_000, "gaussian" if factor == 1.0 else "student_t")
    model = MoERegressor(1, expert=expert)
    model.learn_array(X, y)
    design = np.column_stack([np.ones(len(X)), X])
    expected = np.sqrt(factor * np.diag(np.linalg.inv(design.T @ design)))
    found = [each for each in model.coefficients() if each.member == "steady"]
    assert [each.feature for each in found] == ["intercept", "x0", "x1"]
    assert [each.standard_error for each in found] == pytest.approx(expected, rel=0.06)
    assert [each.value for each in found] == pytest.approx([5.0, 0.5, -0.01], abs=4.0 * expected.max())
    assert [each.effect for each in found[1:]] == pytest.approx([0.5, -0.4], rel=0.25)


def test_standard_errors_follow_what_each_member_remembers():
    """The slopes of many streams scatter as much as they say."""
    scores = {name: [] for name in ("quick", "recent", "average", "fitted", "latest")}
    for seed in range(12):
        rng = np.random.default_rng(seed)
        X = rng.normal(size=(600, 4))
        model = MoERegressor(1, curved="off")
        model.learn_array(X, X @ [1.0, 2.0, 3.0, 4.0] + rng.normal(size=600))
        for each in model.coefficients():
            if each.member in scores and each.feature != "intercept":
                scores[each.member].append((each.value - 1.0 - float(each.feature[1:])) / each.standard_error)
    spreads = {name: float(np.sqrt(np.mean(np.square(found)))) for name, found in scores.items()}
    assert all(0.6 < spread < 1.35 for spread in spreads.values()), spreads


def test_where_statistics_tell_no_error_there_is_none():
    X, y = line(200, "gaussian")
    for model, target in ((MoERegressor(1, expert="laplace"), y), (MoEClassifier(1), y > 0.0)):
        model.learn_array(X, target)
        assert all(math.isnan(each.standard_error) for each in model.coefficients())


def learned_in_regions(rule, reservoir=0):
    rng, model = np.random.default_rng(4), MoERegressor(2, reservoir=reservoir)
    for _ in range(1_500):
        x = {"a": rng.normal() * 10.0, "b": rng.normal(), "c": str(rng.choice(["red", "blue", "green"]))}
        model.learn_one(x, (5.0 * x["b"] if rule(x) else 20.0 - x["a"]) + 0.1 * rng.normal())
    return model


@pytest.mark.parametrize("reservoir", [0, 500])
def test_a_rule_says_where_the_gate_prefers_an_expert(reservoir):
    model = learned_in_regions(lambda x: x["c"] == "red", reservoir)
    assert {region.rule for region in model.regions()} == {"c = red", "c ≠ red"}
    assert all(region.precision == region.coverage == 1.0 for region in model.regions())
    assert sum(region.share for region in model.regions()) == pytest.approx(1.0)


def test_a_rule_has_as_many_conditions_as_separate_and_says_how_well():
    model = learned_in_regions(lambda x: x["a"] > 5.0)
    rows = model.learner.context.recent.rows(3)[0]
    for region in model.regions():
        subject, relation, value = region.rule.split(" ")
        assert subject == "a"
        assert abs(float(value) - 5.0) < 1.0
        holds = rows[:, 0] > float(value) if relation == ">" else rows[:, 0] <= float(value)
        events = [dict(zip(model.fields, row, strict=True)) for row in rows.tolist()]
        levels = {i: name.partition("=")[2] for i, name in enumerate(model.feature_names[2:])}
        first = [model.gate_one({**x, "c": levels[int(x["c"])]}).argmax() == region.expert for x in events]
        assert region.precision == pytest.approx(np.mean(np.array(first)[holds]), abs=0.05)
        assert f"{region.precision:.0%} of these rows" in region.text


def test_one_expert_is_everywhere_and_without_rows_nothing_is_said():
    X, y = line(300, "gaussian")
    model = MoERegressor(1)
    assert (model.regions(), model.coefficients(), model.explain_one({"a": 1.0}).members) == ([], [], ())
    model.learn_array(X, y)
    assert [region.text for region in model.regions()] == ["everywhere"]
    model.learner.context.recent.keep_last(0)
    assert "reservoir" in model.regions()[0].text


def test_a_picture_shows_shares_coefficients_and_lines():
    model = MoERegressor(1, curved="off", lags="off")
    X, y = line(500, "gaussian")
    model.learn_array(X, y)
    shares, effects, *lines = model.plot().axes
    drawn = dict(zip([text.get_text() for text in shares.get_yticklabels()], shares.patches, strict=True))
    assert {name: bar.get_width() for name, bar in drawn.items()} == pytest.approx(
        {name: share for name, share in model.member_shares.items() if share >= 1e-3}
    )
    assert [text.get_text() for text in effects.get_yticklabels()] == ["x0", "x1"]
    assert effects.lines[0].get_xdata() == pytest.approx([0.5, -0.4], rel=0.25)
    bars, *_ = effects.collections  # of the largest share
    own = [each for each in model.coefficients() if each.member == max(drawn, key=lambda name: drawn[name].get_width())]
    for (start, end), each in zip(bars.get_segments(), own[1:], strict=True):
        assert end[0] - start[0] == pytest.approx(4.0 * each.standard_error * each.effect / each.value)
    for axes, name, slope in zip(lines, ["x0", "x1"], [0.5, -0.01], strict=True):
        (x0, *_, x1), (y0, *_, y1) = axes.lines[0].get_data()
        assert (axes.get_xlabel(), axes.get_ylabel()) == (name, "y")
        assert (y1 - y0) / (x1 - x0) == pytest.approx(slope, rel=0.25)


@pytest.mark.parametrize("configuration", CASES[::3])
def test_any_model_can_be_drawn(configuration, tmp_path):
    model = configuration.new()
    for i in range(80):
        model.learn_one(*parts(configuration, i))
    model.plot().savefig(tmp_path / "model.svg")
    assert "share in what is predicted" in (tmp_path / "model.svg").read_text()


def test_what_cannot_be_drawn_says_why(monkeypatch):
    with pytest.raises(ConfigError, match="learn some events first"):
        MoERegressor().plot()
    monkeypatch.setitem(__import__("sys").modules, "matplotlib.figure", None)
    with pytest.raises(ConfigError, match="matplotlib"):
        MoERegressor().plot()
