"""Play a file into a Kafka topic.

Files to Kafka: plays the records of a file into a topic, as fast as possible or at a steady rate.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import click

from streammoe.console import exit_codes, logged, progress_bar, set_up_logging


@click.command("produce")
@click.argument("file")
@click.option("--topic", required=True, help="Made if it is missing, with replication 1.")
@click.option("--bootstrap-servers", "servers", default="127.0.0.1:9092", show_default=True, metavar="HOST:PORT,…")
@click.option(
    "--format",
    "form",
    type=click.Choice(["json", "raw"]),
    default="json",
    show_default=True,
    help="json: records of csv and Parquet files become JSON objects; raw: lines as they are.",
)
@click.option(
    "--read-as",
    type=click.Choice(["csv", "jsonl", "parquet"]),
    help="What the file holds; else its extension says so.",
)
@click.option("--key", metavar="FIELD", help="Field whose value becomes the key; equal keys keep their order.")
@click.option("--timestamp", metavar="FIELD", help="Field whose time becomes the timestamp.")
@click.option(
    "--rate", type=click.FloatRange(min=0), default=0, metavar="N", help="Records a second; 0: as fast as possible."
)
@click.option("--partitions", type=click.IntRange(min=1), metavar="N", help="Of a topic that is made; else 1.")
@click.option("--repeat", type=click.IntRange(min=1), default=1, metavar="N", help="Play the file so many times.")
@click.option("--limit", type=click.IntRange(min=1), metavar="N", help="Send so many records at most.")
@click.option(
    "--config",
    type=click.Path(path_type=Path),
    metavar="FILE.toml",
    help="Settings of kafka-python, such as security_protocol and sasl_plain_password.",
)
@logged
def command(file: str, log_level: str, log_format: str, **given: Any) -> None:
    """Send the records of csv, jsonl (also .gz) or Parquet files to a topic, in order.

    A message has no header, so a csv record becomes a JSON object: numbers as numbers, empty cells left out, and
    anything else as text, also numbers with zeros in front. Lines of jsonl are sent as they are. Records that are too
    large for the topic are left out, and the exit code is 6 once all others are written.

    \b
    Example:
      streammoe produce rides.csv --topic rides --partitions 4 --key station
      streammoe produce rides.csv --topic rides --rate 500 --repeat 10
    """
    set_up_logging(log_level, log_format)
    with exit_codes():
        from streammoe.commands.produce.run import produce as run_produce
        from streammoe.daemon.signals import StopFlag

        with StopFlag() as stop, progress_bar("producing") as follow:
            done = run_produce(file, stop=stop, on_batch=follow, **given)
        click.echo(done)
