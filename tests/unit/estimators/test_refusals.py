"""What is no event is rejected, with its reason and its place, and leaves no trace; so is what would be too large."""

import numpy as np
import pytest

from streammoe import InvalidEvent, MoEClassifier, MoEMultiTargetRegressor, MoERegressor
from streammoe.errors import ConfigError
from streammoe.model.learn_rows import introduce
from tests.unit.estimators.refusals import LATER, REFUSALS, trained


@pytest.mark.parametrize("n", [0, 10, 30], ids=["fresh", "warming up", "streaming"])
@pytest.mark.parametrize("kind", [MoERegressor, MoEMultiTargetRegressor, MoEClassifier])
def test_it_is_rejected_with_its_reason_and_changes_nothing(kind, n):
    names = [name for name in REFUSALS if REFUSALS[name].kind is kind and (n or name not in LATER)]
    model = trained(kind, n)
    before = model.state_digest(), model.fields, model.output_names
    found = {}
    for name in names:
        try:
            found[name] = f"returned {REFUSALS[name].call(model)!r}"
        except InvalidEvent as error:
            found[name] = error.reason, error.feature, error.row
            assert len(str(error)) < 400, name  # noqa: PT017 - the whole of the table is compared below
        assert (model.state_digest(), model.fields, model.output_names) == before, name
    assert found == {name: REFUSALS[name][2:] for name in names}


# --- sizes ------------------------------------------------------------------------------------------------------------

WIDE = [f"x{j}" for j in range(2_000)]


@pytest.mark.parametrize("arguments", [{"n_experts": 1000}, {"degree": 20}, {"warmup": 10_000_000}], ids=str)
def test_columns_that_make_a_model_too_large_are_rejected_and_change_nothing(arguments):
    fresh, begun = MoERegressor(**arguments), MoERegressor(**arguments)
    begun.learn_one({"a": 1.0}, 1.0)
    digest = begun.state_digest()
    for learn in (
        lambda: begun.learn_one(dict.fromkeys(WIDE, 0.5), 1.0),
        lambda: introduce(fresh.learner, WIDE, np.full((1, len(WIDE)), 0.5), np.array([[1.0]])),
        lambda: fresh.learn_array(np.ones((2, len(WIDE))), np.ones(2), feature_names=WIDE),
    ):
        with pytest.raises(InvalidEvent) as rejected:
            learn()
        assert rejected.value.reason == "too_many_columns"
    with pytest.raises(ConfigError):
        fresh.set_columns(WIDE)
    assert (begun.n, begun.fields, begun.state_digest(), fresh.fields) == (1, ["a"], digest, [])
