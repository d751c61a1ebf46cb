"""Score a model on a file, next to others.

A prequential run without configuration or checkpoints: every event is predicted, then learned.
"""

from __future__ import annotations

import click

from streammoe.console import FileOptions, end_without_result, file_options, logged, progress_bar


@click.command("evaluate")
@click.argument("file")
@file_options
@click.option(
    "--against",
    multiple=True,
    metavar="river:NAME",
    help="A River learner, after its StandardScaler, on the same events; may be repeated.",
)
@click.option(
    "--vs",
    multiple=True,
    metavar='"SECTION.FIELD=VALUE …"',
    help="Other settings to compare with, over those of --set; may be repeated.",
)
@click.option(
    "--grid",
    multiple=True,
    metavar="SECTION.FIELD=VALUE,…",
    help="Compare these values of a setting; if repeated, all combinations.",
)
@click.option(
    "--jobs", type=click.IntRange(min=1), help="Most processes at once for --vs and --grid; by default one a core."
)
@click.option("--json", "as_json", is_flag=True, help="Print one JSON object.")
@logged
def command(
    file: str,
    options: FileOptions,
    against: tuple[str, ...],
    vs: tuple[str, ...],
    grid: tuple[str, ...],
    jobs: int | None,
    as_json: bool,
) -> None:
    """Predict, then learn each event of a file, or of stdin (-), and print the scores.

    No configuration is needed, and nothing is written. All settings of [source],
    [schema] and [model] can be set as messages name them, such as --set source.delimiter=";" or --set
    schema.missing.CO=[-200].

    If more than half of the records were rejected (--set dead_letters.max_ratio=0.5), nothing is printed, and the exit
    code is 5; if nothing could be learned at all, it is 3. Ctrl-C ends the run with the scores so far; if there are
    none yet, the exit code is 130 (143 on SIGTERM).

    With --vs or --grid several models are scored on the same file, each in a process of its own, and sorted by their
    log-loss, with the difference to the lowest one. Ctrl-C then ends all of them without scores.

    \b
    Example:
      streammoe evaluate rides.csv --target minutes --ignore id --against river:LinearRegression
      streammoe evaluate iris.csv --target species --classify --set model.n_experts=2
      streammoe evaluate rides.csv --target minutes --vs model.n_experts=8 --vs "model.n_experts=8 model.drift=off"
      streammoe evaluate rides.csv --target minutes --grid model.n_experts=1,2,4 --grid model.warmup=200,500
    """
    if not options.targets:
        raise click.UsageError("Missing option '--target'.")
    if (vs or grid) and (against or file == "-"):
        raise click.UsageError("--vs and --grid read a file several times, and cannot be combined with - or --against.")
    from streammoe.commands.evaluate.file_settings import settings_of
    from streammoe.commands.evaluate.prequential import evaluate as run_evaluation
    from streammoe.commands.evaluate.prequential import table, to_json
    from streammoe.daemon.signals import StopFlag

    if against:  # slow peers, and a bar that moves
        options = options._replace(overrides=("source.block_bytes=65536", *options.overrides))
    if vs or grid:
        from streammoe.commands.evaluate.comparison import compare, comparison, groups_of
        from streammoe.pipeline.overlapped import n_cores

        groups = groups_of(vs, grid)
        each = [options._replace(overrides=(*options.overrides, *group)) for group in groups]
        several = [settings_of(file, those, command="evaluate") for those in each]
        with StopFlag() as stop, progress_bar("evaluating") as follow:
            found = compare(several, source_name=file, jobs=jobs or n_cores(), on_progress=follow, stop=stop)
        if stop.requested:
            end_without_result(stop.exit_code, "before all were scored; there are no results, and nothing was written")
        click.echo(comparison(groups, found, as_json=as_json))
        return
    settings = settings_of(file, options, command="evaluate")
    with StopFlag() as stop, progress_bar("evaluating") as follow:
        evaluation = run_evaluation(
            settings,
            against,
            source_name="stdin" if file == "-" else file,
            on_batch=follow,
            stop=stop,
        )
    if evaluation.stopped and not evaluation.outcomes["learned"]:
        end_without_result(stop.exit_code, "before an event was scored; there are no results, and nothing was written")
    click.echo(to_json(evaluation) if as_json else table(evaluation))
