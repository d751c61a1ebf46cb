"""`streammoe.evaluate`: each row is predicted before it is learned, however the rows come."""

import numpy as np
import pandas as pd
import polars as pl
import pytest
from river import metrics

from streammoe import ConfigError, InvalidEvent, MoEClassifier, MoEMultiTargetRegressor, MoERegressor, evaluate
from streammoe import evaluation as module

N = 300
RNG = np.random.default_rng(0)
FRAME = pd.DataFrame({"a": RNG.normal(size=N), "c": RNG.choice(["u", "v"], N)})
FRAME["late"] = np.where(np.arange(N) < 150, np.nan, RNG.normal(size=N))
Y = np.where(FRAME.c == "u", FRAME.a, 2.0 - FRAME.a) + 0.1 * RNG.normal(size=N)


def records(frame):
    return [row.dropna().to_dict() for _, row in frame.iterrows()]


@pytest.mark.parametrize("frame", [FRAME, pl.DataFrame(FRAME.to_dict("list"), nan_to_null=True)])
def test_scores_are_those_of_a_loop_that_predicts_and_then_learns(frame, monkeypatch):
    monkeypatch.setattr(module, "ROWS_AT_ONCE", 70)
    twin, rmse, held = MoERegressor(2), metrics.RMSE(), []
    for x, y in zip(records(FRAME), Y.tolist(), strict=True):
        low, high = twin.predict_interval_one(x, 0.9)
        rmse.update(y, twin.predict_one(x))
        held.append(low <= y <= high)
        twin.learn_one(x, y)
    model = MoERegressor(2)
    found = evaluate(model, frame, Y)
    assert model.state_digest() == twin.state_digest()
    # Of the row in which a column comes late, only learning knows that column.
    assert found["rmse"] == pytest.approx(rmse.get(), rel=1e-3)
    (coverage,) = (each["coverage"] for each in found["intervals"] if each["level"] == 0.9)
    assert coverage == pytest.approx(np.mean(held[1:]), abs=0.005)
    means = np.concatenate([[0.0], np.cumsum(Y)[:-1] / np.arange(1, N)])
    assert found["baseline_rmse"] == pytest.approx(np.sqrt(np.mean((Y - means) ** 2)))


def test_labels_have_an_accuracy_and_several_outputs_intervals_each():
    labels = np.where(Y > 1.0, "high", "low")
    classifier, twin = MoEClassifier(2), metrics.Accuracy()
    for x, y in zip(records(FRAME), labels.tolist(), strict=True):
        twin.update(y, classifier.predict_one(x))
        classifier.learn_one(x, y)
    assert evaluate(MoEClassifier(2), FRAME, labels)["accuracy"] == pytest.approx(twin.get(), abs=1.5 / N)
    several = evaluate(MoEMultiTargetRegressor(2), FRAME, pd.DataFrame({"p": Y, "q": -Y}))
    assert {each["output"] for each in several["intervals"]} == {"p", "q"}


def test_rows_without_weight_do_not_count_and_a_bad_one_leaves_the_model_as_it_was(monkeypatch):
    monkeypatch.setattr(module, "ROWS_AT_ONCE", 70)
    model, weights = MoERegressor(2), (np.arange(N) % 2).astype(float)
    assert evaluate(model, FRAME, Y, w=weights)["rmse"] == evaluate(MoERegressor(2), FRAME[1::2], Y[1::2])["rmse"]
    before, bad = model.state_digest(), FRAME.assign(a=[*FRAME.a[:-1], 1e80])
    with pytest.raises(InvalidEvent) as caught:
        evaluate(model, bad, Y)
    assert (caught.value.row, model.state_digest()) == (N - 1, before)
    with pytest.raises(ConfigError):
        evaluate(object(), FRAME, Y)
