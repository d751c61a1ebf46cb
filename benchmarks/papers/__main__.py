"""Reproduce all tables of the papers: `python -m benchmarks.papers`, or some: `--only gridlock`."""

from __future__ import annotations

from importlib import import_module

from benchmarks.papers.sheets import parser_of, run

NAMES = (
    "simulation",
    "optimizers",
    "crime",
    "gridlock",
    "distributed",
    "uci",
    "symmetric",
    "fashion",
    "digits",
    "streams",
    "classes",
)


def main(argv: list[str] | None = None) -> None:
    """Print all tables, then the missed targets."""
    parser = parser_of(str(__doc__), prog="python -m benchmarks.papers")
    parser.add_argument("--only", action="append", choices=NAMES, help="may be repeated")
    arguments = parser.parse_args(argv)
    run([import_module(f"benchmarks.papers.{name}") for name in arguments.only or NAMES], arguments)


if __name__ == "__main__":
    main()
