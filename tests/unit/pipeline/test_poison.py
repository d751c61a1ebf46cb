"""A record that cannot be learned is rejected with its reason and leaves no bit, wherever in the stream it comes.

Which value is rejected for which reason in which format is what tests/unit/test_bad_input.py is about; here is one of
each reason and stage, for models of all kinds and at all their ages.
"""

import math
from functools import cache

import pytest

from tests.pairs import pairwise_cases
from tests.unit.pipeline.streams import FORMATS, KINDS, TARGETS, WARM_UP, event, pipeline, run, stream_of

N = 60
PLACES = {"first": 0, "in warm-up": 20, "before its end": WARM_UP - 1, "after it": WARM_UP, "last": N}
FEATURES = [
    ({"a": math.nan}, "not_finite", "decode"),
    ({"a": 1e300}, "out_of_range", "validate"),
    ({"a": 1e9}, "out_of_range", "validate"),  # beyond range_factor
    ({"a": "abc"}, "wrong_type", "decode"),
    ({"a": [1.0]}, "wrong_type", "decode"),
    ({"c": "r" * 257}, "out_of_range", "decode"),
    ({"t": "yesterday"}, "wrong_type", "decode"),
    ({"t": 1.8e12}, "out_of_range", "validate"),  # milliseconds
    ({"w": -1.0}, "out_of_range", "decode"),
    ({"w": math.nan}, "not_finite", "decode"),
    # One that names its class, or is learned with its weight, would still bring a level.
    ({"c": "violet", "w": -1.0}, "out_of_range", "decode"),
    ({"c": "violet", "a": 1e300}, "out_of_range", "validate"),
]
TARGET = [
    ({"y": math.inf}, "not_finite", "decode"),
    ({"y": -1e60}, "out_of_range", "validate"),
    ({"y": 1e9}, "out_of_range", "validate"),
    ({"y": "abc"}, "wrong_type", "decode"),
]
POISON = {
    "regressor": [*FEATURES, *TARGET],
    "outputs": [
        *FEATURES,
        *TARGET,
        ({"z": -1e60}, "out_of_range", "validate"),
        ({"z": None}, "partial_target", "decode"),
        ({"y": None, "z": "abc"}, "wrong_type", "decode"),
    ],
    "classifier": [
        *FEATURES,
        ({"label": "enormous"}, "unknown_class", "validate"),
        ({"label": "Low"}, "unknown_class", "validate"),
        ({"label": 3}, "unknown_class", "validate"),
        ({"label": "l" * 257}, "out_of_range", "decode"),
    ],
}
ARGUMENTS = {"classifier": {"classes": ("some", "low", "high")}}
SOUND = {kind: [event(kind, i) for i in range(N)] for kind in KINDS}


@cache
def twin(kind):
    """The digest of a model that never saw a bad record; the same in all formats."""
    line = pipeline(kind, **ARGUMENTS.get(kind, {}))
    run(line, stream_of(SOUND[kind], "jsonl"))
    return line.model.state_digest()


@pytest.mark.parametrize("case", pairwise_cases(kind=KINDS, format=FORMATS, place=PLACES))
def test_what_is_not_learned_leaves_not_one_bit(case):
    kind, place = case["kind"], PLACES[case["place"]]
    bad = [{**event(kind, 7), **instead} for instead, *_ in POISON[kind]]
    none = dict.fromkeys(TARGETS[kind])
    new = {"c": "violet"} if place else {}
    idle = [{**event(kind, 7), **none, **new}, {**event(kind, 7), "w": 0, **new}]
    sound = SOUND[kind]
    for sizes in ([1], ()):
        line = pipeline(kind, **ARGUMENTS.get(kind, {}))
        said = run(line, stream_of([*sound[:place], *bad, *idle, *sound[place:]], case["format"], sizes))
        assert said.letters == [(place + i, reason, stage) for i, (_, reason, stage) in enumerate(POISON[kind])]
        assert said.outcomes["predicted_only"] == len(idle)
        assert line.model.state_digest() == twin(kind)
        if sizes:  # one by one, so that each has to answer for itself
            assert len(set(said.digests[max(place - 1, 0) : place + len(bad)])) == 1


NO_POISON = [
    *[{"a": None}, {"a": True}, {"c": None}, {"c": ""}, {"c": False}, {"c": 7}, {"c": "violet"}],
    *[{"t": None}, {"t": 0}, {"t": "2026-02-28"}, {"w": None}, {"w": True}],
    {"a": None, "b": None, "c": None, "t": None, "w": None},
]


@pytest.mark.parametrize(("kind", "format"), list(zip(KINDS, FORMATS, strict=True)))
def test_what_is_missing_or_can_be_read_is_no_poison(kind, format):
    for place in (0, 20, N):
        records = list(SOUND[kind])
        records[place:place] = [{**event(kind, 7), **instead} for instead in NO_POISON]
        line = pipeline(kind, **ARGUMENTS.get(kind, {}))
        said = run(line, stream_of(records, format))
        assert said.letters == []
        assert said.outcomes["learned"] == len(records)
        assert "c=violet" in line.model.feature_names
