"""Write a card of a model: what it has learned, from what, and how well it predicts."""

from __future__ import annotations

import html
import re
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple, TypeAlias

import click

from streammoe.commands.inspect import details, formulas, inspect_path, shares_in_words, singles_shown
from streammoe.console import logged, plain
from streammoe.text import printable

MOST_COLUMNS, MOST_ENTRIES = 100, 30
"""Numbers of columns, and of latest entries of the history, that a card lists."""
SPECIAL = re.compile(r"[\\`*_\[\]<>|#&~$@!]|:(?=//)|(?<=www)\.", re.IGNORECASE)
"""What Markdown, and what GitHub makes of it, would take for anything but text."""
STYLE = (
    "body{font:16px/1.5 system-ui,sans-serif;max-width:60em;margin:2em auto;padding:0 1em;color:#222}"
    "table{border-collapse:collapse;margin:1em 0}th,td{border:1px solid #ccc;padding:.2em .6em;text-align:left;"
    "vertical-align:top;overflow-wrap:anywhere}th{background:#f4f4f4}"
)
POLICY = "default-src 'none'; style-src 'unsafe-inline'"


class Table(NamedTuple):
    """A table of texts."""

    header: Sequence[str]
    rows: Sequence[Sequence[str]]


Block: TypeAlias = str | list[str] | Table
"""A paragraph, a list, or a table."""
Section: TypeAlias = tuple[str, Sequence[Block]]


def sections(description: Mapping[str, Any]) -> list[Section]:
    """Return what the card of a model says, given what `inspect_path` has found, as texts that are not escaped."""
    counters, columns, last = description["counters"], description["columns"], description["last_drift"]
    are_labels, history = description["are_labels"], description["history"]
    named = {"n": "events learned", "created": "written", "version": "version", "state_digest": "fingerprint"}
    facts = [f"{what}: {plain(description[name])}" for name, what in named.items()]
    facts.append(f"{'classes' if are_labels else 'names of several outputs'}: {plain(description['outputs'])}")
    changed = [
        (plain(each["time"]), f"{each['n']:,}", plain(each["event"]), details(each)) for each in history[-MOST_ENTRIES:]
    ]
    intervals = [
        (each["output"], f"{each['level']:.0%}", plain(each["coverage"]), plain(each["width"]))
        for each in description["intervals"]
    ]
    drifts = f"drifts: {description['drifts']}; last one: {plain(last)}; targets far out: {description['outliers']}"
    left_out = f"columns left out here: {max(len(columns) - MOST_COLUMNS, 0)}"
    records = [*counters.get("outcomes", {}).items()]
    records += [(f"rejected: {reason}", count) for reason, count in counters.get("reasons", {}).items()]
    return [
        (f"Model card: {description['model']['kind']}", [facts]),
        ("What it has learned from", _sources(description)),
        (
            "Columns",
            [Table(("column", "kind", "values"), [_column(each) for each in columns[:MOST_COLUMNS]]), left_out],
        ),
        ("Who predicts", [f"The shares in what is predicted: {shares_in_words(description['member_shares'])}."]),
        ("Experts", _experts(description)),
        ("Scores", [Table(("score", "of predictions before learning"), _rows(description["scores"].items()))]),
        ("Intervals", [Table(("output", "level", "share of the targets in them", "mean width"), intervals)]),
        ("Records", [Table(("records", "count"), _rows(records))]),
        ("Changes of the stream", [drifts]),
        ("What has changed the model", [Table(("time", "events", "what", "details"), changed)]),
    ]


def _rows(items: Iterable[tuple[str, Any]]) -> list[tuple[str, str]]:
    return [(name, plain(value)) for name, value in items]


def _sources(description: Mapping[str, Any]) -> list[Block]:
    places: list[str] = []
    for position in filter(None, description["positions"]):
        entries = next((each for each in position.values() if isinstance(each, list)), [position])
        places += [f"{plain(position.get('kind'))}: {plain(entry)}" for entry in entries]
    first = plain(next((entry["time"] for entry in description["history"]), None))
    return [f"Noted from {first} to {plain(description['created'])}.", places or ["not noted: saved from Python"]]


def _column(column: Mapping[str, Any]) -> tuple[str, str, str]:
    values = column["levels"] if column["range"] is None else " to ".join(map(plain, column["range"]))
    return plain(column["name"]), column["kind"], plain(values)


def _experts(description: Mapping[str, Any]) -> list[Block]:
    experts = description["experts"]
    rows = [
        (str(k), each["condition"], f"{each['share']:.1%}", f"{each['loss']:.4g}", each["region"])
        for k, each in enumerate(experts)
    ]
    who = [(each["member"], k, f"expert {k}") for k, each in enumerate(experts)]
    who += [(name, 0, name) for name in singles_shown(description)]
    return [
        Table(("expert", "condition", "share of events", "loss", "where the gate prefers it"), rows),
        [f"{label}: {line}" for member, k, label in who for line in formulas(description, member, k)],
        "Coefficients are in the units of inputs, those of the largest effect first; ± is one standard error.",
    ]


def to_markdown(card: Iterable[Section]) -> str:
    """Render a card as Markdown, in which no text is anything but text."""

    def escaped(text: str) -> str:
        return SPECIAL.sub(r"\\\g<0>", printable(text))

    def block(each: Block) -> str:
        if isinstance(each, Table):
            rows = [each.header, ["---"] * len(each.header), *([*map(escaped, row)] for row in each.rows)]
            return "\n".join(f"| {' | '.join(row)} |" for row in rows)
        return escaped(each) if isinstance(each, str) else "\n".join(f"- {escaped(text)}" for text in each)

    parts = ["\n\n".join([f"# {escaped(title)}", *map(block, blocks)]) for title, blocks in card]
    return "\n\n#".join(parts) + "\n"


def to_html(card: Sequence[Section]) -> str:
    """Render a card as one page of HTML that loads nothing and runs nothing."""

    def tag(name: str, *inner: str) -> str:
        return f"<{name}>{''.join(inner)}</{name}>"

    def text_in(name: str, text: str) -> str:
        return tag(name, html.escape(printable(text)))

    def block(each: Block) -> str:
        if isinstance(each, Table):
            rows = (tag("tr", *(text_in("td", text) for text in row)) for row in each.rows)
            return tag("table", tag("tr", *(text_in("th", text) for text in each.header)), *rows)
        return text_in("p", each) if isinstance(each, str) else tag("ul", *(text_in("li", text) for text in each))

    parts = [
        tag("section", text_in("h2" if at else "h1", card[at][0]), *map(block, card[at][1])) for at in range(len(card))
    ]
    head = f'<meta charset="utf-8"><meta http-equiv="Content-Security-Policy" content="{POLICY}">'
    page = tag("head", head, text_in("title", card[0][0]), tag("style", STYLE)), tag("body", "\n".join(parts))
    return f'<!doctype html>\n<html lang="en">{"".join(page)}</html>\n'


@click.command("card")
@click.argument("path", metavar="DIR_OR_FILE", type=click.Path(path_type=Path))
@click.option("--html", "as_html", is_flag=True, help="Write one page of HTML, which loads nothing.")
@logged
def command(path: Path, as_html: bool) -> None:
    """Write a card of the model in a checkpoint file, or in the newest sound checkpoint of a folder, as Markdown.

    It says what the model has learned and from what, who predicts and by which experts, how well, and what has changed
    it.

    \b
    Example:
      streammoe card state
    """
    card = sections(inspect_path(path))
    click.echo(to_html(card) if as_html else to_markdown(card), nl=False)
