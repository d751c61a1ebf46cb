"""What does it cost to reject a record of 1 MiB that is as broken as possible?

Each stream has one such record and one valid one, and is passed through reader, decoder and model in a separate
process; time and memory are those in addition to the valid record's.
"""

from __future__ import annotations

import argparse
import json
import logging
import multiprocessing
import resource
import sys
import tempfile
import time
from collections import Counter
from pathlib import Path
from typing import Any

from benchmarks.report import machine, table
from streammoe import MoEClassifier, MoERegressor
from streammoe.errors import SourceError
from streammoe.pipeline.pipeline import Pipeline, Schema
from streammoe.pipeline.scores import ClassificationScores, PrequentialScores
from streammoe_connectors.files.source import FileSource

SECONDS, MEGABYTES = 1.0, 100.0
"""Targets."""
FULL = (1 << 20) - 200
"""Bytes of what is broken; with what stands around it, it is just not too long."""
N = 100_000
HEADER, CSV, JSON = b"a,y\n", b"1,2\n", b'{"a":1,"y":2}\n'
CLASSES = b"".join(b'{"a":1,"y":"k%d"}\n' % i for i in range(10_000))
STREAMS: dict[str, tuple[str, bytes, dict[str, Any]]] = {
    "lists in lists, 100,000 levels": ("jsonl", b'{"a":1,"z":' + b"[" * N + b"]" * N + b"}\n" + JSON, {}),
    "objects in objects, 100,000 levels": ("jsonl", b'{"z":' * N + b"1" + b"}" * N + b"\n" + JSON, {}),
    "open lists": ("jsonl", b"[" * FULL + b"\n" + JSON, {}),
    'open lists and texts, ["["': ("jsonl", b'["' * (FULL // 2) + b"\n" + JSON, {}),
    "backslashes": ("jsonl", b'["' * 200 + b"\\" * (FULL - 400) + b"\n" + JSON, {}),
    "quotes": ("jsonl", b'{"a' + b'"' * FULL + b"\n" + JSON, {}),
    "a number of a million digits": ("jsonl", b'{"a":' + b"9" * FULL + b"}\n" + JSON, {}),
    "a fraction of a million digits": ("jsonl", b'{"a":0.' + b"1" * FULL + b',"y":2}\n' + JSON, {}),
    "50,000 fields, first of all": (
        "jsonl",
        json.dumps({f"field {i}": 1 for i in range(50_000)} | {"y": 1}).encode() + b"\n" + JSON,
        {},
    ),
    "50,000 fields that come late": (
        "jsonl",
        JSON + json.dumps({f"field {i}": 1 for i in range(50_000)} | {"y": 1}).encode() + b"\n",
        {"late_columns": True, "max_columns": 20},
    ),
    "50,000 fields not asked for": (
        "jsonl",
        JSON + json.dumps({f"field {i}": 1 for i in range(50_000)} | {"y": 1}).encode() + b"\n",
        {"features": ("a",)},
    ),
    "a header of 100,000 columns": (
        "csv",
        ",".join(f"c{i}" for i in range(N)).encode() + b",y\n" + b"1," * N + b"1\n",
        {},
    ),
    "the same, one of them asked for": (
        "csv",
        ",".join(f"c{i}" for i in range(N)).encode() + b",y\n" + b"1," * N + b"1\n",
        {"features": ("c1",)},
    ),
    "digits in csv": ("csv", HEADER + b"9" * FULL + b",1\n" + CSV, {}),
    "blanks in csv": ("csv", HEADER + b" " * FULL + b",1\n" + CSV, {}),
    "separators in csv": ("csv", HEADER + b"," * FULL + b"\n" + CSV, {}),
    "quotes in csv": ("csv", HEADER + b'"' * FULL + b"\n" + CSV, {}),
    "an open quote before 250,000 lines": ("csv", HEADER + b'"' + CSV * 250_000, {}),
    "a record of 100 MB": ("jsonl", b"x" * 100_000_000 + b"\n" + JSON, {}),
    "10,000 classes, of which there may be 20": (
        "jsonl",
        b"".join(b'{"a":1,"y":"k%d"}\n' % i for i in range(10_000)),
        {},
    ),
}


def process(name: str) -> str:
    """Read a stream; return the outcomes."""
    form, content, schema = STREAMS[name]
    outcomes: Counter[str] = Counter()
    if "classes" in name:
        line = Pipeline(MoEClassifier(2, warmup=0, max_classes=20), Schema(("y",), **schema), ClassificationScores())
    else:
        line = Pipeline(MoERegressor(2, warmup=0), Schema(("y",), **schema), PrequentialScores())
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / f"a.{form}"
        path.write_bytes(content)
        source = FileSource(FileSource.Settings(kind="file", path=str(path)))
        source.seek(None)
        try:
            while not source.finished:
                batch = source.poll(1.0)
                if batch is not None:
                    done = line.process(batch)
                    outcomes.update(done.reasons)
                    outcomes["learned"] += done.outcomes["learned"]
        except SourceError as error:
            return f"exit {error.exit_code}"
        finally:
            source.close()
    return ", ".join(f"{count:,} {word}" for word, count in sorted(outcomes.items()) if count)


def measured(name: str, answers: Any) -> None:
    """Run in a separate process."""
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    started = time.process_time()
    became = process(name)
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    answers.put((time.process_time() - started, (peak - before) / 1024.0, became))


def main() -> None:
    argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter).parse_args()
    print(machine())
    logging.disable(logging.CRITICAL)
    # Compiled and loaded here once for all of them.
    sound: dict[str, tuple[str, bytes, dict[str, Any]]] = {
        "sound": ("jsonl", JSON * 2, {}),
        "sound csv": ("csv", HEADER + CSV * 2, {}),
        "sound classes": ("jsonl", JSON * 2, {}),
    }
    STREAMS.update(sound)
    for name in sound:
        process(name)
        del STREAMS[name]
    context = multiprocessing.get_context("fork")
    rows, failed = [], 0
    for name, (_, content, _) in STREAMS.items():
        answers = context.SimpleQueue()
        child = context.Process(target=measured, args=(name, answers))
        child.start()
        seconds, megabytes, became = answers.get()
        child.join()
        ok = seconds <= SECONDS * max(1.0, len(content) / (1 << 20) / 10) and megabytes <= MEGABYTES
        failed += not ok
        rows.append([name, len(content) / 1e6, became, seconds, megabytes, "ok" if ok else "MISSED"])
    print(f"\n{table(['stream', 'MB', 'became', 'CPU s', 'MB more', ''], rows)}")
    print(f"\ntargets: {SECONDS:g} s for each (10 MB of stream), {MEGABYTES:g} MB")
    sys.exit(bool(failed))


if __name__ == "__main__":
    main()
