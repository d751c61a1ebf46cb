"""Features and labels in any order, cut anywhere, with restarts: the same events, to the last bit; and a plain model.

The plain model keeps what waits in a list and looks at all of it for every record.
"""

import json
import math
from collections import Counter
from dataclasses import replace
from functools import partial
from itertools import accumulate, pairwise

import numpy as np
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from streammoe.daemon.checkpoints import learned_digest
from streammoe.estimators import MoERegressor
from streammoe.options import Lags
from streammoe.persistence import decode, encode
from streammoe.pipeline.label_join import LabelJoin
from streammoe.pipeline.pipeline import Pipeline
from streammoe.pipeline.schema import Schema
from streammoe.pipeline.scores import PrequentialScores
from streammoe.ports import EXPIRED
from streammoe.settings import Labels
from tests.batches import batch_of

SCHEMA = Schema(("y",), ignore=("id",), weight="w", numeric=frozenset("a"))
KEYS = st.integers(0, 6)
KINDS = st.sampled_from(
    ["features", "features", "label", "label", "complete", "no key", "malformed", "bad features", "0"]
)


def record_of(kind, key, i):
    a = math.sin(3 * i)
    values = {
        "features": {"id": key, "a": a},
        "label": {"id": key, "y": 2 * a + 1},
        "complete": {"id": key, "a": a, "y": 2 * a},
        "no key": {"a": a},
        "bad features": {"id": key, "a": "text"},
        "0": {"id": key, "y": a, "w": 0.0},
    }
    return b"[" if kind == "malformed" else json.dumps(values[kind]).encode()


def part_of(records, times, start, stop):
    keys = [b"%d" % i for i in range(start, stop)]
    times = np.array(times[start:stop], np.int64)
    headers = [(("i", key),) for key in keys]
    return replace(batch_of(records[start:stop], "jsonl", start), timestamps=times, keys=keys, headers=headers)


class Daemonlike:
    """Pipeline and buffer, and what a checkpoint would hold of both."""

    def __init__(self, limits, lags=None):
        self.limits = limits
        self.n_lags = 0 if lags is None else lags.size * (1 + len(lags.inputs))
        self.join = LabelJoin(limits, SCHEMA, self.n_lags)
        model = MoERegressor(2, warmup=8, numeric=("a",), lags=lags)
        self.pipeline = Pipeline(model, SCHEMA, PrequentialScores())
        self.outcomes = Counter()
        self.letters = []
        self.passed = []

    def take(self, batch):
        for joined in self.join.parts(batch):
            self.passed += [(joined.location(i)["row"], joined.keys[i], joined.record(i)) for i in range(len(joined))]
            processed = self.join.settle(self.pipeline.process(joined))
            self.outcomes.update(processed.outcomes)
            self.letters += processed.letters

    def restart(self):
        model = self.pipeline.model
        kept = decode(encode({**model.arrays(), **self.join.arrays()}, model.describe()), "memory")
        model = MoERegressor.from_checkpoint(kept.arrays, kept.metadata["model"])
        self.pipeline = Pipeline(model, SCHEMA, self.pipeline.scores)
        self.join = LabelJoin(self.limits, SCHEMA, self.n_lags)
        self.join.restore(kept.arrays)

    def found(self):
        digest = learned_digest({**self.pipeline.model.arrays(), **self.join.arrays()})
        return digest, self.outcomes, self.letters, self.passed, self.join.pending


def in_words(records, times, limits):
    """What passes, as places of features and labels: (features, label), either of them None."""
    waiting, passed, now = [], [], -1
    for i, record in enumerate(records):
        now = max(now, times[i])
        for old in list(waiting):
            late = limits.expire_events is not None and i - old["at"] > limits.expire_events
            if late or (limits.expire_seconds is not None and now - old["time"] > 1000 * limits.expire_seconds):
                waiting.remove(old)
        value = None if record == b"[" else json.loads(record)
        if value is None or "id" not in value:
            passed.append((i, None))
            continue
        label, features = "y" in value, "a" in value
        same = [old for old in waiting if old["id"] == value["id"]]
        assert len(same) <= 1
        other = [old for old in same if old["label"] != label]
        if other:
            waiting.remove(other[0])
            passed.append((other[0]["at"], i) if label else (i, other[0]["at"]))
        elif label and features:
            passed.append((i, None))
        else:
            waiting = [old for old in waiting if old not in same]
            waiting.append({"id": value["id"], "label": label, "at": i, "time": now})
            waiting = waiting[-limits.max_pending :]
            if features:
                passed.append((i, None))
    return passed, len(waiting)


STREAM = st.lists(st.tuples(KINDS, KEYS, st.integers(-2, 5)), min_size=1, max_size=120)
LIMITS = st.builds(
    partial(Labels, key="id", keep_expired=True),
    max_pending=st.sampled_from([1, 3, 1_000]),
    expire_events=st.sampled_from([None, 1, 4, 15]),
    expire_seconds=st.sampled_from([None, 0.001, 0.005, 0.02]),
)


def written(stream):
    records = [record_of(kind, key, i) for i, (kind, key, _) in enumerate(stream)]
    return records, [max(0, time) for time in accumulate(step for _, _, step in stream)]


@settings(max_examples=30)
@given(
    stream=STREAM,
    limits=LIMITS,
    cuts=st.lists(st.tuples(st.integers(0, 120), st.booleans()), max_size=12),
    lags=st.sampled_from([None, Lags(2, ("a",))]),
)
@example(
    stream=[("bad features", 1, 1), ("label", 1, 1), ("features", 1, 1), ("features", 1, 0)],
    limits=Labels(key="id", keep_expired=True),
    cuts=[(1, True), (2, False), (3, True)],
    lags=Lags(1),
)
@example(
    stream=[("bad features", 1, 1), ("label", 1, 1)],
    limits=Labels(key="id", keep_expired=True),
    cuts=[(1, True)],
    lags=None,
)
def test_where_batches_are_cut_and_runs_interrupted_leaves_no_trace(stream, limits, cuts, lags):
    records, times = written(stream)
    whole, parts = Daemonlike(limits, lags), Daemonlike(limits, lags)
    whole.take(part_of(records, times, 0, len(records)))
    restarts = {at for at, restart in cuts if restart}
    edges = sorted({0, len(records), *(at for at, _ in cuts if at < len(records))})
    for start, stop in pairwise(edges):
        if start in restarts:
            parts.restart()
        parts.take(part_of(records, times, start, stop))
    assert parts.found() == whole.found()
    for name, array in whole.join.arrays().items():
        assert array.tobytes() == parts.join.arrays()[name].tobytes(), name


@pytest.mark.slow
@settings(max_examples=30)
@given(stream=STREAM, limits=LIMITS)
def test_what_passes_is_what_the_plain_model_says_and_every_event_counts_once(stream, limits):
    records, times = written(stream)
    found = Daemonlike(limits)
    found.take(part_of(records, times, 0, len(records)))
    passed, waiting = in_words(records, times, limits)
    assert [(at, key) for at, key, _ in found.passed] == [(features, b"%d" % features) for features, _ in passed]
    for (features, label), (_, _, record) in zip(passed, found.passed, strict=True):
        if label is None:
            assert record == records[features]
        else:
            assert json.loads(record) == json.loads(records[label]) | json.loads(records[features])
    assert len(found.join._waiting) == waiting
    pairs = [(features, label) for features, label in passed if label is not None]
    rejected_twice = sum(b"text" in records[features] and features < label for features, label in pairs)
    assert min([*found.outcomes.values(), found.join.pending]) >= 0
    assert found.outcomes.total() + found.join.pending == len(records) - len(pairs) + rejected_twice
    assert found.outcomes["learned"] == found.pipeline.model.n
    expired = [letter for letter in found.letters if letter.reason == EXPIRED]
    assert len(expired) == found.outcomes["expired"]
    for letter in expired:
        at = letter.location["row"]
        assert (letter.record, letter.key, letter.headers) == (records[at], b"%d" % at, (("i", b"%d" % at),))
