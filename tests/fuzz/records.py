"""Rounds of streams with sound and broken records through reader and pipeline, until the time is up.

A round follows from its plan, that is from a seed and a number: `--seed` and `--first` play it again.
"""

import argparse
import logging
import math
import random
import sys
import tempfile
import time
from bisect import bisect_right
from collections import Counter
from dataclasses import replace
from itertools import pairwise
from pathlib import Path
from typing import NamedTuple

import numpy as np

from streammoe.errors import REASONS, SourceError
from streammoe.pipeline.dead_letters import DeadLetterFile, read_letter
from streammoe.ports import Batch
from streammoe_connectors.formats.records import RecordReader
from tests.fuzz.mutations import line_of, mutated, mutated_table, rows_of
from tests.unit.connectors.kafka_records import record as kafka_record
from tests.unit.connectors.kafka_records import values_of
from tests.unit.pipeline.streams import TARGETS, event, pipeline

WAYS = ("csv stream", "jsonl stream", "csv topic", "jsonl topic", "tables")
MOST_RECORDS = 20_000
EVENTS = {kind: [event(kind, i) for i in range(300)] for kind in TARGETS}


class Plan(NamedTuple):
    """All that shapes a round but what is read."""

    way: str
    kind: str
    columns: str
    """``listed``, ``first`` (the first good record says) or ``late``."""
    seed: str
    """Of records and cuts."""
    size: int
    """Bytes in a block; in topics and tables a record has some hundred bytes."""
    limit: int
    """``source.max_record_bytes``"""
    classes: bool
    """Whether a classifier knows them ahead."""

    @property
    def records(self):
        """How many to play: small blocks take long."""
        return min(MOST_RECORDS, 4 * self.size)

    @property
    def format(self):
        return self.way.split()[0]


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
        way=rng.choice(WAYS),
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
    end = rng.choice((b"\n", b"\n", b"\r\n")) if "stream" in plan.way else b""
    lines = []

    def write(line, mutate=True):
        octets = (mutated(line, rng, usual) if mutate else line) + end
        lines.append(Line(octets, octets == line + end))

    if plan.way == "csv stream":
        write(",".join(EVENTS[plan.kind][0]).encode(), rng.random() < 0.05)
    for _ in range(rng.choice((0, 0, 1, 3))):
        write(usual[0])
    for line in usual[:12]:  # they hold every class
        write(line, mutate=False)
    for _ in range(plan.records):
        write(rng.choice(usual), rng.random() < share)
    if end and rng.random() < 0.5:
        lines[-1] = lines[-1]._replace(octets=lines[-1].octets.removesuffix(end))
    return lines


# --- reading --------------------------------------------------------------------------------------------------------


class Dripping:
    """Bytes that come in pieces of any size."""

    def __init__(self, content, rng, most):
        self._content, self._rng, self._most, self._at = content, rng, most, 0

    @property
    def ended(self):
        return self._at == len(self._content)

    def read(self, count):
        data = self._content[self._at : self._at + min(count, self._rng.randint(1, self._most))]
        self._at += len(data)
        return data

    def skip(self, count):
        return len(self.read(count))

    def close(self):
        pass


def place_from(first):
    return lambda i: {"offset": first + i}


def batches_of(plan, lines):
    """The batches of a stream or a topic that the daemon would get."""
    rng = random.Random(f"{plan.seed}:cuts")
    if "stream" in plan.way:
        content = b"".join(line.octets for line in lines)
        limits = {"block_bytes": plan.size, "max_record_bytes": plan.limit}
        source = Dripping(content, rng, plan.size)
        reader = RecordReader(source, name="fuzz", format=plan.format, start=0, place={"path": "fuzz"}, **limits)
        while not reader.done:
            batch = reader.next()
            if batch is not None:
                yield batch
        assert reader.offset == len(content)
        return
    columns = tuple(EVENTS[plan.kind][0]) if plan.format == "csv" else None
    values = values_of(format=plan.format, **({"columns": list(columns)} if columns else {}))
    first = 0
    while first < len(lines):
        some = lines[first : first + rng.randint(1, max(1, plan.size // 100))]
        block = values.block([kafka_record(line.octets) for line in some])
        assert not block.refused, "values of these formats are judged by the decoders alone"
        yield Batch(block.block, block.ends, plan.format, columns, "fuzz", place_from(first), {})
        first += len(some)


def tables_of(plan):
    """Batches of tables, each with which of its rows are sound."""
    rng = random.Random(f"{plan.seed}:tables")
    share, first, known = rng.choice((0.01, 0.1, 0.5)), 0, EVENTS[plan.kind]
    while first < plan.records:
        size = rng.randint(1, max(1, plan.size // 100))
        table, sound = mutated_table([known[i % 300] for i in range(first, first + size)], rng, share if first else 0.0)
        names = tuple(table.schema.names)
        yield Batch(b"", np.empty(0, np.int64), "arrow", names, "fuzz", place_from(first), {}, table=table), sound
        first += size


# --- rounds ---------------------------------------------------------------------------------------------------------


class Round:
    """A pipeline with everything bounded, so that limits are met, and what becomes of batches."""

    def __init__(self, plan):
        self.plan = plan
        self.records = 0
        self.stopped = False
        """By a header that cannot be used."""
        self.outcomes, self.reasons, self.letters, self.judged = Counter(), Counter(), [], []
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
        """Process a batch; returns which of its records were rejected."""
        done = self.line.process(batch)
        read = len(batch) + batch.skipped
        assert done.outcomes.total() == read, f"read {read} records, and {dict(done.outcomes)} became of them"
        assert done.outcomes["rejected"] == len(done.letters) == int(done.bad.sum())
        assert set(done.reasons) <= set(REASONS)
        assert self.line.model.is_finite()
        self.records += read
        self.outcomes.update(done.outcomes)
        self.reasons.update(done.reasons)
        self.letters += done.letters
        self.judged.append((batch, done.bad))
        return done.bad

    def play(self, lines):
        plan = self.plan
        if plan.way == "tables":
            for batch, sound in tables_of(plan):
                assert not (self.take(batch) & sound).any(), "a sound row was rejected"
        else:
            try:
                for batch in batches_of(plan, lines):
                    self.take(batch)
            except SourceError:
                # Of what records hold, only a header may stop the daemon.
                assert plan.way == "csv stream"
                assert not lines[0].sound
                self.stopped = True
            if not self.stopped and (plan.way != "csv stream" or lines[0].sound):
                self._check_sound_ones(lines)
        self._check_twin()
        self._check_letters()
        return self

    def _check_sound_ones(self, lines):
        """Each sound record was accepted; in csv an open quote may have taken it up."""
        verdicts, spans = {}, []
        for batch, bad in self.judged:
            for i, ((start, stop), rejected) in enumerate(zip(pairwise([0, *batch.ends]), bad.tolist(), strict=True)):
                at = batch.place(i)["offset"]
                verdicts[at] = (batch.block[start:stop], rejected)
                spans.append((at, batch.block[start:stop]))
        spans.sort()
        begins = [at for at, _ in spans]
        at, is_csv = 0, self.plan.way == "csv stream"
        for number, line in enumerate(lines):
            begin, at = at, at + (1 if "topic" in self.plan.way else len(line.octets))
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
            assert not done.letters, f"accepted among others, rejected by itself: {done.letters[:1]}"
            outcomes.update(done.outcomes)
        for outcome in ("learned", "predicted_only"):
            assert outcomes[outcome] == self.outcomes[outcome], outcome
        if outcomes["learned"]:
            assert self.line.model.state_digest() == twin.model.state_digest(), "a trace in the model"
            assert alike(self.line.scores.to_json(), twin.scores.to_json()), "a trace in the scores"

    def _check_letters(self):
        """Each letter comes back from its file as it was written."""
        some = self.letters[:50]
        with tempfile.TemporaryDirectory() as folder:
            path = Path(folder) / "letters.jsonl"
            file = DeadLetterFile(path)
            file.write(some)
            file.flush()
            file.close()
            back = [read_letter(line) for line in path.read_bytes().splitlines()]
        assert [each and each.record for each in back] == [each.record for each in some]


def accepted(batch, bad):
    """The same batch without the records that were rejected."""
    if batch.table is not None:
        return replace(batch, table=rows_of(batch.table, np.flatnonzero(~bad)))
    spans = zip(pairwise([0, *batch.ends]), bad, strict=True)
    kept = [batch.block[start:stop] for (start, stop), out in spans if not out]
    ends = np.cumsum([len(octets) for octets in kept], dtype=np.int64)
    return replace(batch, block=b"".join(kept), ends=ends, too_long=False)


def alike(found, expected):
    """Whether two scores agree, up to the rounding of sums that are taken batch by batch."""
    if isinstance(expected, dict):
        return found.keys() == expected.keys() and all(alike(found[name], expected[name]) for name in expected)
    if isinstance(expected, list):
        return len(found) == len(expected) and all(map(alike, found, expected))
    return found == expected or math.isclose(found, expected, rel_tol=1e-9)


def fuzz(seed, *, first=0, seconds=math.inf, rounds=math.inf):
    """Play so many rounds, or for so long; returns how many records were read, and what went wrong."""
    started = time.monotonic()
    records, number, outcomes, reasons, failures = 0, first, Counter(), Counter(), []
    while number < first + rounds and time.monotonic() - started < seconds:
        plan = planned(seed, number)
        lines = [] if plan.way == "tables" else written(plan)
        try:
            played = Round(plan).play(lines)
        except Exception as error:  # noqa: BLE001 - no error at all should come
            failures.append(f"--seed {seed} --first {number}: {type(error).__name__}: {error}; {plan}")
            print(failures[-1][:5000], flush=True)
        else:
            records += played.records
            outcomes.update(played.outcomes, stopped=int(played.stopped))
            reasons.update(played.reasons)
        number += 1
    print(f"{records:,} records in {number - first} rounds, {records / (time.monotonic() - started):,.0f}/s")
    for name, counts in (("became", outcomes), ("rejected", reasons)):
        print(f"{name}: " + ", ".join(f"{word} {count:,}" for word, count in counts.most_common()))
    return records, failures


def main():
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--seconds", type=float, default=600.0)
    parser.add_argument("--seed", type=int, default=int(time.time()))
    parser.add_argument("--first", type=int, default=0, help="number of the first round")
    options = parser.parse_args()
    print(f"--seed {options.seed}", flush=True)
    logging.disable(logging.WARNING)  # models and pipelines have much to say of such input
    _, failures = fuzz(options.seed, first=options.first, seconds=options.seconds)
    print(f"{len(failures)} rounds failed")
    sys.exit(bool(failures))


if __name__ == "__main__":
    main()
