"""How long does an event take, next to other learners, and how does that grow? The tables of docs/performance.md.

Parts, of which `--only` selects some. `events` lets models predict and learn the same events one by one, in turn, in
one process: ten numeric inputs, four experts; or three classes, two experts. `files` runs the daemon over files, with
metrics and checkpoints, next to Vowpal Wabbit's driver. `growth` measures arrays against the numbers of features,
experts, outputs, classes and rows in a call.

Times are of the process's CPU, medians of rounds; latencies are by the clock. Vowpal Wabbit is left out where it is not
installed. The output is Markdown.
"""

from __future__ import annotations

import argparse
from pathlib import Path

from threadpoolctl import threadpool_limits

from benchmarks.performance import events, files, growth
from benchmarks.report import TARGETS, machine, markdown, targets
from streammoe.invocation import python

PARTS = ("events", "files", "growth")


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


def main(argv: list[str] | None = None) -> None:
    """Print the tables."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.performance", description=str(__doc__).splitlines()[0])
    parser.add_argument("--only", nargs="+", choices=PARTS, default=list(PARTS), help="parts; default: all")
    parser.add_argument("--rounds", type=int, default=9, help="how often each figure is measured")
    parser.add_argument("--events", type=int, default=1_000_000, help="events of the files")
    parser.add_argument("--file-rounds", type=int, default=3, metavar="ROUNDS", help="runs over each file")
    parser.add_argument("--document", type=Path, metavar="FILE", help="where to replace tables, docs/performance.md")
    arguments = parser.parse_args(argv)
    measured = {
        "events": lambda: events.tables(arguments.rounds),
        "files": lambda: files.tables(arguments.events, arguments.file_rounds),
        "growth": lambda: growth.tables(arguments.rounds),
    }
    sections, judged = {"machine": machine()}, []
    with threadpool_limits(1):
        for part in PARTS:
            if part in arguments.only:
                sections[part], judged_here = measured[part]()
                judged += judged_here
                print(f"{sections[part]}\n", flush=True)
    sections["targets"] = markdown(TARGETS, targets(judged))
    print(f"{sections['machine']}\n\n{sections['targets']}")
    if arguments.document is not None:
        document = arguments.document.read_text(encoding="utf-8")
        arguments.document.write_text(rewritten(document, sections), encoding="utf-8")
    if not events.has_vowpal():
        print(f"\nVowpal Wabbit is not installed and was left out: {python()} -m pip install vowpalwabbit")


if __name__ == "__main__":
    main()
