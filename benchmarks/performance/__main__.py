"""How long does an event take, next to other learners, and how does that grow? The tables of docs/performance.md.

Parts, of which `--only` selects some. `events` lets models predict and learn the same events one by one, in turn, in
one process: ten numeric inputs, four experts; or three classes, two experts. `growth` measures arrays against the
numbers of features, experts, outputs, classes and rows in a call, and BLAS at the same rank-1 updates. `files` runs the
daemon over files, with metrics and checkpoints, next to Vowpal Wabbit's driver. `profile` shows what an
event costs by the number of events in a call.

Times are of the process's CPU, medians of rounds; latencies are by the clock. Vowpal Wabbit is left out where it is not
installed. The output is Markdown.
"""

from __future__ import annotations

import argparse
import functools
import os
import sys
import time
from collections.abc import Callable, Iterator
from importlib.util import find_spec
from pathlib import Path

from benchmarks.report import Record, Results, Verdicts, machine, markdown
from streammoe.invocation import python

PARTS = ("events", "growth", "files", "profile")
THREADS = ("OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS", "OMP_NUM_THREADS", "NUMBA_NUM_THREADS")


def measure(arguments: argparse.Namespace, results: Results) -> None:
    """Run what is not in the results yet."""
    # Imported here, after the number of threads is set.
    from benchmarks.performance import contenders, files, growth, profile

    if "events" in arguments.only:
        results.once({"part": "events"}, lambda: contenders.measured(arguments.rounds))
    if "growth" in arguments.only:
        for axis in growth.AXES:
            measured = functools.partial(growth.measured, axis, arguments.rounds)
            results.once({"part": "growth", "axis": axis}, measured)
    if "profile" in arguments.only:
        results.once({"part": "profile"}, lambda: profile.measured(arguments.rounds))
    if "files" in arguments.only:
        results.once({"part": "files"}, lambda: files.measured(arguments.events, arguments.file_rounds))


# -- Tables ------------------------------------------------------------------------------------------------------------


def _records(results: Results, part: str) -> list[Record]:
    return [record for record in results.records if record["part"] == part]


def event_tables(results: Results, verdicts: Verdicts) -> Iterator[str]:
    """Yield the table of single events."""
    from benchmarks.performance import contenders

    for record in _records(results, "events"):
        found = record["found"]
        reference = found[contenders.REFERENCE]["us"]
        order = [EM_AT if name == contenders.EM else at for at, name in enumerate(found)]
        names = [name for _, name in sorted(zip(order, found, strict=True))]
        yield f"Predict and learn one event; {record['rounds']} rounds\n\n" + markdown(
            [
                "", "events/s", "CPU µs/event", f"/ {contenders.REFERENCE}", "p50, µs", "p99, µs", "max, µs",
                "p99, CPU µs", "memory, KiB", "checkpoint, KiB", "save, ms",
            ],
            [
                [
                    name,
                    f"{1e6 / one['us']:,.0f}",
                    _short(one["us"]),
                    f"{one['us'] / reference:.2f}",
                    *(_short(one[key]) if key in one else "–" for key in ("p50", "p99", "max", "own p99")),
                    *(f"{one[key] / 1024:,.0f}" if key in one else "–" for key in ("memory", "checkpoint")),
                    f"{one['save']:.1f}" if "save" in one else "–",
                ]
                for name in names
                for one in [found[name]]
            ],
        )  # fmt: skip
        ours = found[contenders.OURS]
        verdicts.add_most("dicts / River's scaler and LinearRegression", ours["us"] / reference, 2.5)
        verdicts.add_most("dicts / BayesianLinearRegression", ours["us"] / found[contenders.BAYESIAN]["us"], 1.0)
        if contenders.VOWPAL in found:
            verdicts.add_most("dicts / Vowpal Wabbit's bindings", ours["us"] / found[contenders.VOWPAL]["us"], 1.0)
        verdicts.add_most("dicts: p99 / median, by the clock", ours["p99"] / ours["p50"], 3.0)
        verdicts.add_most("dicts: p99 / median, CPU", ours["own p99"] / ours["own p50"], 3.0)
        literal = found[contenders.LITERAL]["us"]
        verdicts.add_least("literal / arrays, polyak", literal / found[contenders.OURS_POLYAK]["us"], 200.0)
        verdicts.add_least("literal / arrays, portfolio", literal / found[contenders.OURS_ARRAYS]["us"], 150.0)


EM_AT = 10_000
"""Place of the batch fit: behind all others."""


def growth_tables(results: Results, verdicts: Verdicts) -> Iterator[str]:
    """Yield a table for each axis."""
    from benchmarks.performance import growth

    for record in _records(results, "growth"):
        title, cases = growth.AXES[record["axis"]]
        found = record["us"]
        headers = ["", "portfolio, µs/event", "polyak, µs/event", "portfolio / polyak"]
        rows = [
            [name, _short(one["portfolio"]), _short(one["polyak"]), f"{one['portfolio'] / one['polyak']:.2f}"]
            for name, one in found.items()
        ]
        if record["axis"] == "p":
            headers += ["updates by dsyr, µs", "dsyr, Gflop/s", "polyak, Gflop/s", "polyak / dsyr"]
            for row, (p, case) in zip(rows, cases.items(), strict=True):
                one, needed = found[str(p)], 1e-3 * growth.flops(case.p, case.K)
                row += [
                    _short(one["dsyr"]), f"{needed / one['dsyr']:.2f}", f"{needed / one['polyak']:.2f}",
                    f"{one['dsyr'] / one['polyak']:.0%}",
                ]  # fmt: skip
        yield f"By {title}; {record['rounds']} rounds\n\n" + markdown(headers, rows)
        if record["axis"] == "p":
            slopes = {name: growth.slope(record, name) for name in ("polyak", "portfolio", "dsyr")}
            yield "Log-log slope in p from 50 to 400: " + ", ".join(f"{name} {of:.2f}" for name, of in slopes.items())
            share = found["200"]["dsyr"] / found["200"]["polyak"]
            verdicts.add_least("p = 200: flop rate / dsyr's, polyak", share, 0.6)
            verdicts.add_most("log-log slope in p, 50 to 400, polyak", slopes["polyak"], 2.1)


def file_tables(results: Results, verdicts: Verdicts) -> Iterator[str]:
    """Yield the table of the daemon and Vowpal Wabbit's driver."""
    from benchmarks.performance import files

    for record in _records(results, "files"):
        found = record["found"]
        yield (
            f"{record['events']:,} events from a file; the daemon with metrics and checkpoints; "
            f"{record['rounds']} rounds\n\n"
        ) + markdown(
            [
                "", "events per CPU second", "CPU µs/event", f"/ {files.DRIVER}", "events/s by the clock",
                "start-up, CPU s",
            ],
            [
                [
                    name, f"{rate:,.0f}", _short(1e6 / rate),
                    f"{rate / found[files.DRIVER][0]:.2f}" if files.DRIVER in found else "–",
                    f"{wall:,.0f}", f"{startup:.1f}",
                ]
                for name, (rate, wall, startup) in found.items()
            ],
        )  # fmt: skip
        if files.DRIVER in found:
            driver = found[files.DRIVER][0]
            verdicts.add_least("csv with predictions / Vowpal Wabbit's driver", found[files.CSV][0] / driver, 1.5)
            verdicts.add_least("the same without intervals and gate", found[files.PLAIN][0] / driver, 1.5)
        verdicts.add_least("jsonl / csv, both with predictions", found[files.JSONL][0] / found[files.CSV][0], 0.8)


def profile_tables(results: Results, _: Verdicts) -> Iterator[str]:
    """Yield the table of an event by the length of calls."""
    for record in _records(results, "profile"):
        us, (due, often, p99) = record["us"], record["due"]
        names = {name: f"`learn_array`, rows: {int(name):,}" if name.isdigit() else f"`{name}`" for name in us}
        yield (
            f"{record['rounds']} rounds. Of `learn_one` {due:.2f} µs are what is due now and then, at {often:.1%} of "
            f"the events: copies to undo by, a look at the experts; p99 is {p99:.1f} times the median\n\n"
        ) + markdown(["", "CPU µs an event"], [[names[name], _short(spent)] for name, spent in us.items()])


def _short(value: float) -> str:
    """Show three digits."""
    return f"{value:,.0f}" if value >= 100.0 else f"{value:.3g}"


TABLES: dict[str, Callable[[Results, Verdicts], Iterator[str]]] = {
    "events": event_tables,
    "files": file_tables,
    "growth": growth_tables,
    "profile": profile_tables,
}
"""By part, in the order of the output."""


def rewritten(document: str, sections: dict[str, str]) -> str:
    """Return a document with what stands between `<!-- NAME -->` and `<!-- end of NAME -->` replaced.

    >>> rewritten("a <!-- x --> old <!-- end of x --> b", {"x": "new", "y": ""})
    'a <!-- x -->\\n\\nnew\\n\\n<!-- end of x --> b'
    """
    for name, text in sections.items():
        before, begin, rest = document.partition(f"<!-- {name} -->")
        _, end, after = rest.partition(f"<!-- end of {name} -->")
        if text and end:
            document = f"{before}{begin}\n\n{text}\n\n{end}{after}"
    return document


def parser() -> argparse.ArgumentParser:
    """Create the parser of the arguments."""
    found = argparse.ArgumentParser(prog="python -m benchmarks.performance", description=str(__doc__).splitlines()[0])
    found.add_argument("--only", nargs="+", choices=PARTS, default=list(PARTS), help="parts; default: all")
    found.add_argument("--rounds", type=int, default=9, help="how often each figure is measured")
    found.add_argument("--events", type=int, default=1_000_000, help="events of the files")
    found.add_argument("--file-rounds", type=int, default=3, metavar="ROUNDS", help="runs over each file")
    found.add_argument("--out", type=Path, metavar="FILE", help="results file; what it holds is not run again")
    found.add_argument("--document", type=Path, metavar="FILE", help="where to replace the tables, docs/performance.md")
    found.add_argument("--pictures", type=Path, metavar="DIR", help="where to draw the pictures, docs/pictures")
    return found


def main(argv: list[str] | None = None) -> None:
    """Run what is not in the results file yet, and print the tables of all that it holds."""
    arguments = parser().parse_args(argv)
    # Before NumPy's library creates its threads; processes that are started inherit it.
    for name in THREADS:
        os.environ.setdefault(name, "1")
    from threadpoolctl import threadpool_limits

    started = time.perf_counter()
    results = Results(arguments.out)
    with threadpool_limits(1):
        measure(arguments, results)
    verdicts = Verdicts()
    sections = {"machine": machine()}
    sections |= {part: "\n\n".join(tables(results, verdicts)) for part, tables in TABLES.items()}
    sections["targets"] = verdicts.shown(markdown) if results.records else ""
    print("\n\n".join(filter(None, sections.values())))
    if arguments.document is not None:
        document = arguments.document.read_text(encoding="utf-8")
        arguments.document.write_text(rewritten(document, sections), encoding="utf-8")
    if find_spec("vowpalwabbit") is None:
        print(f"\nVowpal Wabbit is not installed and was left out: {python()} -m pip install vowpalwabbit")
    print(f"{time.perf_counter() - started:.0f} s", file=sys.stderr)
    if arguments.pictures is not None:
        from benchmarks.performance.drawing import draw

        draw(results, arguments.pictures)


if __name__ == "__main__":
    main()
