"""River's own checks of an estimator, on one configuration of each for every run; none is skipped."""

from collections import Counter

import numpy as np
import pytest
from river import checks, compose, metrics, preprocessing
from river.datasets import Phishing, synth

from streammoe import MoEClassifier, MoEMultiTargetRegressor, MoERegressor, schedules

CHECKED = [
    MoERegressor(2, warmup=50, warmup_restarts=1, standardize=True, degree=2, averaging="decay"),
    MoEMultiTargetRegressor(2, warmup=15, warmup_restarts=1, standardize=True, covariance="full"),
    MoEClassifier(2, warmup=50, warmup_restarts=1, bound="tight", drift="page_hinkley", averaging="exponential"),
]
OTHERS = [
    *(
        each
        for kind in (MoERegressor, MoEMultiTargetRegressor, MoEClassifier)
        for each in (kind(), *(kind(**arguments) for arguments in kind._unit_test_params()))
    ),
    MoERegressor(1, warmup=0, averaging=None, schedule=schedules.constant(0.05)),
    MoEMultiTargetRegressor(1, warmup=0, averaging=None, bound="paper", schedule=schedules.constant(0.05)),
    MoERegressor(2, warmup=50, warmup_restarts=1, drift="page_hinkley", averaging="exponential", averaging_rate=0.1),
    MoEClassifier(1, warmup=0, averaging=None, bound="paper", schedule=schedules.constant(0.05)),
]


def cases():
    for at, model in enumerate([*CHECKED, *OTHERS]):
        seen = Counter()
        for check in checks.yield_checks(model):
            seen[check.__name__] += 1
            # River's third stream for classifiers has 18 features and 7 classes; memory is watched over ten streams.
            is_long = seen[check.__name__] == 3 or "memory_growth" in check.__name__
            marks = [pytest.mark.slow] if is_long else []
            marks += [pytest.mark.exhaustive] if at >= len(CHECKED) else []
            name = f"{type(model).__name__}-{at}-{check.__name__}-{seen[check.__name__]}"
            yield pytest.param(model, check, id=name, marks=marks)


@pytest.mark.parametrize(("model", "check"), list(cases()))
def test_estimator_checks(model, check):
    check(model.clone())


@pytest.mark.parametrize("kind", [MoERegressor, MoEMultiTargetRegressor, MoEClassifier])
def test_skips_none_of_them(kind):
    assert kind()._unit_test_skips() == set()


class TestPipelines:
    def test_a_regressor_learns_behind_a_scaler(self):
        pipeline = compose.Pipeline(preprocessing.StandardScaler(), MoERegressor(2, warmup=300, warmup_restarts=2))
        errors = []
        for x, y in synth.Friedman(seed=1).take(1500):
            errors.append(pipeline.predict_one(x) - y)
            pipeline.learn_one(x, y)
        # A standard deviation of 5; one line leaves 2.7 or so.
        assert np.sqrt(np.mean(np.square(errors[-500:]))) < 2.6

    def test_a_classifier_learns_behind_a_scaler(self):
        pipeline = compose.Pipeline(preprocessing.StandardScaler(), MoEClassifier(2, warmup=300, warmup_restarts=2))
        accuracy, loss = metrics.Accuracy(), metrics.LogLoss()
        for at, (x, y) in enumerate(Phishing()):
            if at > 300:
                accuracy.update(y, pipeline.predict_one(x))
                loss.update(y, pipeline.predict_proba_one(x))
            pipeline.learn_one(x, y)
        assert accuracy.get() > 0.88
        assert loss.get() < 0.3


@pytest.mark.parametrize("kind", [MoERegressor, MoEMultiTargetRegressor, MoEClassifier])
def test_repr_is_a_constructor_call_with_the_schedule(kind):
    assert "schedule=Power(alpha=0.7" in repr(kind(2, schedule=schedules.power(0.7)))
