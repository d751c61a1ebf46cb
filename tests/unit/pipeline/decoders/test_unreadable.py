"""What the source itself could make nothing of is refused, even if its bytes look sound to a decoder."""

import numpy as np
import pytest

from streammoe.estimators import MoERegressor
from streammoe.pipeline.pipeline import Pipeline, Schema
from streammoe.pipeline.scores import PrequentialScores
from streammoe.ports import Batch, Unreadable

SOUND = {"jsonl": b'{"a": 1, "y": 2}', "csv": b"1,2"}
INSTEAD = {"jsonl": b"!", "csv": b'"'}


@pytest.mark.parametrize("format", SOUND)
@pytest.mark.parametrize("at", [0, 1])
def test_it_is_refused_for_the_reason_that_the_source_gave(format, at):
    lines = [SOUND[format] + b"\n"] * 2
    lines[at] = INSTEAD[format] + b"\n"
    batch = Batch(
        block=b"".join(lines),
        ends=np.cumsum([len(line) for line in lines]),
        format=format,
        columns=("a", "y"),
        origin="here",
        place=lambda i: {"at": i},
        end={},
        unreadable={at: Unreadable("no_key", "why", SOUND[format])},
    )
    pipeline = Pipeline(MoERegressor(1, warmup=3), Schema(("y",)), PrequentialScores())
    processed = pipeline.process(batch)
    assert (processed.outcomes["learned"], processed.outcomes["rejected"]) == (1, 1)
    [letter] = processed.letters
    assert (letter.place, letter.reason, letter.detail, letter.record) == ({"at": at}, "no_key", "why", SOUND[format])
