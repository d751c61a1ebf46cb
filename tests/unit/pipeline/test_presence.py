"""Features that came with every event, and then come no more."""

from itertools import repeat

import numpy as np

from streammoe.pipeline.presence import Presence
from tests.unit.pipeline.streams import pipeline, run

N = 700
FIELDS = ("always", "ends", "too early", "pauses", "comes back", "text", "sometimes", "at the end")
PRESENT = np.ones((N, len(FIELDS)), bool)
PRESENT[300:, FIELDS.index("ends")] = False
PRESENT[99:, FIELDS.index("too early")] = False
PRESENT[300:399, FIELDS.index("pauses")] = PRESENT[500:550, FIELDS.index("pauses")] = False
PRESENT[300:450, FIELDS.index("comes back")] = False
PRESENT[300:, FIELDS.index("text")] = False
PRESENT[::7, FIELDS.index("sometimes")] = False
PRESENT[N - 99 :, FIELDS.index("at the end")] = False


def followed(sizes):
    """What is found of the stream in batches of these sizes."""
    presence, found, start, sizes = Presence(), [], 0, iter(sizes)
    text = FIELDS.index("text")
    X = np.where(PRESENT, 1.0, np.nan)
    X[:, text] = np.nan
    while start < N:
        stop = min(N, start + next(sizes))
        texts = {text: ["x" if is_there else None for is_there in PRESENT[start:stop, text]]}
        found += presence.update(FIELDS, X[start:stop], texts, {}, lambda i, start=start: {"offset": start + i})
        start = stop
    return found, presence


def test_what_vanishes_is_said_once_and_counted_wherever_the_stream_is_cut():
    said = "each of 300 events had 'ends', 'comes back' and 'text', and none has since offset 300:"
    for size in (1, 7, 100, 301, 1000):
        (message,), presence = followed(repeat(size))
        assert presence.vanished == {"ends": 400, "comes back": 150, "text": 400}
        assert presence.lacking == ["ends", "text"]
        assert presence.missing == {name: int((~PRESENT[:, j]).sum()) for j, name in enumerate(FIELDS)}
        assert message.startswith(said)


def test_events_without_a_target_do_not_count_nor_does_what_came_late():
    events = [{"a": i % 5, "b": i % 3 if i < 200 else None, "y": None if i % 2 else i % 4} for i in range(500)]
    events += [{**event, "b": None, "late": 1 if event["a"] else None} for event in events]
    line = pipeline("regressor", n_experts=1, schema={"late_columns": True})
    run(line, events, sizes=[64])
    assert line.presence.vanished == {"b": 399}, "the event that brings a column is not followed"
