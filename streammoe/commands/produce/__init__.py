"""Play a file into a Kafka topic."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import click

from streammoe.console import logged, progress_bar


@click.command("produce")
@click.argument("file")
@click.option(
    "--topic",
    required=True,
    help="Created if it does not exist, with the replication factor that is the brokers' default.",
)
@click.option("--bootstrap-servers", "servers", default="127.0.0.1:9092", show_default=True, metavar="HOST:PORT,…")
@click.option(
    "--format",
    "form",
    type=click.Choice(["json", "raw"]),
    default="json",
    show_default=True,
    help="json: CSV and Parquet records become JSON objects; raw: lines are sent unchanged.",
)
@click.option(
    "--read-as",
    type=click.Choice(["csv", "jsonl", "parquet"]),
    help="Format of the file; by default from its extension.",
)
@click.option("--key", metavar="FIELD", help="Field whose value becomes the key; equal keys keep their order.")
@click.option("--timestamp", metavar="FIELD", help="Field whose time becomes the timestamp.")
@click.option(
    "--rate", type=click.FloatRange(min=0), default=0, metavar="N", help="Records per second; 0: as fast as possible."
)
@click.option(
    "--partitions", type=click.IntRange(min=1), metavar="N", help="Partitions of a created topic; by default 1."
)
@click.option("--repeat", type=click.IntRange(min=1), default=1, metavar="N", help="Play the file this many times.")
@click.option("--limit", type=click.IntRange(min=1), metavar="N", help="Send at most this many records.")
@click.option(
    "--config",
    type=click.Path(path_type=Path),
    metavar="FILE.toml",
    help="Settings of the connection as in [predictions], such as security_protocol; not a daemon's configuration.",
)
@logged
def command(file: str, **given: Any) -> None:
    """Send the records of CSV, JSON Lines (also .gz) or Parquet files to a topic, in order.

    A message has no header, so a CSV record becomes a JSON object: numbers as numbers, without empty cells, and
    everything else as text, including numbers with leading zeros. JSON Lines are sent unchanged. Records too large for
    the topic are left out; the exit code is then 6 once all others are written. It is also 6 if no broker answers.

    A daemon's configuration describes what it reads, not where the records come from, so none is used here.

    \b
    Example:
      streammoe produce rides.csv --topic rides --partitions 4 --key station
      streammoe produce rides.csv --topic rides --rate 500 --repeat 10
    """
    from streammoe.commands.produce.run import produce as run_produce
    from streammoe.daemon.signals import StopFlag

    with StopFlag() as stop, progress_bar("producing") as follow:
        done = run_produce(file, stop=stop, on_batch=follow, **given)
    click.echo(done)
