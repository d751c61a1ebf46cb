"""Batch fits by several processes, on Dask: rows lie in partitions, and only sums over them are brought together.

    import dask.dataframe as dd
    from streammoe import MoERegressor
from streammoe.scaleout import distributed

    if __name__ == "__main__":
        rides = dd.read_parquet("rides/*.parquet")
        done = distributed.fit(MoERegressor(n_experts=8), rides, target="minutes", workers=8)
        done.model.save("rides.model")

Dask schedules the work, keeps the rows in the memory of its workers, and computes again what a lost worker held. Models
travel as the bytes of checkpoints, everything else as arrays; nothing that is read from a file is unpickled.
"""

from __future__ import annotations

import copy
import logging
import math
import signal
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass
from functools import lru_cache
from logging.handlers import BufferingHandler
from typing import TYPE_CHECKING, Any, NamedTuple, TypeVar

import numpy as np

from streammoe import batch
from streammoe.batch import Fit, FitPlan, Listener
from streammoe.engine.batch import Descent
from streammoe.engine.em import Buffer
from streammoe.engine.interruption import LOOK_SECONDS, FitCancelled, is_cancelled, uncancellable
from streammoe.engine.search import LONG_ROUNDS, ample_size
from streammoe.engine.state import UnsoundError
from streammoe.errors import ConfigError, SourceError, not_installed
from streammoe.estimators import MixtureOfExperts, model_of
from streammoe.experts.on_sums import Sums
from streammoe.model.checks import is_whole
from streammoe.model.fits import Rows
from streammoe.model.gathering import gathered, gathering, joined_rows
from streammoe.persistence import format as checkpoint_format
from streammoe.scaleout import fitting, partitioned
from streammoe.scaleout.partitioned import Parts, Step
from streammoe.text import shown
from streammoe.types import AnyArray, FloatArray

if TYPE_CHECKING:
    from distributed import Client, Future
    from distributed.security import Security

__all__ = ["PIECE_ROWS", "SAMPLE_ROWS", "connected", "fit", "fit_parts"]

LOGGER = logging.getLogger("streammoe.distributed")
SAMPLE_ROWS = 10_000
"""Most rows of the sample whose fit is the start, unless the model needs more: a dozen or more for each parameter."""
PIECE_ROWS = 65_536
"""Most rows of a piece, of which a worker takes one at a time. The pieces, and so the result to the last bit, do not
depend on how many workers there are."""
COLUMN_VALUES = 2**23
"""Values of columns that a worker gets at once to find what is frozen of them, unless a single column has more."""
WITHOUT_PAGES: dict[str, list[str]] = {"distributed.scheduler.http.routes": [], "distributed.worker.http.routes": []}
"""Configuration of Dask: nothing about a fit can be read by HTTP."""
T = TypeVar("T")
Reader = Callable[[MixtureOfExperts, Any], Any]
"""Lets a model learn the rows of a part, and returns what its caller wants to know about that; called on a worker."""
Progress = Callable[[tuple[int, int]], object]
"""Called with the number of parts that are read, and of all."""


# -- Clusters ----------------------------------------------------------------------------------------------------------


@contextmanager
def connected(workers: int | None = None, scheduler: str | None = None) -> Iterator[Client]:
    """Connect to a scheduler, or start worker processes of one thread each on this machine, for the time of the block.

    Processes on this machine listen on the loopback interface only, talk to nobody but each other (TLS with a
    certificate made for the block and kept in memory), and end with the block.

    Args:
        workers: number of processes; by default as many as there are processors.
        scheduler: address of a scheduler, such as ``tcp://10.0.0.1:8786``; it has workers of its own.

    Raises:
        ConfigError: Dask is not installed, the address does not answer, or both arguments are given.
    """
    if workers is not None and not is_whole(workers, 1):
        raise ConfigError(f"workers: got {shown(workers)}; it must be a whole number ≥ 1")
    if workers is not None and scheduler is not None:
        raise ConfigError("workers, scheduler: give one of them; a scheduler has workers of its own")
    try:
        import dask
        from distributed import Client, LocalCluster
    except ImportError as error:
        raise not_installed("a fit by several processes", "dask[distributed]", "distributed") from error
    with ExitStack() as stack:
        stack.enter_context(_quiet("distributed"))
        if scheduler is not None:
            try:
                yield stack.enter_context(Client(scheduler))  # type: ignore[no-untyped-call]  # Dask has few types
            except (OSError, ValueError) as error:
                raise ConfigError(f"scheduler: {scheduler} does not answer ({error})") from error
            return
        folder = stack.enter_context(tempfile.TemporaryDirectory(prefix="streammoe-", ignore_cleanup_errors=True))
        # Forking a process that has threads may lock up for ever.
        stack.enter_context(dask.config.set({**WITHOUT_PAGES, "distributed.worker.multiprocessing-method": "spawn"}))
        cluster = LocalCluster(  # type: ignore[no-untyped-call]  # same
            n_workers=workers,
            threads_per_worker=1,
            processes=True,
            host="127.0.0.1",
            # Whoever talks to a scheduler can run code, and other users of the machine reach the loopback interface.
            security=_certificates(),
            # Without a dashboard there is still a server, which takes any port.
            scheduler_kwargs={"dashboard": False, "dashboard_address": "127.0.0.1:0"},
            local_directory=folder,
            silence_logs=logging.CRITICAL,
        )
        stack.enter_context(cluster)
        client = stack.enter_context(Client(cluster))  # type: ignore[no-untyped-call]  # same
        client.run(_leave_interrupts_to_the_parent)
        yield client


def _certificates() -> Security:
    from distributed.security import Security

    try:
        return Security.temporary()  # type: ignore[no-any-return, no-untyped-call]  # Dask has few types
    except ImportError as error:
        raise not_installed("a fit by several processes", "cryptography", "distributed") from error


@contextmanager
def _quiet(name: str) -> Iterator[None]:
    """Log nothing under a name for the time of the block: Dask reports each start and end of a process.

    What matters is raised where a result is awaited.
    """
    logger = logging.getLogger(name)
    before = logger.level
    logger.setLevel(logging.CRITICAL + 1)
    try:
        yield
    finally:
        logger.setLevel(before)


def _leave_interrupts_to_the_parent() -> None:
    """Ignore Ctrl-C, which a terminal sends to every process: the one that started the others decides what it means."""
    with suppress(ValueError):  # not in the main thread
        signal.signal(signal.SIGINT, signal.SIG_IGN)


# -- Fits --------------------------------------------------------------------------------------------------------------


def fit(
    model: MixtureOfExperts,
    data: Any,
    *,
    target: Any,
    weight: Any = None,
    start: str = "warmup",
    rounds: int = batch.ROUNDS,
    tolerance: float = batch.TOLERANCE,
    workers: int | None = None,
    client: Client | None = None,
    on_round: Listener | None = None,
) -> Fit:
    """Fit a model to the rows of a data frame in partitions, as `streammoe.batch.fit` does to rows at hand.

    Rounds are those of exact EM on all rows. They start from a fit to a sample of `SAMPLE_ROWS` rows, or from the
    model's own parameters; everything else is what one process finds that has all rows.

    Args:
        model: a regressor or classifier of this package. On an error it is not modified.
        data: a Dask data frame, or a sequence of data frames.
        target: name of the column of targets; a list of names for several outputs.
        weight: name of the column of weights; by default each row counts 1.
        start, rounds, tolerance, on_round: see `streammoe.batch.fit`.
        workers: number of processes to start on this machine for the time of the fit; by default one per processor.
        client: a client of Dask, whose workers to use instead.

    Raises:
        ConfigError: an argument is invalid, Dask is not installed, or the fit is not finite.
        InvalidEvent: a row is invalid; its index in its partition is in ``row``.
        SourceError: workers were lost again and again.
    """
    with ExitStack() as stack:
        if client is None:
            client = stack.enter_context(connected(workers))
        is_dask = hasattr(data, "to_delayed")
        parts = client.compute(data.to_delayed()) if is_dask else list(data)  # type: ignore[no-untyped-call]  # same
        several = isinstance(target, Sequence) and not isinstance(target, str)
        reader = _FrameReader(list(target) if several else target, weight)
        plan = FitPlan("em", start, rounds, tolerance, on_round=on_round)
        return fit_parts(client, model, parts, reader, plan)


def fit_parts(
    client: Client,
    model: MixtureOfExperts,
    parts: Sequence[Any],
    reader: Reader,
    plan: FitPlan,
    *,
    on_part: Progress | None = None,
    on_read: Callable[[list[Any]], object] | None = None,
) -> Fit:
    """Fit a model to rows in parts, which workers read.

    Args:
        client: of Dask.
        model: see `fit`.
        parts: whatever the reader takes; futures are replaced by their results.
        reader: reads a part, in the order of the parts, into a model that knows what those before it have found.
        plan: by EM.
        on_part: called as parts are read.
        on_read: called with what the reader returned of all parts, before the fit; may raise.

    Raises:
        ConfigError: an argument is invalid, there is no row, or the fit is not finite.
        SourceError: workers were lost again and again.
    """
    began = time.perf_counter()
    plan.check(model)
    with _lost_workers():
        read = _read_all(client, model, parts, reader, on_part)
        if on_read is not None:
            on_read([each.outcome for each in read.summaries])
        if not read.n:
            raise ConfigError("fit: got no row with a target and a weight above 0; give at least one")
        trial = _restored(read.model)
        _freeze(client, trial, read, from_model=plan.start == "model")
        rows, descent = _fit_rows(client, trial, read, plan)
        with uncancellable():
            total, losses, scores = (float(each[0]) for each in rows.scores(trial))
    vars(model).update(vars(trial))
    classify = model.is_classifier
    return Fit(
        model=model,
        method=plan.method,
        start=plan.start,
        n=read.n,
        trace=descent.trace,
        reason=descent.reason,
        log_loss=losses / total,
        rmse=None if classify else math.sqrt(scores / total),
        accuracy=scores / total if classify else None,
        seconds=time.perf_counter() - began,
    )


def _fit_rows(client: Client, trial: MixtureOfExperts, read: _ReadParts, plan: FitPlan) -> tuple[_OnWorkers, Descent]:
    """Fit a frozen model to the rows on workers, from a fit to a sample of them or from its own parameters."""
    try:
        begun = fitting.start_of(
            trial.learner,
            _sample(client, trial, read),
            from_model=plan.start == "model",
            rounds=min(plan.rounds, LONG_ROUNDS),
            tolerance=max(plan.tolerance, batch.TOLERANCE),
        )
        rows = _OnWorkers(client, trial, read, len(begun.theta.experts))
        descent = fitting.fit(
            trial.learner,
            rows,
            begun,
            is_empty=read.is_empty(len(trial.learner.encoder.fields)),
            rounds=plan.rounds,
            tolerance=plan.tolerance,
            on_round=plan.on_round,
        )
    except UnsoundError as error:
        raise batch.not_converged(error) from error
    return rows, descent


@contextmanager
def _lost_workers() -> Iterator[None]:
    """Turn the error of workers that are lost again and again into one of ours."""
    from distributed import KilledWorker

    try:
        yield
    except KilledWorker as error:
        raise SourceError(
            f"workers were lost again and again, which is most often for want of memory; give each more ({error})"
        ) from error


# -- Reading -----------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class _FrameReader:
    """Reads a data frame."""

    target: Any
    weight: Any

    def __call__(self, model: Any, frame: Any) -> None:
        others = [*self.target] if isinstance(self.target, list) else [self.target]
        others += [] if self.weight is None else [self.weight]
        if missing := [name for name in others if name not in frame.columns]:
            raise ConfigError(f"data: a partition has no column {shown(missing[0])} but {shown([*frame.columns])}")
        if len(frame):
            weights = None if self.weight is None else frame[self.weight].to_numpy()
            model.learn_many(frame.drop(columns=others), frame[self.target], weights)


class _Summary(NamedTuple):
    """What is known of a part that was read."""

    n: int
    """Number of rows to fit."""
    present: FloatArray
    """(F,) how many values there are of each field."""
    outcome: Any
    log: list[tuple[str, int, str]]


class _ReadParts(NamedTuple):
    """Parts whose rows the workers hold."""

    model: bytes
    """The model after all of them, of which it has learned nothing yet."""
    futures: list[Future[Any]]
    """Of each part the model after it, the rows, and the summary."""
    summaries: list[_Summary]

    @property
    def n(self) -> int:
        return sum(each.n for each in self.summaries)

    def is_empty(self, n_fields: int) -> Any:
        """Return which fields have no value in any row, (n_fields,)."""
        counts = [np.pad(each.present, (0, n_fields - len(each.present))) for each in self.summaries]
        return np.sum(counts, axis=0) == 0


def _read_all(
    client: Client, model: MixtureOfExperts, parts: Sequence[Any], reader: Reader, on_part: Progress | None
) -> _ReadParts:
    state: Any = _bytes_of(model)
    reads, summaries = [], []
    for at, (part, place) in enumerate(zip(parts, _places(client, len(parts)), strict=True)):
        read = client.submit(_read, reader, state, part, at, **place)
        reads.append(read)
        summaries.append(client.submit(_item, read, 2, pure=False))
        state = client.submit(_item, read, 0, pure=False)
    found = []
    said = set[str]()
    for at, (part, summary) in enumerate(zip(parts, summaries, strict=True)):
        each = _Summary(*_result(summary))
        for name, level, message in each.log:
            # What is said of one file is said of all that are alike.
            common = message.replace(part, "") if isinstance(part, str) else message
            if common not in said:
                logging.getLogger(name).log(level, "%s", message)
            said.add(common)
        found.append(each)
        if on_part is not None:
            on_part((at + 1, len(parts)))
    return _ReadParts(_result(state) if parts else state, reads, found)


def _result(future: Future[Any]) -> Any:
    """Wait for a result, as long as no stop is requested."""
    ended = threading.Event()
    future.add_done_callback(lambda _: ended.set())  # type: ignore[no-untyped-call]  # Dask has few types
    while not ended.wait(LOOK_SECONDS):
        if is_cancelled():
            raise FitCancelled
    return future.result()


def _read(reader: Reader, state: bytes, part: Any, at: int) -> tuple[bytes, tuple[AnyArray, ...], tuple[Any, ...]]:
    """Read a part into a model; return the model after it, the rows, and the parts of its summary."""
    model = _restored(state)
    with _taken_down() as records, gathering(model.learner):
        try:
            outcome = reader(model, part)
        except Exception as error:
            error.add_note(f"in part {at} of the data")
            raise
        rows = gathered(model.learner)
    log = [(record.name, record.levelno, record.getMessage()) for record in records]
    present = (~np.isnan(rows.X)).sum(axis=0).astype(np.float64)
    return _bytes_of(model), tuple(rows), (len(rows.X), present, outcome, log)


@contextmanager
def _taken_down() -> Iterator[list[logging.LogRecord]]:
    """Take down what is logged within a block, for the process that started it."""
    logger, handler = logging.getLogger("streammoe"), BufferingHandler(sys.maxsize)
    before = logger.level, logger.propagate
    logger.addHandler(handler)
    logger.setLevel(logging.INFO)
    logger.propagate = False
    try:
        yield handler.buffer
    finally:
        logger.removeHandler(handler)
        logger.setLevel(before[0])
        logger.propagate = before[1]


# -- What is frozen ----------------------------------------------------------------------------------------------------


def _freeze(client: Client, model: MixtureOfExperts, read: _ReadParts, *, from_model: bool) -> None:
    """Find what is frozen of each column, on workers, and let the model take it."""
    fields, data = model.learner.encoder.plan.numeric[:, 0].tolist(), client.submit(_same, read.model, pure=False)
    workers = max(len(_workers(client)), 1)
    at_once = max(min(math.ceil(len(fields) / workers), COLUMN_VALUES // read.n), 1)
    groups = [fields[at : at + at_once] for at in range(0, len(fields), at_once)]
    columns = [
        client.submit(_frozen_columns, data, _each(client, _columns, read.futures, group), pure=False)
        for group in groups
    ]
    targets = client.submit(_frozen_targets, data, _each(client, _targets, read.futures), pure=False)
    found = [fitting.Frozen(*_result(each)) for each in columns]
    fitting.freeze(model.learner, found, fitting.Frozen(*_result(targets)), from_model=from_model)


def _columns(read: tuple[Any, ...], fields: Sequence[int]) -> FloatArray:
    X = read[1][0]
    return np.column_stack([X[:, j] if j < X.shape[1] else np.full(len(X), np.nan) for j in fields])


def _targets(read: tuple[Any, ...]) -> FloatArray:
    Y: FloatArray = read[1][1]
    return Y


def _frozen_columns(data: bytes, parts: Sequence[FloatArray]) -> tuple[AnyArray, ...]:
    return tuple(fitting.frozen_columns(_restored(data).learner, np.concatenate(parts)))


def _frozen_targets(data: bytes, parts: Sequence[FloatArray]) -> tuple[AnyArray, ...]:
    return tuple(fitting.frozen_targets(_restored(data).learner, np.concatenate([Y for Y in parts if len(Y)])))


# -- The start ---------------------------------------------------------------------------------------------------------


def _sample(client: Client, model: MixtureOfExperts, read: _ReadParts) -> Rows:
    """Return rows drawn from all parts, in order; all of them if there are few enough."""
    context = model.learner.context
    size = max(SAMPLE_ROWS, ample_size(context.family, context.shape))
    chosen = np.arange(read.n)
    if read.n > size:
        chosen = np.sort(np.random.default_rng(context.options.seed).choice(read.n, size, replace=False))
    ends = np.cumsum([each.n for each in read.summaries])
    parts = []
    for future, end, each in zip(read.futures, ends.tolist(), read.summaries, strict=True):
        own = chosen[(chosen >= end - each.n) & (chosen < end)] - (end - each.n)
        if len(own):
            parts.append(client.submit(_rows_at, future, own, pure=False))
    rows = [Rows(*_result(part)) for part in parts]
    return joined_rows(rows, len(model.learner.encoder.fields), rows[0].Y.shape[1])


def _rows_at(read: tuple[Any, ...], chosen: AnyArray) -> tuple[AnyArray, ...]:
    return tuple(array[chosen] for array in read[1])


# -- Rounds ------------------------------------------------------------------------------------------------------------


class _OnWorkers(Parts):
    """Rows in pieces in the memory of workers, as features."""

    def __init__(self, client: Client, model: MixtureOfExperts, read: _ReadParts, n_experts: int) -> None:
        self.n = read.n
        self._client, self._n_experts = client, n_experts
        limits = model.learner.encoder.limits
        self._model = client.submit(_same, (_bytes_of(model), limits), pure=False)
        parts = [
            (future, start, min(start + PIECE_ROWS, each.n))
            for future, each in zip(read.futures, read.summaries, strict=True)
            for start in range(0, each.n, PIECE_ROWS)
        ]
        self._rows, self._pieces = [], []
        for part, place in zip(parts, _places(client, len(parts)), strict=True):
            rows = client.submit(_rows_between, *part, **place)
            self._rows.append(rows)
            self._pieces.append(client.submit(_features, self._model, rows, **place))
        read.futures.clear()  # workers forget what nobody holds a future of, once the pieces are made

    def kept(self, step: Step, *arguments: Any) -> list[Future[Any]]:
        return self._each(_kept, step, self._pieces, arguments)

    def total(self, step: Step, kept: list[Future[Any]], *arguments: Any) -> Sums:
        each = self._each(_summed, step, list(zip(self._pieces, kept, strict=True)), arguments)
        return self._added(each)

    def scores(self, model: MixtureOfExperts) -> Sums:
        """Return the sum of `streammoe.scaleout.fitting.score_sums` under the fitted model."""
        fitted = self._client.submit(_same, _bytes_of(model), pure=False)
        return self._added([self._client.submit(_scores, fitted, rows, pure=False) for rows in self._rows])

    def _each(self, function: Any, step: Step, pieces: Sequence[Any], arguments: tuple[Any, ...]) -> list[Future[Any]]:
        # Parameters are changed in place later.
        sent = copy.deepcopy(arguments)
        return [
            self._client.submit(function, step, self._model, self._n_experts, piece, *sent, pure=False)
            for piece in pieces
        ]

    def _added(self, each: list[Future[Any]]) -> Sums:
        width = 8  # of the tree: fewer steps than of a binary one, and still shared by the workers
        while len(each) > 1:
            each = [
                self._client.submit(partitioned.added_in_turn, each[at : at + width], pure=False)
                for at in range(0, len(each), width)
            ]
        found: Sums = _result(each[0])
        return found


def _rows_between(read: tuple[Any, ...], start: int, stop: int) -> tuple[AnyArray, ...]:
    return tuple(np.ascontiguousarray(array[start:stop]) for array in read[1])


def _features(model: tuple[bytes, Any], rows: tuple[AnyArray, ...]) -> tuple[Any, ...]:
    W, R, Y, weights = fitting.buffer_of(_frozen(*model).learner, Rows(*rows))
    return (None if W is R else W), R, Y, weights


def _em(model: tuple[bytes, Any], n_experts: int, piece: tuple[Any, ...]) -> Any:
    W, R, Y, weights = piece
    return fitting.part_of(_frozen(*model).learner, Buffer(R if W is None else W, R, Y, weights), n_experts)


def _kept(step: Step, model: tuple[bytes, Any], n_experts: int, piece: tuple[Any, ...], *arguments: Any) -> Any:
    return step(_em(model, n_experts, piece), *arguments)


def _summed(step: Step, model: tuple[bytes, Any], n_experts: int, place: tuple[Any, Any], *arguments: Any) -> Any:
    piece, kept = place
    return step(_em(model, n_experts, piece), kept, *arguments)


def _scores(data: bytes, rows: tuple[AnyArray, ...]) -> Sums:
    return fitting.score_sums(_restored(data).learner, Rows(*rows))


# -- What travels ------------------------------------------------------------------------------------------------------


def _each(
    client: Client, function: Callable[..., Any], futures: Sequence[Future[Any]], *arguments: Any
) -> list[Future[Any]]:
    return [client.submit(function, future, *arguments, pure=False) for future in futures]


def _places(client: Client, count: int) -> list[dict[str, Any]]:
    """Return the workers of so many tasks: as many on each, in order; those of a lost worker may go anywhere."""
    workers = _workers(client)
    if not workers:
        return [{"pure": False}] * count
    chosen = [workers[at * len(workers) // count] for at in range(count)]
    return [{"workers": [worker], "allow_other_workers": True, "pure": False} for worker in chosen]


def _workers(client: Client) -> list[str]:
    """Return the addresses of all workers that there are now."""
    return list(client.nthreads())  # type: ignore[no-untyped-call]  # Dask has few types


def _same(value: T) -> T:
    """Return an argument: unlike scattered data, the result can be computed again if its worker is lost."""
    return value


def _item(read: tuple[Any, ...], at: int) -> Any:
    return read[at]


def _bytes_of(model: MixtureOfExperts) -> bytes:
    return checkpoint_format.encode(model.arrays(), model.describe())


def _restored(data: bytes) -> MixtureOfExperts:
    origin = "a model of this fit"
    return model_of(checkpoint_format.decode(data, origin), origin)


def _frozen(data: bytes, limits: Any) -> MixtureOfExperts:
    """Return a model that is frozen; it must not be changed."""
    model = _kept_model(data)
    model.learner.encoder.limits = limits
    return model


@lru_cache(maxsize=4)  # parts of a few fits at a time
def _kept_model(data: bytes) -> MixtureOfExperts:
    return _restored(data)
