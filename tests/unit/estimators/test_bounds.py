"""What the sizes of a model come to together is bounded."""

import numpy as np
import pytest

from streammoe import MoEClassifier, MoERegressor, WarmUp
from streammoe.errors import ConfigError, InvalidEvent
from streammoe.layout import NO_ADDITIONS

WIDE = [f"x{j}" for j in range(2_000)]


@pytest.mark.parametrize(
    "arguments",
    [{"n_experts": 1000}, {"degree": 20}, {"warmup": 10_000_000}],
    ids=str,
)
def test_columns_that_make_a_model_too_large_are_rejected_and_change_nothing(arguments):
    fresh, begun = MoERegressor(**arguments), MoERegressor(**arguments)
    begun.learn_one({"a": 1.0}, 1.0)
    digest = begun.state_digest()
    for learn in (
        lambda: begun.learn_one(dict.fromkeys(WIDE, 0.5), 1.0),
        lambda: fresh.introduce(WIDE, np.full((1, len(WIDE)), 0.5), np.array([[1.0]])),
        lambda: fresh.learn_array(np.ones((2, len(WIDE))), np.ones(2), feature_names=WIDE),
    ):
        with pytest.raises(InvalidEvent) as rejected:
            learn()
        assert rejected.value.reason == "too_many_columns"
    with pytest.raises(ConfigError):
        fresh.set_columns(WIDE)
    assert (begun.n, begun.fields, begun.state_digest(), fresh.fields) == (1, ["a"], digest, [])


ONCE = WarmUp(restarts=1)
STATES = (
    "state.",
    "portfolio.",
    "warmup.recursive",
    "warmup.modest",
    "warmup.constant",
    "warmup.curved",
    "warmup.interim",
)


@pytest.mark.parametrize(
    "model",
    [
        MoERegressor(n_experts=2, warmup=ONCE),
        MoERegressor(n_experts=3, degree=2, curved="off", warmup=ONCE),
        MoEClassifier(n_experts=2, classes=[0, 1, 2], max_classes=3, warmup=ONCE),
    ],
    ids=["two", "squares", "classes"],
)
def test_the_size_that_counts_is_that_of_the_largest_state_with_all_members_and_companions(model):
    rng = np.random.default_rng(0)
    sizes = []
    for n in (40, 260, 700, 1000):
        X = rng.standard_normal((n, 60))
        y = (X[:, 0] + 3.0) * np.sign(X[:, 1])
        model.learn_array(X, (y > 0) * 1 if isinstance(model, MoEClassifier) else y)
        arrays = {name: each for name, each in model.arrays().items() if name.startswith(STATES)}
        sizes.append(sum(each.nbytes for name, each in arrays.items() if ".growing" not in name))
    context = model.learner.context
    counted = context.state_bytes(*context.encoder.widths_with(NO_ADDITIONS))
    assert 0.8 * counted <= max(sizes) <= 1.05 * counted
