"""Of the estimators: arguments, events that are rejected, checkpoints that hold no model, batch fits and mixtures."""

import math

import numpy as np

from streammoe import MoEClassifier, MoEMultiTargetRegressor, MoERegressor, batch
from streammoe.experts import families
from streammoe.features import Encoder
from tests.unit import test_batch, test_distributions
from tests.unit.estimators.damages import DAMAGES, learned, outputs, quiet, restored
from tests.unit.estimators.refusals import LATER, REFUSALS, trained

WRONG = {
    MoERegressor: [
        *({"n_experts": value} for value in (0, 2.5, "4", "many")),
        *({"degree": value} for value in (0, 1.5)),
        {"gate_degree": 0},
        {"bound": "loose"},
        *({"prior_strength": value} for value in (-0.1, math.nan, math.inf)),
        *({"warmup": value} for value in (-1, 2.5)),
        {"warmup_restarts": 0},
        {"averaging": "mean"},
        {"averaging_rate": 1.0},
        {"range_factor": -1.0},
        *({"seed": value} for value in (-1, "a")),
        *({"schedule": value} for value in (0.1, "power")),
        {"drift": "adwin"},
        {"drift_restart": 0},
        {"top_k": 0},
        *({"batch_size": value} for value in (0, 10**6)),
        {"max_experts": 1},
        {"reseed": "always"},
        {"warmup": 0, "standardize": True},
        {"warmup": 0, "prior_strength": 0.0},
        {"warmup": 0, "n_experts": "auto"},
        {"n_experts": 0, "degree": 0, "warmup": -5},
        *({"categorical": value} for value in ("color", (["c"],))),
        {"timestamps": 3},
        {"categorical": ("c", "t"), "timestamps": ("t",)},
        {"max_levels": 0},
        {"covariance": "full"},
        *({"expert": value} for value in ("cauchy", 3)),
        *({"degrees_of_freedom": value} for value in (2.0, math.nan, math.inf, "4")),
    ],
    MoEMultiTargetRegressor: [{"expert": "laplace"}, {"expert": "student_t", "covariance": "full"}],
    MoEClassifier: [
        *({"classes": value} for value in (("a",), ("a", "a"), "ab", (None, "a"), (True, 1))),
        *({"max_classes": value} for value in (0, 2.5)),
    ],
}


def changing(name, value):
    return lambda _: getattr(MoERegressor(2), name)(value)


def beginning_again(n_experts, events, expert):
    def call(_):
        model = MoERegressor(n_experts, warmup=40, warmup_restarts=1)
        with quiet():
            model.learn_array(*np.split(np.random.default_rng(0).normal(size=(events, 3)), [2], axis=1))
        model.reseed_expert(expert)

    return call


def from_parameters(change):
    def call(_):
        parameters = learned().parameters()
        change(parameters)
        MoERegressor.from_parameters(parameters, feature_names=["a", "b"])

    return call


def without(entry):
    return from_parameters(lambda parameters: parameters.pop(entry))


def saved_under_other_names(folder):
    model = MoERegressor()
    model.learn_one({("a", 1): 1.0}, 1.0)
    model.save(folder / "model")


def poisoned(call):
    """Values that are in range, and would leave no finite model."""

    def learn(_):
        model = MoERegressor(2, warmup=20, warmup_restarts=1, degree=3, range_factor=0.0, prior_strength=0.0)
        rows = np.random.default_rng(0).normal(size=(30, 2))
        with quiet():
            model.learn_array(rows, rows[:, 0])
        call(model)

    return learn


def unplaced(_):
    model = MoERegressor(2, categorical=("c",), max_levels=1)
    model.learn_one({"c": "red"}, 1.0)
    model.learn_one({"c": "blue"}, 1.0)


def far(_):
    model = MoERegressor(2)
    model.learn_one({"a": 3.0}, 1.0)
    model.learn_one({"a": 4e9}, 1.0)


def layout(_):
    Encoder(n_outputs=1, degree=1, gate_degree=1, range_factor=0.0, timestamps=("t",)).set_features(["t:day_sin", "x"])


IN_PYTHONS_WORDS = {"no JSON", "deep", "field beyond"}
"""They differ from version to version."""
HUGE = {"x0": 9e49, "x1": 1.0}
CASES = {
    **{
        f"{kind.__name__}, {', '.join(f'{name} {value!r}' for name, value in given.items())}": (
            lambda _, kind=kind, given=given: kind(**given)
        )
        for kind, wrong in WRONG.items()
        for given in wrong
    },
    "student_t without a variance": lambda _: type(families()["student_t"])(1.5),
    "set_reseed": changing("set_reseed", "x"),
    "set_range_factor": changing("set_range_factor", -1.0),
    "set_max_levels": changing("set_max_levels", 0),
    "set_columns, there are some": lambda _: learned().set_columns(["a"]),
    "set_targets, there are some": lambda _: outputs().set_targets(["a"]),
    "set_targets, none": lambda _: MoEMultiTargetRegressor().set_targets([]),
    "set_targets, one twice": lambda _: MoEMultiTargetRegressor().set_targets(["y", "y"]),
    "reseed_expert during the warm-up": beginning_again(2, 20, 0),
    "reseed_expert, no such expert": beginning_again(2, 50, 2),
    "reseed_expert, no number": beginning_again(2, 50, "a"),
    "reseed_expert of one": beginning_again(1, 50, 0),
    "parameters during the warm-up": lambda _: outputs().parameters(),
    "parameters without a gate": without("gate"),
    "parameters, masses too short": from_parameters(lambda parameters: parameters.update(masses=np.ones(1))),
    "parameters of another number of classes": lambda _: MoEClassifier.from_parameters(
        trained(MoEClassifier, 30).parameters(), feature_names=["a", "b"], classes=["p"]
    ),
    "a distribution before there are outputs": lambda _: MoEMultiTargetRegressor().predict_distribution_one({"a": 1.0}),
    "saved with names that are no texts": saved_under_other_names,
    "poison": poisoned(lambda model: model.learn_one(HUGE, 1.0, w=1e6)),
    "poison in an array": poisoned(
        lambda model: model.learn_array(np.array([[1.0, 1.0], [9e49, 1.0]]), np.ones(2), weights=np.array([1.0, 1e6]))
    ),
    **{
        name: lambda _, refusal=refusal, name=name: refusal.call(trained(refusal.kind, 10 if name in LATER else 0))
        for name, refusal in REFUSALS.items()
    },
    **{
        f"checkpoint, {of}: {name}": lambda folder, make=make, change=change: restored(folder, make(), change)
        for of, (make, changes) in DAMAGES.items()
        for name, change in changes.items()
        if name not in IN_PYTHONS_WORDS
    },
    **{
        f"batch fit, {', '.join(f'{name} {value!r}' for name, value in given.items())}": (
            lambda _, given=given: batch.fit(test_batch.regressor(), *test_batch.rows(20), **given)
        )
        for given in test_batch.WRONG
    },
    **{
        f"batch fit, unusable rows {at}": lambda _, X=X, y=y, more=more: batch.fit(test_batch.regressor(), X, y, **more)
        for at, (X, y, more, _) in enumerate(test_batch.UNUSABLE)
    },
    "batch fit of a model that has learned": lambda _: batch.fit(learned(), *test_batch.rows(20)),
    "batch fit of a pipeline": lambda _: batch.fit("a pipeline", *test_batch.rows(20)),
    **{
        f"{kind.__name__}, wrong {at}": lambda _, kind=kind, arguments=arguments: kind(*arguments)
        for kind, wrong in test_distributions.WRONG.items()
        for at, arguments in enumerate(wrong)
    },
    "quantile of 1": lambda _: test_distributions.TWO.quantile(1.0),
    "interval of 90": lambda _: test_distributions.TWO.interval(90),
    "density at too few outputs": lambda _: test_distributions.CORRELATED.pdf([1.0]),
    "marginal of another output": lambda _: test_distributions.CORRELATED.marginal("weight"),
    "more levels than get a column": unplaced,
    "a time in milliseconds": lambda _: MoERegressor(timestamps=("t",)).learn_one({"t": 1_700_000_000_000}, 1.0),
    "no time": lambda _: MoERegressor(timestamps=("t",)).learn_one({"t": "31.01.2026"}, 1.0),
    "too far from what was accepted": far,
    "feature names of no layout": layout,
    "checkpoint of no model": lambda folder: restored(folder, learned(), model={}),
    "checkpoint of another class": lambda folder: restored(folder, learned(), model={"kind": "os.system"}),
}
