"""Records of several partitions come in an order that depends on nothing but the log."""

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st

from streammoe_connectors.kafka.order import Hold, merge

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
    counts, order, _ = merged
    names = [(i, at[i] + k) for i, count in enumerate(counts) for k in range(count)]
    for i, count in enumerate(counts):
        at[i] += count
    return [names[k] for k in order]


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
        # What has waited for long makes no difference to a backlog, nor does anything where nothing has waited.
        holding, overdue = data.draw(st.sampled_from([(Hold.UNBOUNDED, 12), (Hold.BOUNDED, 0)]), label="overdue")
        holds = [holding if arrived[i] < len(own) else Hold.NONE for i, own in enumerate(logs)]
        late = [min(overdue, len(own)) for own in times]
        merged = merge(times, holds, late, data.draw(st.integers(1, 9), label="most"))
        assert merged[2] == 0
        found += taken(merged, at)
    assert found == heads(logs)


def passed(logs, holds, overdue, most):
    """What is passed, record by record: the heads of all partitions, up to the last one that is certain or overdue."""
    order = heads(logs)
    at = {name: place for place, name in enumerate(order)}

    def is_certain(place, kinds):
        ends = [at[i, len(own) - 1] if own else -1 for i, own in enumerate(logs) if holds[i] in kinds]
        return all(place <= end for end in ends)

    certain = [is_certain(place, {Hold.BOUNDED, Hold.UNBOUNDED}) for place in range(len(order))]
    late = [k < overdue[i] for i, k in order]
    last = max((place for place in range(len(order)) if certain[place] or late[place]), default=-1)
    found = [name for place, name in enumerate(order[: last + 1]) if is_certain(place, {Hold.UNBOUNDED})][:most]
    return found, sum(not certain[at[name]] for name in found)


@settings(max_examples=150)
@given(LOGS, st.data())
def test_what_is_overdue_is_passed_with_all_that_comes_before_it_but_nothing_that_a_backlog_may_precede(logs, data):
    holds = [data.draw(st.sampled_from(Hold)) for _ in logs]
    overdue = [data.draw(st.integers(0, len(own))) for own in logs]
    most = data.draw(st.integers(1, 50))
    merged = merge(arrays(logs), holds, overdue, most)
    assert (taken(merged, [0] * len(logs)), merged[2]) == passed(logs, holds, overdue, most)
