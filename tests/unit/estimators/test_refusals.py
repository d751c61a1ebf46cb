"""What is no event is rejected, with its reason and its place, and leaves no trace."""

import pytest

from streammoe import InvalidEvent, MoEClassifier, MoEMultiTargetRegressor, MoERegressor
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
