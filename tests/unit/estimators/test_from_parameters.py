"""Models that begin at the parameters and statistics of another one."""

import numpy as np
import pytest

from streammoe import MoEClassifier, MoEMultiTargetRegressor, MoERegressor, load, schedules
from streammoe.distributions import Gaussian, StudentT
from tests.unit.estimators.models import NAMES, OUTPUTS, QUICK, STREAMS, trained

pytestmark = pytest.mark.usefixtures("brief_fits")

CONSTANT, OTHER = schedules.Constant(0.03), schedules.Power(0.6, gamma0=0.7, offset=2.0)
MODELS = [
    (MoERegressor, {"n_experts": 4, "bound": "paper", "degree": 2, "prior_strength": 0.0}),
    (MoERegressor, {"gate_degree": 2, "prior_strength": 5.0, "schedule": OTHER, "expert": "laplace"}),
    (MoERegressor, {"expert": StudentT(7.0), "schedule": CONSTANT}),
    (MoEMultiTargetRegressor, {"expert": Gaussian("full"), "schedule": CONSTANT}),
    (MoEClassifier, {"n_experts": 1, "standardize": True}),
    (MoEClassifier, {"n_experts": 3, "bound": "tight", "degree": 2, "gate_degree": 2, "prior_strength": 0.0}),
]


@pytest.mark.parametrize(("kind", "arguments"), MODELS)
def test_it_continues_the_raw_iterate_within_1e_9(kind, arguments, tmp_path):
    n, more = 137, 100
    model = trained(kind, n, **arguments, warmup=130)  # with its next fit at 260 events
    model.save(tmp_path / "model")
    read, clone = load(tmp_path / "model"), model.clone()
    assert clone.n == 0
    assert clone._get_params() == read._get_params() == model._get_params()
    named = {MoEMultiTargetRegressor: {"target_names": OUTPUTS}, MoEClassifier: {"classes": model.output_names}}
    given = {**QUICK, **{name: value for name, value in arguments.items() if value != Gaussian("full")}}
    twin = kind.from_parameters(model.parameters(), feature_names=NAMES, **given, **named.get(kind, {}))
    assert (twin.output_names, twin.noise) == (model.output_names, model.noise)
    X, y = STREAMS[kind](more, seed=6)
    for each in (model, twin):
        each.learn_array(X, y, feature_names=NAMES)
    ours, theirs = model.parameters(), twin.parameters()
    assert ours.keys() == theirs.keys()
    assert theirs["n"] == ours["n"] == n + more
    for name, value in ours.items():
        if isinstance(value, np.ndarray) and value.size:
            assert np.abs(value - theirs[name]).max() <= 1e-9 * np.abs(value).max(), name


def test_the_average_begins_again():
    parameters = trained(serve="polyak").parameters()
    fresh = MoERegressor.from_parameters(parameters, feature_names=NAMES, serve="polyak", **QUICK)
    assert fresh.parameters(averaged=True)["experts"].tobytes() == parameters["experts"].tobytes()


def test_classes_are_numbers_unless_they_are_named():
    parameters = trained(MoEClassifier).parameters()
    assert MoEClassifier.from_parameters(parameters, feature_names=NAMES).output_names == [0, 1, 2]
