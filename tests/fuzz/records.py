"""Rounds of streams with sound and broken records through reader and pipeline, until the time is up.

A round follows from its plan, that is from a seed and a number: `--seed` and `--first` play it again.
"""

import argparse
import logging
import math
import random
import sys
import time
from bisect import bisect_right
from collections import Counter
from dataclasses import replace
from itertools import pairwise
from typing import NamedTuple

import numpy as np

from streammoe.errors import REASONS, SourceError
from streammoe_connectors.formats.records import RecordReader
from tests.fuzz.mutations import line_of, mutated
from tests.unit.pipeline.streams import TARGETS, event, pipeline

MOST_RECORDS = 20_000
EVENTS = {kind: [event(kind, i) for i in range(300)] for kind in TARGETS}


class Plan(NamedTuple):
    """All that shapes a round but what is read."""

    format: str
    kind: str
    columns: str
    """``listed``, ``first`` (the first good record says) or ``late``."""
    seed: str
    """Of records and cuts."""
    size: int
    """Bytes in a block."""
    limit: int
    """``source.max_record_bytes``"""
    classes: bool
    """Whether a classifier knows them ahead."""

    @property
    def records(self):
        """How many to play: small blocks take long."""
        return min(MOST_RECORDS, 4 * self.size)


class Line(NamedTuple):
    """A record that was written, with its line end where it has one."""

    octets: bytes
    sound: bool


# --- making ---------------------------------------------------------------------------------------------------------


def planned(seed, number):
    rng = random.Random(f"{seed}:{number}:plan")
    limit = rng.choice((300, 4096, 1 << 20))
    size = rng.choice((64, 900, 9_000, 9_000, 1 << 16, 1 << 16, 1 << 18, 1 << 20, 1 << 20))
    return Plan(
        format=rng.choice(("csv", "jsonl")),
        kind=rng.choice(tuple(TARGETS)),
        columns=rng.choice(("listed", "first", "late")),
        seed=f"{seed}:{number}",
        size=min(size, 64 * limit),  # a block of very many records that are too long takes long
        limit=limit,
        classes=rng.random() < 0.3,
    )


def written(plan):
    """The lines of a stream; in csv the first is its header."""
    rng = random.Random(f"{plan.seed}:lines")
    usual = [line_of(held, plan.format) for held in EVENTS[plan.kind]]
    share = rng.choice((0.01, 0.1, 0.3, 0.8))
    end = rng.choice((b"\n", b"\n", b"\r\n"))
    lines = []

    def write(line, mutate=True):
        octets = (mutated(line, rng, usual) if mutate else line) + end
        lines.append(Line(octets, octets == line + end))

    if plan.format == "csv":
        write(",".join(EVENTS[plan.kind][0]).encode(), rng.random() < 0.05)
    for _ in range(rng.choice((0, 0, 1, 3))):
        write(usual[0])
    for line in usual[:12]:  # they hold every class
        write(line, mutate=False)
    for _ in range(plan.records):
        write(rng.choice(usual), rng.random() < share)
    if rng.random() < 0.5:
        lines[-1] = lines[-1]._replace(octets=lines[-1].octets.removesuffix(end))
    return lines


# --- reading --------------------------------------------------------------------------------------------------------


class Dripping:
    """Bytes that come in pieces of any size."""

    def __init__(self, content, rng, most):
        self._content, self._rng, self._most, self._at = content, rng, most, 0

    @property
    def at_eof(self):
        return self._at == len(self._content)

    def read(self, count):
        data = self._content[self._at : self._at + min(count, self._rng.randint(1, self._most))]
        self._at += len(data)
        return data

    def skip(self, count):
        return len(self.read(count))

    def close(self):
        pass


def batches_of(plan, lines):
    """The batches of a stream that the daemon would get."""
    content = b"".join(line.octets for line in lines)
    source = Dripping(content, random.Random(f"{plan.seed}:cuts"), plan.size)
    limits = {"block_bytes": plan.size, "max_record_bytes": plan.limit}
    reader = RecordReader(source, name="fuzz", format=plan.format, start=0, location={"path": "fuzz"}, **limits)
    while not reader.exhausted:
        batch = reader.next()
        if batch is not None:
            yield batch
    assert reader.offset == len(content)


# --- rounds ---------------------------------------------------------------------------------------------------------


class Round:
    """A pipeline with everything bounded, so that limits are met, and what becomes of batches."""

    def __init__(self, plan):
        self.plan = plan
        self.outcomes, self.judged = Counter(), []
        self.line = self._line()

    def _line(self):
        plan = self.plan
        names = tuple(name for name in EVENTS[plan.kind][0] if name not in {"w", *TARGETS[plan.kind]})
        listed = {"features": names}
        schema = listed if plan.columns == "listed" else {"late_columns": plan.columns == "late", "max_columns": 9}
        arguments = {"max_levels": 5}
        if plan.kind == "classifier":
            arguments |= {"classes": ("low", "some", "high")} if plan.classes else {"max_classes": 8}
        return pipeline(plan.kind, schema=schema, **arguments)

    def take(self, batch):
        """Process a batch."""
        done = self.line.process(batch)
        read = len(batch) + batch.skipped
        assert done.outcomes.total() == read, f"read {read} records, and {dict(done.outcomes)} became of them"
        assert done.outcomes["rejected"] == len(done.letters) == int(done.bad.sum())
        assert set(done.reasons) <= set(REASONS)
        assert self.line.model.is_finite()
        self.outcomes.update(done.outcomes)
        self.judged.append((batch, done.bad))

    def play(self, lines):
        may_stop = self.plan.format == "csv" and not lines[0].sound
        try:
            for batch in batches_of(self.plan, lines):
                self.take(batch)
        except SourceError:
            assert may_stop, "of what records hold, only a header may stop the daemon"
        if not may_stop:
            self._check_sound_ones(lines)
        self._check_twin()
        return self

    def _check_sound_ones(self, lines):
        """Each sound record was accepted; in csv an open quote may have taken it up."""
        verdicts, spans = {}, []
        for batch, bad in self.judged:
            for i, ((start, stop), rejected) in enumerate(zip(pairwise([0, *batch.ends]), bad.tolist(), strict=True)):
                at = batch.location(i)["offset"]
                verdicts[at] = (batch.block[start:stop], rejected)
                spans.append((at, batch.block[start:stop]))
        spans.sort()
        begins = [at for at, _ in spans]
        at, is_csv = 0, self.plan.format == "csv"
        for number, line in enumerate(lines):
            begin, at = at, at + len(line.octets)
            if not line.sound or (number == 0 and is_csv) or len(line.octets) > self.plan.limit:
                continue
            octets, rejected = verdicts.get(begin, (None, False))
            if octets is not None and octets.rstrip(b"\r\n") == line.octets.rstrip(b"\r\n"):
                assert not rejected, f"rejected although it is sound: {line.octets!r}"
                continue
            start, taken = spans[bisect_right(begins, begin) - 1] if begins else (0, b"")
            is_inside = is_csv and b'"' in taken and start <= begin < start + len(taken)
            assert is_inside, f"lost although it is sound: {line.octets!r}"

    def _check_twin(self):
        """A model that never saw what was rejected is the same to the last bit."""
        twin, outcomes = self._line(), Counter()
        for batch, bad in self.judged:
            done = twin.process(accepted(batch, bad))
            assert not done.letters, f"accepted among others, rejected alone: {done.letters[:1]}"
            outcomes.update(done.outcomes)
        for outcome in ("learned", "predicted_only"):
            assert outcomes[outcome] == self.outcomes[outcome], outcome
        if outcomes["learned"]:
            assert self.line.model.state_digest() == twin.model.state_digest(), "a trace in the model"


def accepted(batch, bad):
    """The same batch without the records that were rejected."""
    spans = zip(pairwise([0, *batch.ends]), bad, strict=True)
    kept = [batch.block[start:stop] for (start, stop), out in spans if not out]
    ends = np.cumsum([len(octets) for octets in kept], dtype=np.int64)
    return replace(batch, block=b"".join(kept), ends=ends, too_long=False)


def fuzz(seed, *, first=0, seconds=math.inf, rounds=math.inf):
    """Play so many rounds, or for so long; returns what became of the records, and what went wrong."""
    started = time.monotonic()
    number, outcomes, failures = first, Counter(), []
    while number < first + rounds and time.monotonic() - started < seconds:
        plan = planned(seed, number)
        try:
            outcomes += Round(plan).play(written(plan)).outcomes
        except Exception as error:  # noqa: BLE001 - no error at all should come
            failures.append(f"--seed {seed} --first {number}: {type(error).__name__}: {error}; {plan}")
            print(failures[-1][:5000], flush=True)
        number += 1
    return outcomes, failures


def main():
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--seconds", type=float, default=600.0)
    parser.add_argument("--seed", type=int, default=int(time.time()))
    parser.add_argument("--first", type=int, default=0, help="number of the first round")
    options = parser.parse_args()
    print(f"--seed {options.seed}", flush=True)
    logging.disable(logging.WARNING)  # models and pipelines have much to say of such input
    outcomes, failures = fuzz(options.seed, first=options.first, seconds=options.seconds)
    print(", ".join(f"{outcome} {count:,}" for outcome, count in outcomes.most_common()))
    print(f"{len(failures)} rounds failed")
    sys.exit(bool(failures))


if __name__ == "__main__":
    main()
