"""Fit a model to several files by several processes, each file read as the daemon reads it."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from pathlib import Path

from streammoe.assembly import batches_of
from streammoe.batch import FitPlan
from streammoe.commands.evaluate.tally import Tally
from streammoe.commands.fit.one_source import FileFit, check_records, model_to_fit
from streammoe.daemon.loop import ProgressListener
from streammoe.daemon.model import schema_of
from streammoe.daemon.signals import StopFlag
from streammoe.engine.interruption import FitCancelled, cancellable
from streammoe.errors import InvalidEvent, SourceError
from streammoe.estimators import MixtureOfExperts
from streammoe.pipeline.decoders import decoder
from streammoe.pipeline.pipeline import Pipeline
from streammoe.ports import Batch
from streammoe.scaleout import distributed
from streammoe.settings import Settings
from streammoe.text import some_of


def fit_files(
    settings: Settings,
    files: Sequence[str],
    *,
    plan: FitPlan,
    workers: int | None = None,
    scheduler: str | None = None,
    from_model: Path | None = None,
    on_batch: ProgressListener | None = None,
    stop: StopFlag | None = None,
) -> FileFit | None:
    """Fit the model that the settings describe to all records of some files, as `fit_source` does to those of one.

    Args:
        settings: their source is that of any file; see `fit_source`.
        files: in this order; workers must find them under the same names.
        workers: number of processes to start on this machine, and `scheduler`: see `distributed.connected`.
        plan, from_model, on_batch, stop: see `fit_source`.

    Returns:
        None if it was stopped before the first round; later, the best round so far.

    Raises:
        ConfigError, CheckpointError, SourceError, TooManyBadRecords: see `fit_source`.
    """
    model, plan = model_to_fit(settings, plan, from_model)
    source_name = files[0] if len(files) == 1 else f"{len(files):,} files"
    records = Tally()

    def check(tallies: list[Tally]) -> None:
        for each in tallies:
            records.add(each)
        check_records(records, source_name, settings, model)

    try:
        with (
            cancellable(lambda: stop is not None and stop.requested),
            distributed.connected(workers, scheduler) as client,
        ):
            done = distributed.fit_parts(
                client, model, files, FileReader(settings), plan, on_part=on_batch, on_read=check
            )
    except FitCancelled:
        return None
    return FileFit(source_name, settings.learning_settings(), done, records)


@dataclass(frozen=True)
class FileReader:
    """Lets a model learn the records of a file, on whatever machine it is called."""

    settings: Settings

    def __call__(self, model: MixtureOfExperts, path: str) -> Tally:
        """Return what became of the records.

        Raises:
            SourceError: the file cannot be read, or has none of the columns of those before it.
        """
        settings = replace(self.settings, source=self.settings.source.model_copy(update={"path": path}))
        pipeline, tally = Pipeline(model, schema_of(settings)), Tally()
        is_compared = not model.fields
        for following in batches_of(settings):
            if not is_compared:
                is_compared = _compare(model, following, path)
            tally.count(pipeline.process(following), following)
        return tally


def _compare(model: MixtureOfExperts, following: Batch, path: str) -> bool:
    """Compare the columns of a file with those of the files before it; return whether a record could be read."""
    fields = {*model.fields, *model.awaited}
    for i in range(len(following)):
        with suppress(InvalidEvent):
            names = decoder(following.format).names(following, i).keys()
            if fields.isdisjoint(names):
                raise SourceError(
                    f"{path}: has none of the columns of the files before it, {some_of(sorted(fields))}, but "
                    f"{some_of(sorted(names))}; leave it out, or rename its columns"
                )
            return True
    return False
