"""Score a model on a file, next to others.

A prequential run without configuration or checkpoints: every event is predicted, then learned.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import click

from streammoe.console import end_without_result, file_options, logged, progress_bar, setting_options


@click.command("evaluate")
@click.argument("file")
@click.option("--target", "targets", metavar="COLUMN", multiple=True, required=True, help="May be repeated.")
@file_options
@setting_options
@click.option(
    "--against",
    multiple=True,
    metavar="river:NAME",
    help="A River learner, after its StandardScaler, on the same events; may be repeated.",
)
@click.option("--plot", type=click.Path(path_type=Path), metavar="OUT.png", help="Plot scores over time.")
@click.option("--json", "as_json", is_flag=True, help="Print one JSON object.")
@logged
def command(
    file: str,
    targets: tuple[str, ...],
    classify: bool,
    form: str | None,
    overrides: tuple[str, ...],
    against: tuple[str, ...],
    plot: Path | None,
    as_json: bool,
    **given: Any,
) -> None:
    """Predict, then learn each event of a file, or of stdin (-), and print the scores.

    No configuration is needed, and nothing is written except to the file given by --plot. All settings of [source],
    [schema] and [model] can be set as messages name them, such as --set source.delimiter=";" or --set
    schema.missing.CO=[-200].

    If more than half of the records were rejected (--set dead_letters.max_ratio=0.5), nothing is printed, and the exit
    code is 5; if nothing could be learned at all, it is 3. Ctrl-C ends the run with the scores so far; if there are
    none yet, the exit code is 130 (143 on SIGTERM).

    \b
    Example:
      streammoe evaluate rides.csv --target minutes --ignore id --against river:LinearRegression
      streammoe evaluate iris.csv --target species --classify --n-experts 2 --warmup 100 --plot scores.png
    """
    from streammoe.commands.evaluate import outputs, report
    from streammoe.commands.evaluate.options import check_overrides, tables_from
    from streammoe.commands.evaluate.run import evaluate as run_evaluation
    from streammoe.configuration import settings_from
    from streammoe.daemon.signals import StopFlag

    check_overrides(overrides, also=["dead_letters.max_ratio"])
    tables = tables_from(file, targets, classify=classify, format=form, given=given)
    if against:
        tables["source"]["block_bytes"] = 1 << 16  # slow peers, and a bar that moves
    settings = settings_from(tables, "the command line", overrides=overrides)
    drawn = outputs.Output("--plot", plot, outputs.FIGURE_SUFFIXES, needs_matplotlib=True)
    outputs.check_outputs(drawn, settings=settings)
    with StopFlag() as stop, progress_bar("evaluating") as follow:
        evaluation = run_evaluation(
            settings,
            against,
            source_name="stdin" if file == "-" else file,
            on_batch=follow,
            stop=stop,
        )
    if evaluation.stopped and not len(evaluation.curves["streammoe"]):
        end_without_result(stop.exit_code, "before an event was scored; there are no results, and nothing was written")
    if plot is not None:
        outputs.write_figure("--plot", plot, report.figure(evaluation))
    click.echo(report.to_json(evaluation) if as_json else report.table(evaluation))
