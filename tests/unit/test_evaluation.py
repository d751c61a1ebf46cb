"""Runs without a configuration: the same events for all, scores that a plain loop gives too, reports that hold them."""

import json
import math
import re
import sys
from pathlib import Path

import numpy as np
import pytest
from river import dummy, linear_model, multiclass, preprocessing, stats, tree

from streammoe.assembly import open_daemon
from streammoe.commands.evaluate import peers, report
from streammoe.commands.evaluate.curve import BINS, Curve
from streammoe.commands.evaluate.options import check_overrides, schedule_table, tables_from
from streammoe.commands.evaluate.outputs import PICTURES
from streammoe.commands.evaluate.run import Row, evaluate
from streammoe.configuration import settings_from
from streammoe.daemon.signals import StopFlag
from streammoe.errors import ConfigError, SourceError

N = 900


@pytest.fixture(autouse=True)
def here(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)


@pytest.fixture
def rows():
    """Two regimes, a category that says a little, holes; and labels of the same."""
    rng = np.random.default_rng(5)
    found = []
    for i in range(N):
        a, b, c = rng.normal(), rng.normal(), "rgb"[rng.integers(3)]
        y = (2 * a if a > 0 else b - 1) + (c == "r") + 0.1 * rng.normal()
        found.append({"a": a, "b": b if i % 9 or not i else None, "c": c, "y": y, "z": "hi" if y > 0.5 else "lo"})
    return found


def write(path, rows, extra=()):
    with Path(path).open("w") as stream:
        for at, row in enumerate(rows):
            stream.writelines(line + "\n" for line in [line for place, line in extra if place == at])
            stream.write(json.dumps({name: value for name, value in row.items() if value is not None}) + "\n")


def settings(file="d.jsonl", target=("y",), classify=False, overrides=(), **given):
    given = {"ignore": "z" if target[0] == "y" else "y", "categorical": "c", "n_experts": 2, "warmup": 200} | given
    tables = tables_from(file, target, classify=classify, format=None, schedule=None, given=given)
    return settings_from(tables, "the test", overrides=overrides)


def run(*against, **more):
    return evaluate(settings(**more), against, source_name="d.jsonl")


# --- our own --------------------------------------------------------------------------------------------------------


def test_our_model_is_the_one_that_the_daemon_learns(rows, tmp_path):
    write("d.jsonl", rows, [(30, "what?"), (500, '{"a": "x"}')])
    before = sorted(tmp_path.rglob("*"))
    found = run("river:LinearRegression")
    assert sorted(tmp_path.rglob("*")) == before, "an evaluation writes nothing"
    with open_daemon(settings(overrides=["checkpoint.dir=s", "metrics.enabled=false"])) as running, StopFlag() as stop:
        summary = running.daemon.run(stop)
    assert found.model.state_digest() == summary.state_digest
    assert found.rows[0].score == pytest.approx(summary.scores["rmse"], rel=1e-12)
    assert found.rows[0].log_loss == pytest.approx(summary.scores["log_loss"], rel=1e-12)
    assert found.rows[-1].score == pytest.approx(summary.scores["baseline_rmse"], rel=1e-12)
    assert found.outcomes["learned"] == summary.learned == N


def test_a_classifier_too(rows):
    write("d.jsonl", rows)
    found = run(target=("z",), classify=True)
    with (
        open_daemon(
            settings(target=("z",), classify=True, overrides=["checkpoint.dir=s", "metrics.enabled=false"])
        ) as running,
        StopFlag() as stop,
    ):
        summary = running.daemon.run(stop)
    assert found.model.state_digest() == summary.state_digest
    assert found.rows[0].score == pytest.approx(summary.scores["accuracy"])
    assert found.rows[0].log_loss == pytest.approx(summary.scores["log_loss"])
    assert found.metric == "accuracy"


def test_following_the_shares_changes_nothing_but_shows_them(rows):
    write("d.jsonl", rows)
    plain, traced = run(), evaluate(settings(), source_name="d.jsonl", shares=True)
    assert traced.model.state_digest() == plain.model.state_digest()
    assert plain.shares is None
    assert traced.warm_up == 200
    assert traced.shares.mean().sum() == pytest.approx(1.0)
    _, means = traced.shares.windows(traced.warm_up)
    assert (means > 0).all()
    assert means.sum(axis=1) == pytest.approx(1.0)


# --- the peers ------------------------------------------------------------------------------------------------------


def one_hot(row):
    x = {name: row[name] for name in "ab" if row[name] is not None}
    return x, {f"c={row['c']}": 1.0}


def test_a_regressor_of_river_gets_what_a_plain_loop_gets(rows):
    write("d.jsonl", rows, [(30, "what?"), (500, '{"a": "x", "y": 1}')])
    found = run("river:LinearRegression")
    scaler, model, errors = preprocessing.StandardScaler(), linear_model.LinearRegression(), []
    for row in rows:
        x, more = one_hot(row)
        errors.append((model.predict_one(scaler.transform_one(x) | more) - row["y"]) ** 2)
        scaler.learn_one(x)
        model.learn_one(scaler.transform_one(x) | more, row["y"])
    _, river, mean = found.rows
    assert river.name == "river LinearRegression"
    assert river.score == pytest.approx(math.sqrt(np.mean(errors)))
    assert river.last_quarter == pytest.approx(math.sqrt(np.mean(errors[N * 3 // 4 :])))
    assert river.log_loss is None
    assert river.events_per_second > 0
    baseline, errors = dummy.StatisticRegressor(stats.Mean()), []
    for row in rows:
        errors.append((baseline.predict_one({}) - row["y"]) ** 2)
        baseline.learn_one({}, row["y"])
    assert mean.score == pytest.approx(math.sqrt(np.mean(errors)))


@pytest.mark.parametrize(
    ("name", "make", "text"),
    [
        ("river:tree.HoeffdingTreeClassifier", tree.HoeffdingTreeClassifier, True),
        (
            "river:LogisticRegression",
            lambda: multiclass.OneVsRestClassifier(linear_model.LogisticRegression()),
            False,
        ),
    ],
)
def test_classifiers_get_labels_and_texts_as_they_can_take_them(rows, name, make, text):
    write("d.jsonl", rows)
    found = run(name, target=("z",), classify=True)
    scaler, model, hits = preprocessing.StandardScaler(), make(), []
    for row in rows:
        x, more = one_hot(row)
        more = {"c": row["c"]} if text else more
        hits.append(model.predict_one(scaler.transform_one(x) | more) == row["z"])
        scaler.learn_one(x)
        model.learn_one(scaler.transform_one(x) | more, row["z"])
    assert found.rows[1].score == pytest.approx(np.mean(hits))


TEXTS = sorted(peers.TAKE_TEXT)


@pytest.mark.parametrize(
    "name", [TEXTS[0], TEXTS[-1], *(pytest.param(name, marks=pytest.mark.exhaustive) for name in TEXTS[1:-1])]
)
def test_those_that_are_given_texts_can_take_them(rows, name):
    write("d.jsonl", rows)
    classify = name.endswith("Classifier")
    found = run(f"river:{name}", target=("z",) if classify else ("y",), classify=classify)
    assert found.rows[1].failure is None
    assert math.isfinite(found.rows[1].score)


def test_every_learner_that_is_offered_can_be_made():
    for classify in (False, True):
        known = peers.learners(classify=classify)
        assert len(known) >= 14
        for name in known:
            assert peers.peer(f"river:{name}", classify=classify, outputs=1, seed=3).name == f"river {name}"


def test_what_is_no_learner_of_river_is_refused_and_nothing_is_imported():
    before = set(sys.modules)
    wrong = ["os.system", "LinearRegresion", "tree.LinearRegression", "LogisticRegression", "compat.SKL2RiverRegressor"]
    wrong += ["preprocessing.StandardScaler", ""]
    for name in [*(f"river:{name}" for name in wrong), "sklearn:LinearRegression", "antigravity"]:
        with pytest.raises(ConfigError):
            peers.peer(name, classify=False, outputs=1, seed=0)
    assert not (set(sys.modules) - before) & {"antigravity", "this"}


def test_a_peer_that_fails_ends_alone(rows, caplog):
    write("d.jsonl", rows)

    class Failing(linear_model.LinearRegression):
        def learn_one(self, x, y, w=1.0):
            raise ZeroDivisionError("no")

    failing = peers.Peer("failing", Failing, classify=False)
    failing.run([peers.Event({"a": 1.0}, {}, (2.0,), 1.0)] * 3)
    failing.run([peers.Event({"a": 1.0}, {}, (2.0,), 1.0)] * 3)
    assert failing.failure == "ZeroDivisionError after 0 events: no"
    assert failing.curve.count == 0
    assert "failing gave up" in caplog.text


def test_peers_learn_what_has_a_target_and_a_weight(rows):
    for i, row in enumerate(rows):
        row["w"] = float(i % 3)
        if i % 10 == 7:
            row["y"] = None
    write("d.jsonl", rows)
    found = run("river:LinearRegression", weight="w")
    scaler, model, errors = preprocessing.StandardScaler(), linear_model.LinearRegression(), []
    for row in rows:
        if row["w"] and row["y"] is not None:
            x, more = one_hot(row)
            errors.append((model.predict_one(scaler.transform_one(x) | more) - row["y"]) ** 2)
            scaler.learn_one(x)
            model.learn_one(scaler.transform_one(x) | more, row["y"], w=row["w"])
    assert found.outcomes["learned"] == len(errors)
    assert found.outcomes["predicted_only"] == N - len(errors)
    assert found.rows[1].score == pytest.approx(math.sqrt(np.mean(errors)))


def test_several_targets_have_a_learner_each_that_sees_columns_that_come_late(rows):
    for i, row in enumerate(rows):
        row["y2"] = -row["y"]
        if i >= 300:
            row["late"] = row["y"]
    write("d.jsonl", rows)
    found = run("river:LinearRegression", target=("y", "y2"), ignore="z", overrides=["schema.late_columns=true"])
    assert len(found.rows) == 3
    assert found.target == "y, y2"
    without = run("river:LinearRegression", ignore="z,y2,late")
    # The second output is the first one's mirror image, and so are its predictions.
    single = run("river:LinearRegression", ignore="z,y2", overrides=["schema.late_columns=true"])
    assert found.rows[1].score == pytest.approx(single.rows[1].score)
    assert found.rows[1].last_quarter < 0.5 * without.rows[1].last_quarter


# --- refusals and ends ----------------------------------------------------------------------------------------------


def test_refused_records_are_counted_and_told(rows):
    write("d.jsonl", rows, [(5, "what?"), (7, "so?"), (9, '{"a": "\x1b[31m"}'.replace("\x1b", "\\u001b"))])
    found = run()
    assert found.reasons == {"malformed": 2, "wrong_type": 1}
    text = report.table(found)
    assert "malformed" in text
    assert "wrong_type" in text
    assert "\x1b" not in text
    assert [entry["reason"] for entry in json.loads(report.to_json(found))["refused"]] == ["malformed", "wrong_type"]


NOTHING = {
    "": "no records",
    "what?\n": "1 malformed",
    '{"a": 1}\n': "holds 'a'",
    'what?\n{"a": 1, "y": null}\n{"a": 1}\n': "'y'",
    'what?\n{"a": ""}\n{"a": 1, "y": null}\n': "1 malformed, 1 wrong_type",
    '{"a": 1, "y": 1, "w": 0}\n': "'w'",
}
"""Files of which nothing is learned, and what their error names."""


def test_a_file_of_which_nothing_is_learned_is_an_error_that_names_why():
    for content, named in NOTHING.items():
        Path("d.jsonl").write_text(content)
        with pytest.raises(SourceError) as refused:
            run(weight="w")
        assert named in str(refused.value)


def test_a_column_that_is_empty_everywhere_is_not_called_missing():
    Path("d.csv").write_text("a,y\n1,\n2,\n")
    with pytest.raises(SourceError) as refused:
        run(file="d.csv")
    assert "empty" in str(refused.value)


def test_a_number_of_experts_that_is_yet_to_be_chosen_is_not_called_one(rows):
    write("d.jsonl", rows)
    waiting = run(n_experts="auto", warmup=5000)
    assert json.loads(report.to_json(waiting))["n_experts"] is None
    racing = run(n_experts="auto", warmup=200, overrides=["model.max_experts=2", "model.warmup_restarts=1"])
    K = racing.model.chosen_n_experts
    assert re.search(rf"^streammoe, {K} experts? ", report.table(racing), re.MULTILINE)
    assert json.loads(report.to_json(racing))["n_experts"] == K


def test_a_run_that_is_stopped_has_results_so_far(rows):
    write("d.jsonl", rows * 20)
    stop = StopFlag()

    def after_the_first(progress):
        stop.requested = True

    found = evaluate(
        settings(overrides=["source.block_bytes=65536"]), source_name="d.jsonl", on_batch=after_the_first, stop=stop
    )
    assert found.stopped
    assert 0 < found.outcomes["learned"] < 20 * N
    assert "stopped before the end" in report.table(found)


# --- options --------------------------------------------------------------------------------------------------------


def test_a_schedule_in_words():
    assert schedule_table("constant:0.05") == {"kind": "constant", "gamma": 0.05}
    assert schedule_table("power:0.6:2:10") == {"kind": "power", "alpha": 0.6, "gamma0": 2.0, "offset": 10.0}
    assert schedule_table("power") == {"kind": "power"}
    for wrong in ("", "linear:1", "constant:x", "constant:1:2", "power:0.6:1:1:1"):
        with pytest.raises(ConfigError):
            schedule_table(wrong)


def test_options_become_tables():
    given = {"ignore": 'a, "b,c" ,d', "features": None}
    tables = tables_from("x.csv", ["y"], classify=False, format=None, schedule=None, given=given)
    assert tables["schema"] == {"target": ["y"], "ignore": ["a", "b,c", "d"]}
    tables = tables_from("-", ["y"], classify=False, format="csv", schedule=None, given={})
    assert tables["source"] == {"kind": "stdin", "format": "csv"}
    with pytest.raises(ConfigError):  # whose format nobody can see
        tables_from("-", ["y"], classify=False, format=None, schedule=None, given={})


def test_settings_that_mean_nothing_here_are_refused():
    check_overrides(["model.seed=3", "schema.late_columns=true", "source.block_bytes=5000"])
    with pytest.raises(ConfigError) as told:
        check_overrides(["checkpoint.dir=x", "model.seed=1", "metrics.port=1"])
    assert len(told.value.problems) == 2


# --- curves ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("n", "at_once"), [(1, 777), (BINS, 1_000_000), (BINS + 1, 777), (3 * BINS + 7, 777), (40_001, 1_000_000)]
)
def test_a_curve_is_the_means_of_what_it_was_given(n, at_once):
    values = np.random.default_rng(n).random((n, 2))
    curve = Curve(2)
    for start in range(0, n, at_once):
        curve.add(values[start : start + at_once])
    assert curve.count == n
    assert curve.mean() == pytest.approx(values.mean(axis=0))
    first = int(0.75 * n) // curve.per_bin * curve.per_bin
    assert curve.mean(0.25) == pytest.approx(values[first:].mean(axis=0))
    assert int(0.75 * n) - first <= n / (BINS / 2)
    ends, means = curve.windows(points=10)
    assert len(ends) <= 10
    assert ends[-1] == n
    for start, end, mean in zip([0, *ends[:-1]], ends, means, strict=True):
        assert mean == pytest.approx(values[int(start) : int(end)].mean(axis=0))


def test_a_curve_of_nothing():
    assert np.isnan(Curve().mean()).all()
    assert len(Curve().windows()[0]) == 0


# --- reports --------------------------------------------------------------------------------------------------------


def test_the_table_shows_every_learner_and_the_json_all_of_it(rows):
    write("d.jsonl", rows)
    found = run("river:LinearRegression")
    text = report.table(found)
    for row in found.rows:
        (line,) = [line for line in text.splitlines() if line.startswith(row.name + " ")]
        assert f"{row.score:.4g}" in line or f"{row.score:.4f}" in line
    told = json.loads(report.to_json(found))
    assert [row["name"] for row in told["rows"]] == ["streammoe, 2 experts", "river LinearRegression", "running mean"]
    assert told["rows"][0]["score"] == found.rows[0].score
    assert told["state_digest"] == found.model.state_digest()
    assert told["settings"]["model"]["warmup"] == 200


def test_a_peer_that_gave_up_has_a_line_that_says_so(rows):
    write("d.jsonl", rows)
    found = run()
    found.rows.insert(1, Row("river X", math.nan, math.nan, None, math.nan, "ValueError after 3 events: <b>"))
    assert "gave up: ValueError after 3 events" in report.table(found)
    assert json.loads(report.to_json(found))["rows"][1]["score"] is None
    report.write_page(found, Path("o.html"))
    assert "&lt;b&gt;" in Path("o.html").read_text()


def test_the_picture_is_one_of_its_kind(rows, tmp_path):
    write("d.jsonl", rows)
    beginnings = {".png": b"\x89PNG", ".svg": b"<svg", ".pdf": b"%PDF"}
    assert set(beginnings) == set(PICTURES)
    for suffix, beginning in beginnings.items():
        classify = suffix == ".svg"
        of_kind = settings(target=("z",) if classify else ("y",), classify=classify)
        report.write_plot(evaluate(of_kind, source_name="d.jsonl", shares=True), tmp_path / f"o{suffix}")
        assert beginning in (tmp_path / f"o{suffix}").read_bytes()[:1000]


def test_the_picture_has_titles_units_and_every_learner(rows):
    write("d.jsonl", rows)
    found = evaluate(settings(), ["river:LinearRegression"], source_name="d.jsonl", shares=True)
    scores, shares = report.figure(found).axes
    assert "RMSE of predictions of y" in scores.get_title()
    assert scores.get_ylabel() == "RMSE (in units of y)"
    assert [text.get_text() for text in scores.get_legend().get_texts()] == [*found.curves]
    assert shares.get_ylabel() == "share of each expert (%)"
    assert shares.get_xlabel() == "events learned"
    for line, curve in zip(scores.get_lines(), found.curves.values(), strict=True):
        assert np.mean(line.get_ydata() ** 2) == pytest.approx(curve.mean()[0], rel=0.05)


@pytest.mark.parametrize("given", [{"n_experts": 1}, {"n_experts": 13, "warmup": 5000}])
def test_pictures_without_shares_and_with_many(rows, given):
    write("d.jsonl", rows)
    found = evaluate(settings(**given), source_name="d.jsonl", shares=True)
    axes = report.figure(found).axes
    assert len(axes) == (1 if given.get("n_experts") == 1 else 2)
    assert found.model.is_warming_up == ("warmup" in given)


def test_the_page_holds_everything_and_loads_nothing(rows):
    os_name = "d<b>.jsonl"
    write(os_name, rows)
    found = evaluate(settings(file=os_name), ["river:LinearRegression"], source_name=os_name, shares=True)
    report.write_page(found, Path("o.html"))
    page = Path("o.html").read_text()
    assert "<svg" in page
    assert "<script" not in page
    assert "d<b>" not in re.sub(r"<!--.*?-->", "", page, flags=re.DOTALL)
    assert not re.findall(
        r"""(?:src|href)\s*=\s*["'](?!#)""", re.sub(r"<metadata>.*?</metadata>", "", page, flags=re.DOTALL)
    )
    for row in found.rows:
        assert row.name in page


def test_outputs_are_checked_before_a_long_run(tmp_path):
    (tmp_path / "folder.png").mkdir()
    with pytest.raises(ConfigError) as told:
        report.check_outputs(tmp_path / "folder.png", tmp_path / "no" / "o.html")
    assert len(told.value.problems) == 2
    for plot, page in (("x.gif", None), (None, "data.csv")):
        with pytest.raises(ConfigError):
            report.check_outputs(plot and tmp_path / plot, page and tmp_path / page)
    report.check_outputs(tmp_path / "x.png", tmp_path / "x.html")


def test_without_matplotlib_pictures_are_refused_with_the_way_to_get_it(tmp_path, monkeypatch):
    monkeypatch.setitem(sys.modules, "matplotlib", None)
    with pytest.raises(ConfigError):
        report.check_outputs(tmp_path / "x.png", None)
    report.check_outputs(None, None)
