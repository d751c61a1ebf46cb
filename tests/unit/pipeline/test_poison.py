"""Whatever a record holds, in whatever format: it is refused with its reason and leaves no bit, or it is no poison.

Each value of the tables comes in a record of its own, at several places of a stream, and the model is compared with a
twin that never saw it.
"""

import math
from functools import cache
from typing import NamedTuple

import pytest

from tests.unit.pipeline.streams import FORMATS, KINDS, TARGETS, WARM_UP, event, pipeline, run, stream_of

N = 70
PLACES = {"first": 0, "second": 1, "in warm-up": 20, "before its end": WARM_UP - 1, "after it": WARM_UP, "last": N}


class Bad(NamedTuple):
    """What a record holds instead, and why it is refused; by format where that depends on it."""

    instead: dict
    reason: str | dict[str, str]
    stage: str = "decode"


def of_text(reason):
    """A text in csv is read as what it says; elsewhere text is text."""
    return {"csv": reason, "jsonl": "wrong_type", "arrow": "wrong_type"}


NUMBERS = {
    "nan": (math.nan, "not_finite", "decode"),
    "inf": (math.inf, "not_finite", "decode"),
    "-inf": (-math.inf, "not_finite", "decode"),
    "1e300": (1e300, "out_of_range", "validate"),
    "-1e60": (-1e60, "out_of_range", "validate"),
    "beyond range_factor": (1e9, "out_of_range", "validate"),
    "string": ("abc", "wrong_type", "decode"),
    "NA": ("NA", "wrong_type", "decode"),
    "text of a nan": ("nan", "not_finite", "decode"),
    "text of too much": ("1e400", of_text("out_of_range"), "decode"),
    "list": ([1.0], "wrong_type", "decode"),
    "object": ({"is": 1.0}, "wrong_type", "decode"),
}
FEATURES = {
    **{f"a: {name}": Bad({"a": value}, reason, stage) for name, (value, reason, stage) in NUMBERS.items()},
    "c: list": Bad({"c": ["red"]}, {"csv": "", "jsonl": "wrong_type", "arrow": "wrong_type"}),
    "c: object": Bad({"c": {"is": "red"}}, {"csv": "", "jsonl": "wrong_type", "arrow": "wrong_type"}),
    "c: nan": Bad({"c": math.nan}, {"csv": "", "jsonl": "not_finite", "arrow": "not_finite"}),
    "c: long": Bad({"c": "r" * 257}, "out_of_range"),
    "t: yesterday": Bad({"t": "yesterday"}, "wrong_type"),
    "t: nan": Bad({"t": math.nan}, "not_finite"),
    "t: inf": Bad({"t": -math.inf}, "not_finite"),
    "t: 1e300": Bad({"t": 1e300}, "out_of_range", "validate"),
    "t: milliseconds": Bad({"t": 1.8e12}, "out_of_range", "validate"),
    "t: boolean": Bad({"t": True}, "wrong_type"),
    "t: list": Bad({"t": [1]}, "wrong_type"),
    "w: negative": Bad({"w": -1.0}, "out_of_range"),
    "w: too much": Bad({"w": 1e6 + 1}, "out_of_range"),
    "w: nan": Bad({"w": math.nan}, "not_finite"),
    "w: inf": Bad({"w": math.inf}, "not_finite"),
    "w: string": Bad({"w": "heavy"}, "wrong_type"),
    "w: list": Bad({"w": [1.0]}, "wrong_type"),
    "w: object": Bad({"w": {}}, "wrong_type"),
    # One that names its class, or is learned with its weight, would still bring a level.
    "level and weight": Bad({"c": "violet", "w": -1.0}, "out_of_range"),
    "level and range": Bad({"c": "violet", "a": 1e300}, "out_of_range", "validate"),
}
ONE_OUTPUT = {f"y: {name}": Bad({"y": value}, reason, stage) for name, (value, reason, stage) in NUMBERS.items()}
UNKNOWN = {"csv": "unknown_class", "jsonl": "not_finite", "arrow": "not_finite"}
NO_LABEL = {"csv": "unknown_class", "jsonl": "wrong_type", "arrow": "wrong_type"}
STAGES = {"unknown_class": "validate"}
POISON = {
    "regressor": {**FEATURES, **ONE_OUTPUT},
    "outputs": {
        **FEATURES,
        **ONE_OUTPUT,
        **{f"z: {name}": Bad({"z": value}, reason, stage) for name, (value, reason, stage) in NUMBERS.items()},
        "only y": Bad({"z": None}, "partial_target"),
        "only z": Bad({"y": None}, "partial_target"),
        "only z, and that is bad": Bad({"y": None, "z": "abc"}, "wrong_type"),
    },
    "classifier": {
        **FEATURES,
        "label: unknown": Bad({"label": "enormous"}, "unknown_class"),
        "label: in other letters": Bad({"label": "Low"}, "unknown_class"),
        "label: number": Bad({"label": 3}, "unknown_class"),
        "label: boolean": Bad({"label": True}, "unknown_class"),
        "label: nan": Bad({"label": math.nan}, UNKNOWN),
        "label: inf": Bad({"label": -math.inf}, UNKNOWN),
        "label: 1e300": Bad(
            {"label": 1e300}, {"csv": "unknown_class", "jsonl": "out_of_range", "arrow": "out_of_range"}
        ),
        "label: long": Bad({"label": "l" * 257}, "out_of_range"),
        "label: list": Bad({"label": ["low"]}, NO_LABEL),
        "label: object": Bad({"label": {"is": "low"}}, NO_LABEL),
    },
}
ARGUMENTS = {"classifier": {"classes": ("some", "low", "high")}}


def reason_in(bad, format):
    return bad.reason if isinstance(bad.reason, str) else bad.reason[format]


def poisoned(kind, format):
    """What is refused in this format, as events, each with its name, reason and stage."""
    found = []
    for name, bad in POISON[kind].items():
        reason = reason_in(bad, format)
        if reason:
            found.append(({**event(kind, 7), **bad.instead}, name, reason, STAGES.get(reason, bad.stage)))
    return found


@cache
def twin(kind):
    """The digest of a model that never saw a bad record; the same in all formats."""
    line = pipeline(kind, **ARGUMENTS.get(kind, {}))
    run(line, stream_of([event(kind, i) for i in range(N)], "jsonl"))
    return line.model.state_digest()


@pytest.mark.sampled(one_in=9)
@pytest.mark.parametrize("place", PLACES.values(), ids=PLACES)
@pytest.mark.parametrize("format", FORMATS)
@pytest.mark.parametrize("kind", KINDS)
def test_poison_is_refused_with_its_reason_and_leaves_not_one_bit(kind, format, place):
    sound = [event(kind, i) for i in range(N)]
    bad = poisoned(kind, format)
    records = [*sound[:place], *(held for held, *_ in bad), *sound[place:]]
    line, whole = (pipeline(kind, **ARGUMENTS.get(kind, {})) for _ in range(2))
    fresh = line.model.state_digest()
    said = run(line, stream_of(records, format, sizes=[1]))
    # One by one, so that each has to answer for itself.
    for i, (_, name, reason, stage) in enumerate(bad):
        assert said.letters[i] == (place + i, reason, stage), name
        assert said.digests[place + i] == (said.digests[place - 1] if place else fresh), name
    assert len(said.letters) == len(bad)
    assert line.model.state_digest() == twin(kind)
    # And all in one batch.
    assert run(whole, stream_of(records, format)).letters == said.letters
    assert whole.model.state_digest() == twin(kind)


NO_POISON = {
    "a: none": {"a": None},
    "a: boolean": {"a": True},
    "c: none": {"c": None},
    "c: empty": {"c": ""},
    "c: boolean": {"c": False},
    "c: number": {"c": 7},
    "c: new": {"c": "violet"},
    "t: none": {"t": None},
    "t: seconds": {"t": 0},
    "t: day": {"t": "2026-02-28"},
    "w: none": {"w": None},
    "w: boolean": {"w": True},
    "everything": {"a": None, "b": None, "c": None, "t": None, "w": None},
}


@pytest.mark.parametrize("format", FORMATS)
@pytest.mark.parametrize("kind", KINDS)
def test_what_is_missing_or_can_be_read_is_no_poison(kind, format):
    harmless = [{**event(kind, 7), **instead} for instead in NO_POISON.values()]
    for place in (0, 20, N):
        records = [event(kind, i) for i in range(N)]
        records[place:place] = harmless
        line = pipeline(kind, **ARGUMENTS.get(kind, {}))
        said = run(line, stream_of(records, format))
        assert said.letters == []
        assert said.outcomes["learned"] == len(records)
        assert "c=violet" in line.model.feature_names


@pytest.mark.sampled(one_in=9)
@pytest.mark.parametrize("format", FORMATS)
@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("place", PLACES.values(), ids=PLACES)
def test_an_event_without_target_or_weight_is_predicted_and_brings_nothing(kind, format, place):
    none = dict.fromkeys(TARGETS[kind])
    new = {"c": "violet"} if place else {}
    idle = [
        {**event(kind, 7), **none, **new},
        {**event(kind, 7), "w": 0, **new},
        {**event(kind, 7), **none, "w": 0.0, "a": 1e5 if place else 0.0},
    ]
    sound = [event(kind, i) for i in range(N)]
    for sizes in ([1], ()):
        line = pipeline(kind, **ARGUMENTS.get(kind, {}))
        said = run(line, stream_of([*sound[:place], *idle, *sound[place:]], format, sizes))
        assert said.letters == []
        assert said.outcomes["predicted_only"] == 3
        assert line.model.state_digest() == twin(kind)
