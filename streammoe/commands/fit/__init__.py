"""Fit a model to a whole file at once."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

import click

from streammoe.console import FileOptions, end_without_result, file_options, logged, progress_bar

if TYPE_CHECKING:
    from streammoe.batch import FitPlan, Round
    from streammoe.commands.fit.one_source import FileFit


@click.command("fit")
@click.argument("data", nargs=-1, required=True)
@click.option(
    "--config",
    type=click.Path(path_type=Path),
    metavar="CONFIG",
    help="Use [model], [schema] and dead_letters.max_ratio of a daemon's configuration; options override them.",
)
@click.option(
    "--rounds", type=int, default=1000, show_default=True, metavar="N", help="Maximum number of rounds from each start."
)
@click.option(
    "--tolerance", type=float, default=1e-7, show_default=True, metavar="X", help="Stop when a round gains less."
)
@click.option(
    "--from-model",
    type=click.Path(path_type=Path),
    metavar="FILE",
    help="Start from the parameters of a saved model instead of a warm-up.",
)
@click.option(
    "--workers",
    type=int,
    metavar="N",
    help="Fit in so many processes; DATA are then files, globs and folders.",
)
@click.option("--scheduler", metavar="ADDRESS", help="Fit by the workers of a Dask scheduler, such as tcp://host:8786.")
@file_options
@click.option("--out", type=click.Path(path_type=Path), metavar="MODEL", help="Save the model to this file.")
@click.option("--json", "as_json", is_flag=True, help="Print one JSON object, with each round.")
@logged
def command(
    data: tuple[str, ...],
    config: Path | None,
    rounds: int,
    tolerance: float,
    from_model: Path | None,
    workers: int | None,
    scheduler: str | None,
    options: FileOptions,
    out: Path | None,
    as_json: bool,
) -> None:
    """Fit a model to all events of DATA, a file or stdin (-), at once, and print the result.

    Nothing is written except to the file given by --out. A daemon continues with the saved model
    (`streammoe run CONFIG --from-model MODEL`) if its [model] and [schema] are the same; --config reads them from its
    configuration. Ctrl-C ends the fit after the current round; the best round is saved and printed. While it still
    reads, or looks for starts, there is no fit yet: it ends with exit code 130 (143 on SIGTERM), and writes nothing.

    All settings of [source], [schema] and [model] can be set as messages name them, such as --set
    schema.missing.CO=[-200].

    Rejected records are left out, with a warning that counts them by reason. If they are more than half of all
    (--set dead_letters.max_ratio=0.5, or that of --config), nothing is fitted, and the exit code is 5; if nothing could
    be learned at all, it is 3.

    With --workers or --scheduler there may be several files: DATA are paths, globs and folders. Each is read as if they
    were one, and the rows stay in the memory of the processes. It needs the package dask[distributed].

    \b
    Example:
      streammoe fit rides.csv --target minutes --ignore id --set model.n_experts=8 --out rides.model
      streammoe fit rides.csv --config rides.toml --json
      streammoe fit --workers 8 --target minutes --out rides.model rides/
    """
    by_processes = workers is not None or scheduler is not None
    if not options.targets and config is None:
        raise click.UsageError("Missing option '--target', or '--config' with a configuration that names it")
    if len(data) > 1 and not by_processes:
        raise click.UsageError("Several files need --workers, or --scheduler")
    if by_processes and data == ("-",):
        raise click.UsageError("'--workers' and '--scheduler' read files, not stdin (-)")
    from streammoe.batch import FitPlan
    from streammoe.commands.evaluate.file_settings import files_of, settings_of
    from streammoe.commands.evaluate.output_files import as_config_error, check_outputs
    from streammoe.commands.fit.one_source import fit_source, table, to_json
    from streammoe.configuration import extension

    settings = settings_of(data[0], options, command="fit", config=config)
    files = files_of(data) if by_processes else []
    fit = partial(fit_source, source_name="stdin" if data == ("-",) else data[0])
    if by_processes:
        fit = partial(extension("fit_files"), files=files, workers=workers, scheduler=scheduler)
    inputs = [("--config", config), ("--from-model", from_model), *(("DATA", Path(name)) for name in files)]
    check_outputs({"--out": out}, settings, inputs)
    plan = FitPlan(rounds=rounds, tolerance=tolerance)
    result = _fitted(partial(fit, settings, from_model=from_model), plan)
    if out is not None:
        with as_config_error("--out", out):
            result.fit.model.save(out)
    click.echo(to_json(result, out) if as_json else table(result, out))


def _fitted(fit: Callable[..., FileFit | None], plan: FitPlan) -> FileFit:
    """Fit until a signal asks to stop, and show how far it has come; without a result, end the process."""
    from streammoe.daemon.signals import StopFlag

    with StopFlag() as stop, progress_bar("reading") as follow, progress_bar("fitting") as advance:

        def on_round(each: Round) -> bool:
            advance((each.number, plan.rounds))
            return stop.requested

        result = fit(plan=plan._replace(on_round=on_round), on_batch=follow, stop=stop)
    if result is None:
        end_without_result(stop.exit_code, "before a fit had begun; there is no model, and nothing was written")
    return result
