"""One round: a stream of sound and broken records through reader and pipeline, and what must hold of it.

A round follows from its plan and its content alone, so one that failed can be kept and played again.
"""

import base64
import json
import math
import random
import tempfile
from bisect import bisect_right
from collections import Counter
from dataclasses import asdict, dataclass, replace
from itertools import pairwise
from pathlib import Path
from typing import NamedTuple

import numpy as np
import pyarrow as pa

from streammoe.errors import REASONS, SourceError
from streammoe.pipeline.dead_letters import DeadLetterFile, read_letter
from streammoe.ports import Batch
from streammoe_connectors.formats.records import RecordReader
from tests.fuzz.mutations import mutated, mutated_table, rows_of, sound_lines
from tests.unit.connectors.kafka_records import record as kafka_record
from tests.unit.connectors.kafka_records import values_of
from tests.unit.pipeline.streams import TARGETS, event, pipeline

WAYS = ("csv stream", "jsonl stream", "csv topic", "jsonl topic", "tables")
MOST_RECORDS = 20_000
FIRST_SOUND = 12
"""Sound records near the beginning, which hold every class."""


@dataclass(frozen=True)
class Plan:
    """All that shapes a round but what is read."""

    way: str
    kind: str
    columns: str
    """``listed``, ``first`` (the first good record says) or ``late``."""
    seed: str
    """Of all cuts."""
    size: int
    """Bytes in a block; of topics and tables there are some hundred bytes in a record."""
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
        return "arrow" if self.way == "tables" else self.way.split()[0]


class Line(NamedTuple):
    """A record that was written, with its line end where it has one."""

    octets: bytes
    sound: bool


class Found(NamedTuple):
    """What became of a round."""

    records: int
    outcomes: Counter
    reasons: Counter
    stopped: bool
    """By a header that cannot be used."""


class BrokenError(AssertionError):
    """Something did not hold."""


def require(holds, what):
    if not holds:
        raise BrokenError(what)


# --- making ---------------------------------------------------------------------------------------------------------


def planned(seed, number):
    rng = random.Random(f"{seed}:{number}:plan")
    limit = rng.choice((300, 4096, 1 << 20))
    size = rng.choice((64, 900, 9_000, 9_000, 1 << 16, 1 << 16, 1 << 18, 1 << 20, 1 << 20))
    return Plan(
        way=rng.choice(WAYS),
        kind=rng.choice(tuple(TARGETS)),
        columns=rng.choice(("listed", "first", "late")),
        seed=f"{seed}:{number}:cuts",
        size=min(size, 64 * limit),  # a block of very many records that are too long takes long
        limit=limit,
        classes=rng.random() < 0.3,
    )


_LINES = {}


def written(plan, seed, number):
    """The lines of a stream; of a csv one the first is its header."""
    rng = random.Random(f"{seed}:{number}:lines")
    key = plan.kind, plan.format
    if key not in _LINES:
        _LINES[key] = sound_lines(*key)
    usual = _LINES[key]
    share = rng.choice((0.01, 0.1, 0.3, 0.8))
    end = rng.choice((b"\n", b"\n", b"\r\n")) if "stream" in plan.way else b""
    lines = []
    if plan.way == "csv stream":
        header = header_of(plan.kind)
        changed = rng.random() < 0.05
        lines.append(Line((mutated(header, rng, usual) if changed else header) + end, not changed))
    lines += [Line(mutated(usual[0], rng, usual) + end, False) for _ in range(rng.choice((0, 0, 1, 3)))]
    lines += [Line(line + end, True) for line in usual[:FIRST_SOUND]]
    for _ in range(plan.records):
        line = rng.choice(usual)
        if rng.random() < share:
            octets = mutated(line, rng, usual) + end
            lines.append(Line(octets, octets == line + end))
        else:
            lines.append(Line(line + end, True))
    if end and rng.random() < 0.5:
        lines[-1] = lines[-1]._replace(octets=lines[-1].octets.removesuffix(end))
    return lines


def header_of(kind):
    return ",".join(event(kind, 0)).encode()


# --- reading --------------------------------------------------------------------------------------------------------


class Dripping:
    """Bytes that come in pieces of any size."""

    def __init__(self, content, rng, most):
        self._content = content
        self._rng = rng
        self._most = most
        self._at = 0

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


def batches_of(plan, lines):
    """The batches that the daemon would get."""
    rng = random.Random(plan.seed)
    size = plan.size
    if "stream" in plan.way:
        content = b"".join(line.octets for line in lines)
        reader = RecordReader(
            Dripping(content, rng, size),
            name="fuzz",
            format=plan.format,
            block_bytes=size,
            max_record_bytes=plan.limit,
            start=0,
            place={"path": "fuzz"},
        )
        while not reader.done:
            batch = reader.next()
            if batch is not None:
                yield batch
        require(reader.offset == len(content), f"read {reader.offset} bytes of {len(content)}")
        return
    columns = tuple(event(plan.kind, 0)) if plan.format == "csv" else None
    values = values_of(format=plan.format, **({"columns": list(columns)} if columns else {}))
    first = 0
    while first < len(lines):
        some = lines[first : first + rng.randint(1, max(1, size // 100))]
        block = values.block([kafka_record(line.octets) for line in some])
        require(not block.refused, "values of these formats are judged by the decoders alone")
        yield Batch(block.block, block.ends, plan.format, columns, "fuzz", _place_from(first), {})
        first += len(some)


def _place_from(first):
    return lambda i: {"offset": first + i}


# --- rounds ---------------------------------------------------------------------------------------------------------


def line_for(plan):
    """A pipeline with everything bounded, so that limits are met."""
    names = tuple(name for name in event(plan.kind, 0) if name not in {"w", *TARGETS[plan.kind]})
    schema = (
        {"features": names} if plan.columns == "listed" else {"late_columns": plan.columns == "late", "max_columns": 9}
    )
    arguments = {"max_levels": 5}
    if plan.kind == "classifier":
        arguments |= {"classes": ("low", "some", "high")} if plan.classes else {"max_classes": 8}
    return pipeline(plan.kind, schema=schema, **arguments)


def play(plan, lines):
    """Play lines as a stream or as a topic.

    Raises:
        BrokenError: something did not hold.
    """
    line, total, judged, stopped = line_for(plan), _Total(), [], False
    try:
        judged.extend((batch, total.take(line, batch)) for batch in batches_of(plan, lines))
    except SourceError:
        # Of what records hold, only a header may stop the daemon.
        require(plan.way == "csv stream" and not lines[0].sound, "stopped, and the header is sound")
        stopped = True
    if not stopped and (plan.way != "csv stream" or lines[0].sound):
        _require_sound(plan, lines, judged)
    _require_twin(plan, line, [_accepted(batch, bad) for batch, bad in judged], total)
    return total.found(stopped)


def play_tables(plan, seed, number):
    """The same of tables, which are made here: they are no bytes that could be kept."""
    rng = random.Random(f"{seed}:{number}:tables")
    share = rng.choice((0.01, 0.1, 0.5))
    line, total, accepted, first = line_for(plan), _Total(), [], 0
    known = [event(plan.kind, i) for i in range(300)]
    while first < plan.records:
        size = rng.randint(1, max(1, plan.size // 100))
        events = [known[i % 300] for i in range(first, first + size)]
        if first:
            table, sound = mutated_table(events, rng, share)
        else:
            table, sound = pa.Table.from_pylist(events).to_batches()[0], np.ones(size, np.bool_)
        batch = Batch(
            b"", np.empty(0, np.int64), "arrow", tuple(table.schema.names), "fuzz", _place_from(first), {}, table=table
        )
        bad = total.take(line, batch)
        require(not (bad & sound).any(), f"a sound row of {first}… was refused")
        accepted.append(replace(batch, table=rows_of(table, np.flatnonzero(~bad))))
        first += size
    _require_twin(plan, line, accepted, total)
    return total.found(stopped=False)


class _Total:
    """What became of all batches so far."""

    def __init__(self):
        self.records = 0
        self.outcomes = Counter()
        self.reasons = Counter()
        self.letters = []

    def take(self, line, batch):
        """Process a batch; returns which of its records were refused."""
        done = line.process(batch)
        read = len(batch) + batch.skipped
        require(done.outcomes.total() == read, f"read {read} records, and {dict(done.outcomes)} became of them")
        require(done.outcomes["rejected"] == len(done.letters) == int(done.bad.sum()), "refused ones have no letters")
        require(set(done.reasons) <= set(REASONS), f"{set(done.reasons) - set(REASONS)} are no reasons")
        require(line.model.is_finite(), "the model is not finite")
        self.records += read
        self.outcomes.update(done.outcomes)
        self.reasons.update(done.reasons)
        self.letters += done.letters
        return done.bad

    def found(self, stopped):
        _require_letters(self.letters)
        return Found(self.records, self.outcomes, self.reasons, stopped)


def _accepted(batch, bad):
    """The same batch without the records that were refused."""
    kept = [
        batch.block[start:stop] for (start, stop), out in zip(pairwise([0, *batch.ends]), bad, strict=True) if not out
    ]
    ends = np.cumsum([len(octets) for octets in kept], dtype=np.int64)
    return replace(batch, block=b"".join(kept), ends=ends, too_long=False)


def _alike(found, expected):
    """Whether two scores agree, up to the rounding of sums that are taken batch by batch."""
    if isinstance(expected, dict):
        return found.keys() == expected.keys() and all(_alike(found[name], expected[name]) for name in expected)
    if isinstance(expected, list):
        return len(found) == len(expected) and all(map(_alike, found, expected))
    return found == expected or math.isclose(found, expected, rel_tol=1e-9)


def _require_twin(plan, line, accepted, total):
    """A model that never saw what was refused is the same to the last bit."""
    twin, learned = line_for(plan), Counter()
    for batch in accepted:
        done = twin.process(batch)
        require(not done.letters, f"accepted among others, refused by itself: {done.letters[:1]}")
        learned.update(done.outcomes)
    for outcome in ("learned", "predicted_only"):
        require(
            learned[outcome] == total.outcomes[outcome], f"{outcome}: {total.outcomes}, without the refused {learned}"
        )
    if learned["learned"]:
        require(
            line.model.state_digest() == twin.model.state_digest(), "refused records have left a trace in the model"
        )
        require(_alike(line.scores.to_json(), twin.scores.to_json()), "refused records have left a trace in the scores")


def _require_sound(plan, lines, judged):
    """Each sound record was accepted; in csv an open quote may have taken it up."""
    verdicts, spans = {}, []
    for batch, bad in judged:
        for i, ((start, stop), refused) in enumerate(zip(pairwise([0, *batch.ends]), bad.tolist(), strict=True)):
            at = batch.place(i)["offset"]
            verdicts[at] = (batch.block[start:stop], refused)
            spans.append((at, batch.block[start:stop]))
    spans.sort()
    begins = [at for at, _ in spans]
    at = 0
    for number, line in enumerate(lines):
        begin, at = at, at + (1 if "topic" in plan.way else len(line.octets))
        if not line.sound or (number == 0 and plan.way == "csv stream") or len(line.octets) > plan.limit:
            continue
        own = verdicts.get(begin)
        if own is not None and own[0].rstrip(b"\r\n") == line.octets.rstrip(b"\r\n"):
            require(not own[1], f"refused although it is sound: {line.octets!r}")
            continue
        taken_by = spans[bisect_right(begins, begin) - 1] if begins else (0, b"")
        inside = taken_by[0] <= begin < taken_by[0] + len(taken_by[1])
        require(
            plan.way == "csv stream" and inside and b'"' in taken_by[1], f"lost although it is sound: {line.octets!r}"
        )


def _require_letters(letters):
    """Each letter comes back from its file as it was written."""
    some = letters[:50]
    with tempfile.TemporaryDirectory() as folder:
        file = DeadLetterFile(Path(folder) / "letters.jsonl")
        file.write(some)
        file.flush()
        file.close()
        back = [read_letter(line) for line in (Path(folder) / "letters.jsonl").read_bytes().splitlines()]
    require([each and each.record for each in back] == [each.record for each in some], "a letter cannot be read back")


# --- keeping --------------------------------------------------------------------------------------------------------


def shrunk(plan, lines, *, tries=300):
    """Fewer lines of a round that breaks, such that it still does."""
    head = 1 if plan.way == "csv stream" else 0
    size = max(len(lines) // 2, 1)
    while size and tries:
        at = head
        while at < len(lines) and tries:
            tries -= 1
            fewer = lines[:at] + lines[at + size :]
            if breaks(plan, fewer):
                lines = fewer
            else:
                at += size
        size //= 2
    return lines


def breaks(plan, lines):
    """What goes wrong, or ``None``."""
    try:
        play(plan, lines)
    except Exception as error:  # noqa: BLE001 - whatever it is, it should not have come
        return f"{type(error).__name__}: {error}"
    return None


def kept(plan, lines, why):
    """A round as text, to be kept."""
    body = [[base64.b64encode(line.octets).decode(), line.sound] for line in lines]
    return json.dumps({"why": why, "plan": asdict(plan), "lines": body}, indent=1) + "\n"


def restored(text):
    """The plan and lines of a round that was kept."""
    entry = json.loads(text)
    return Plan(**entry["plan"]), [Line(base64.b64decode(octets), sound) for octets, sound in entry["lines"]]
