"""Runs without a configuration: the same events for all, scores that a plain loop gives too, reports that hold them."""

import json
import math
import sys
from pathlib import Path

import numpy as np
import pytest
from click.testing import CliRunner
from river import dummy, linear_model, multiclass, preprocessing, tree

from streammoe import MoERegressor
from streammoe.assembly import open_daemon
from streammoe.commands import main
from streammoe.commands.evaluate import peers
from streammoe.commands.evaluate.prequential import LearnerScores, evaluate, table, to_json
from streammoe.configuration import settings_from
from streammoe.daemon.signals import StopFlag
from streammoe.distributions import Mixture
from streammoe.engine.intervals import mixture_intervals
from streammoe.errors import ConfigError

N = 400


@pytest.fixture(autouse=True)
def here(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)


def make_rows():
    """Two regimes, a category that says a little, holes; and labels of the same."""
    rng = np.random.default_rng(5)
    found = []
    for i in range(N):
        a, b, c = rng.normal(), rng.normal(), "rgb"[rng.integers(3)]
        y = (2 * a if a > 0 else b - 1) + (c == "r") + 0.1 * rng.normal()
        found.append({"a": a, "b": b if i % 9 or not i else None, "c": c, "y": y, "z": "hi" if y > 0.5 else "lo"})
    return found


def write(path, rows, extra=()):
    lines = [json.dumps({name: value for name, value in row.items() if value is not None}) for row in rows]
    for at, line in extra:
        lines.insert(at, line)
    Path(path).write_text("\n".join(lines) + "\n")


def settings(file="d.jsonl", target=("y",), classify=False, ignore=None, overrides=()):
    schema = {"ignore": ignore or ["z" if target[0] == "y" else "y"], "categorical": ["c"], "target": list(target)}
    tables = {"source": {"kind": "file", "path": file}, "schema": schema, "model": {"n_experts": 2}}
    tables["model"] |= {"kind": "classifier" if classify else "regressor", "warmup": 200}
    return settings_from(tables, "the test", overrides=overrides)


def run(*against, **more):
    return evaluate(settings(**more), against, source_name="d.jsonl")


# --- scores ---------------------------------------------------------------------------------------------------------


def plain_loop(rows, model, target, text=False):
    """Score of each event that is learned, which a loop over River's model gives."""
    scaler, found = preprocessing.StandardScaler(), []
    for row in rows:
        if not row.get("w", 1.0) or row[target] is None:
            continue
        x = {name: row[name] for name in "ab" if row[name] is not None}
        more = {"c": row["c"]} if text else {f"c={row['c']}": 1.0}
        predicted = model.predict_one(scaler.transform_one(x) | more)
        found.append(predicted == row[target] if target == "z" else (predicted - row[target]) ** 2)
        scaler.learn_one(x)
        weight = {"w": row["w"]} if "w" in row else {}
        model.learn_one(scaler.transform_one(x) | more, row[target], **weight)
    return found


@pytest.mark.slow
@pytest.mark.parametrize(
    ("name", "model", "target", "options"),
    [
        ("LinearRegression", linear_model.LinearRegression(), "y", {"overrides": ["schema.weight=w"]}),
        ("tree.HoeffdingTreeClassifier", tree.HoeffdingTreeClassifier(), "z", {}),
        ("LogisticRegression", multiclass.OneVsRestClassifier(linear_model.LogisticRegression()), "z", {}),
    ],
)
def test_our_model_is_that_of_the_daemon_and_rivers_get_what_a_plain_loop_gets(name, model, target, options, tmp_path):
    rows, classify = make_rows(), target == "z"
    for i, row in enumerate(rows if options else ()):
        row.update(w=float(i % 3), y=row["y"] if i % 10 != 7 else None)
    write("d.jsonl", rows, [(30, "what?"), (90, '{"a": "x", "y": 1, "z": "hi"}')])
    options = {**options, "target": (target,), "classify": classify}
    found = run(f"river:{name}", **options)
    assert [path.name for path in tmp_path.iterdir()] == ["d.jsonl"], "an evaluation writes nothing"
    overrides = [*options.pop("overrides", ()), "checkpoint.dir=s", "metrics.enabled=false"]
    given = settings(**options, overrides=overrides)
    with open_daemon(given) as running, StopFlag() as stop:
        summary = running.daemon.run(stop)
    ours, river, baseline = found.rows
    assert found.model.state_digest() == summary.state_digest
    assert found.metric == ("accuracy" if classify else "RMSE")
    assert ours.score == pytest.approx(summary.scores[found.metric.lower()], rel=1e-12)
    assert ours.log_loss == pytest.approx(summary.scores["log_loss"], rel=1e-12)
    scores = plain_loop(rows, model, target, text="tree" in name)
    of = np.mean if classify else lambda values: math.sqrt(np.mean(values))
    assert river.score == pytest.approx(of(scores))
    assert (river.log_loss, river.events_per_second > 0) == (None, True)
    assert found.outcomes["learned"] == summary.learned == len(scores)
    assert found.outcomes["predicted_only"] == N - len(scores)
    if classify:
        assert river.last_quarter == pytest.approx(of(scores[N * 3 // 4 :]))
        assert baseline.score == pytest.approx(of(plain_loop(rows, dummy.PriorClassifier(), target)))


def test_several_targets_have_a_learner_each_that_sees_columns_that_come_late():
    rows = make_rows()
    for i, row in enumerate(rows):
        row.update({"y2": -row["y"]} | ({"late": row["y"]} if i >= 150 else {}))
    write("d.jsonl", rows)
    late = ["schema.late_columns=true"]
    found = run("river:LinearRegression", target=("y", "y2"), ignore=["z"], overrides=late)
    assert len(found.rows) == 3
    # The second output is the first one's mirror image, and so are its predictions.
    single = run("river:LinearRegression", ignore=["z", "y2"], overrides=late)
    assert found.rows[1].score == pytest.approx(single.rows[1].score)
    without = run("river:LinearRegression", ignore=["z", "y2", "late"])
    assert found.rows[1].last_quarter < 0.5 * without.rows[1].last_quarter


def test_what_is_no_learner_of_river_is_rejected_and_nothing_is_imported():
    before = set(sys.modules)
    wrong = ["os.system", "tree.LinearRegression", "LogisticRegression", "preprocessing.StandardScaler", ""]
    for name in [*(f"river:{name}" for name in wrong), "sklearn:LinearRegression", "antigravity"]:
        with pytest.raises(ConfigError):
            peers.make_peer(name, classify=False, outputs=1)
    assert not (set(sys.modules) - before) & {"antigravity", "this"}


# --- reports --------------------------------------------------------------------------------------------------------


def test_intervals_and_distributions_are_scored_before_each_event_is_learned():
    rng, levels = np.random.default_rng(0), np.arange(0.0025, 1.0, 0.005)
    rows = [{"a": a, "y": 2.0 * a + noise} for a, noise in rng.normal(size=(200, 2)).tolist()]
    write("d.jsonl", rows)
    found, model = run(), MoERegressor(2, warmup=200)
    model.set_columns(["a"])
    X, Y = (np.array([[row[name]] for row in rows]) for name in "ay")
    trace = model.learn_rows(X, Y, traced=True).trace
    low, high = mixture_intervals(*trace, 0.8, model.noise)[:, 0].T
    scores = []
    for y, shares, means, variances, ranks, _ in zip(Y[:, 0], *trace, strict=True):
        q = Mixture(shares, means[:, 0], variances[:, 0], model.noise, ranks[0]).quantile(levels)
        scores.append(2.0 * np.mean(((y < q) - levels) * (q - y)))
    as_json = json.loads(to_json(found))
    [own] = [each for each in as_json["intervals"] if each["level"] == 0.8]
    assert own == {
        "output": "y",
        "level": 0.8,
        "coverage": np.mean((low <= Y[:, 0]) & (Y[:, 0] <= high)),
        "width": pytest.approx(np.mean(high - low)),
    }
    assert as_json["crps"] == pytest.approx(np.mean(scores), rel=2e-3)
    assert f"80% {own['coverage']:.1%}" in table(found)


@pytest.mark.slow
def test_table_and_json_show_every_learner_and_what_was_rejected():
    name = "d<b>.jsonl"
    write(name, make_rows(), [(5, "what?"), (7, "so?"), (9, '{"a": "\\u001b[31m"}')])
    found = evaluate(settings(file=name), ["river:LinearRegression"], source_name=name)
    found.rows.insert(1, LearnerScores("river X", math.nan, math.nan, None, math.nan, "ValueError after 3 events: <b>"))
    names = ["streammoe, 2 experts", "river X", "river LinearRegression", "running mean"]

    text = table(found)
    for row in found.rows:
        (line,) = [line for line in text.splitlines() if line.startswith(row.name + " ")]
        assert "failed: ValueError after 3 events" in line or f"{row.score:.4g}" in line or f"{row.score:.4f}" in line
    assert ("malformed" in text, "\x1b" in text) == (True, False)

    as_json = json.loads(to_json(found))
    assert [row["name"] for row in as_json["rows"]] == names
    assert [row["score"] for row in as_json["rows"][:2]] == [found.rows[0].score, None]
    assert {entry["reason"]: entry["records"] for entry in as_json["refused"]} == {"malformed": 2, "wrong_type": 1}
    assert (as_json["state_digest"], as_json["n_experts"]) == (found.model.state_digest(), 2)


# --- several groups of settings -------------------------------------------------------------------------------------


@pytest.mark.slow
@pytest.mark.usefixtures("logging_as_before")
def test_groups_are_scored_as_each_alone_and_sorted_by_their_loss():
    write("d.jsonl", make_rows())
    base = ["model.warmup=200", "schema.ignore=['z']", "schema.categorical=['c']"]
    asked = ["--grid", "model.n_experts=1,3", "--vs", "model.n_experts=2 model.schedule={kind='constant', gamma=0.1}"]
    words = ["evaluate", "d.jsonl", "--target", "y", *[word for flag in base for word in ("--set", flag)], *asked]
    shown, found = (CliRunner().invoke(main, [*words, "--jobs", "2", *more]) for more in ([], ["--json"]))
    assert (shown.exit_code, found.exit_code) == (0, 0), shown.output + found.output
    groups = [["model.n_experts=1"], ["model.n_experts=3"]]
    groups += [["model.n_experts=2", "model.schedule={kind='constant', gamma=0.1}"]]
    alone = {" ".join(group): run(overrides=[*base, *group]) for group in groups}
    losses = {name: each.rows[0].log_loss for name, each in alone.items()}
    order = sorted(losses, key=losses.get)
    runs = json.loads(found.stdout)["runs"]
    assert [" ".join(each["given"]) for each in runs] == order
    assert [each["state_digest"] for each in runs] == [alone[name].model.state_digest() for name in order]
    assert [each["rows"][0]["log_loss"] for each in runs] == [losses[name] for name in order]
    rows = [line for line in shown.stdout.splitlines() if line.startswith(("model.", "running mean"))]
    assert [row.partition("  ")[0] for row in rows] == [*order, "running mean"]
    assert all(f" {losses[name] - losses[order[0]]:.4g}"[:6] in row for name, row in zip(order, rows, strict=False))


@pytest.mark.usefixtures("logging_as_before")
@pytest.mark.parametrize(
    "words",
    [
        ["d.jsonl", "--vs", "model.kind=classifier"],
        ["d.jsonl", "--grid", "model.n_experts"],
        ["d.jsonl", "--grid", "model.n_experts=1", "--against", "river:LinearRegression"],
        ["-", "--format", "csv", "--vs", "model.n_experts=2"],
    ],
)
def test_groups_that_cannot_be_compared_are_rejected(words):
    write("d.jsonl", make_rows())
    assert CliRunner().invoke(main, ["evaluate", *words, "--target", "y"]).exit_code == 2
