"""What the sizes of a model come to together is bounded."""

import numpy as np
import pytest

from streammoe import MoERegressor
from streammoe.errors import ConfigError, InvalidEvent

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
