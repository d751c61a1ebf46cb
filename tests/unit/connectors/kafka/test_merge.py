"""Records of several partitions come in an order that depends on nothing but the log."""

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st

from streammoe_connectors.kafka.merge import merge

LOGS = st.lists(st.lists(st.integers(0, 6), max_size=12), min_size=1, max_size=4)


def arrays(lists):
    return [np.array(own, np.int64) for own in lists]


def heads(logs):
    """One record after the other: that with the smallest time at the head of its partition, of the first partition."""
    at, found = [0] * len(logs), []
    while waiting := [(own[at[i]], i) for i, own in enumerate(logs) if at[i] < len(own)]:
        _, i = min(waiting)
        found.append((i, at[i]))
        at[i] += 1
    return found


def taken(merged, at):
    """Names of the records in `merged`, which moves the heads on."""
    names = [(i, at[i] + k) for i, count in enumerate(merged.counts) for k in range(count)]
    for i, count in enumerate(merged.counts):
        at[i] += count
    return [names[k] for k in merged.order]


@settings(max_examples=60)
@given(LOGS, st.data())
def test_the_order_is_that_of_heads_however_records_arrive_and_wherever_reading_resumes(logs, data):
    at = [0] * len(logs)
    found = []
    arrived = list(at)
    while len(found) < sum(map(len, logs)):
        if data.draw(st.booleans(), label="restart"):
            arrived = list(at)  # a restart has nothing but the positions of what was given
        for i, own in enumerate(logs):
            arrived[i] = data.draw(st.integers(max(arrived[i], at[i]), len(own)), label="arrived")
        if data.draw(st.integers(0, 3)) == 0:
            arrived = [len(own) for own in logs]
        times = arrays(own[at[i] : arrived[i]] for i, own in enumerate(logs))
        holds = [arrived[i] < len(own) for i, own in enumerate(logs)]
        merged = merge(times, holds, data.draw(st.integers(1, 9), label="most"))
        found += taken(merged, at)
    assert found == heads(logs)
