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
import signal
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass
from logging.handlers import BufferingHandler
from operator import itemgetter
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from streammoe import batch
from streammoe.batch import Fit, FitPlan, Listener
from streammoe.columns.fitting import fit_bounds
from streammoe.columns.ranges import limits_of
from streammoe.engine.batch import Descent
from streammoe.engine.em import Em
from streammoe.engine.interruption import LOOK_SECONDS, FitCancelled, is_cancelled, uncancellable
from streammoe.engine.recent import Rows
from streammoe.engine.search import ample_size
from streammoe.engine.state import UnsoundError
from streammoe.errors import ConfigError, SourceError, not_installed
from streammoe.estimators import MixtureOfExperts, model_of
from streammoe.experts import Parameters
from streammoe.experts.on_sums import Sums
from streammoe.model import fitting
from streammoe.model.checks import is_whole
from streammoe.model.gathering import Gathering, gathered, gathering, joined_rows
from streammoe.model.learner import Learner
from streammoe.model.predicting import score
from streammoe.persistence import format as checkpoint_format
from streammoe.scaleout import partitioned
from streammoe.scaleout.partitioned import PartitionedEm
from streammoe.text import shown

if TYPE_CHECKING:
    from distributed import Client, Future
    from distributed.security import Security

__all__ = ["PIECE_ROWS", "SAMPLE_ROWS", "connected", "fit", "fit_parts"]

SAMPLE_ROWS = 10_000
"""Most rows of the sample, unless the model needs more: a dozen or more for each parameter."""
PIECE_ROWS = 65_536
"""Most rows of a piece, of which a worker takes one at a time. The pieces, and so the result to the last bit, do not
depend on how many workers there are."""
SAMPLE_ROUNDS = 200
"""Most rounds of the fit to the sample."""
WITHOUT_PAGES: dict[str, list[str]] = {"distributed.scheduler.http.routes": [], "distributed.worker.http.routes": []}
"""Configuration of Dask: nothing about a fit can be read by HTTP."""
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
        # Dask reports each start and end of a process; what matters is raised where a result is awaited.
        stack.enter_context(_logging("distributed", level=logging.CRITICAL + 1))
        if scheduler is not None:
            try:
                client = stack.enter_context(Client(scheduler))  # type: ignore[no-untyped-call]  # Dask has few types
            except (OSError, ValueError) as error:
                raise ConfigError(f"scheduler: {scheduler} does not answer ({error})") from error
            yield client
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

    Rounds climb the likelihood of all rows. Scales, ranges and the prior come from a sample of `SAMPLE_ROWS` rows, the
    start from a fit to it or from the model's own parameters; everything else is what one process finds.

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
        plan = FitPlan(start, rounds, tolerance, on_round)
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
    from distributed import KilledWorker

    began = time.perf_counter()
    plan.check(model)
    try:
        read = _read_all(client, model, parts, reader, on_part)
        if on_read is not None:
            on_read([each.outcome for each in read.summaries])
        if not read.n:
            raise ConfigError("fit: got no row with a target and a weight above zero; give at least one")
        trial = _restored(read.model)
        rows, descent = _fit_rows(client, trial, read, plan)
        with uncancellable():
            total, losses, scores = (float(each[0]) for each in rows.scores(trial))
    except KilledWorker as error:
        raise SourceError(
            f"workers were lost again and again, which is most often for want of memory; give each more ({error})"
        ) from error
    vars(model).update(vars(trial))
    seconds = time.perf_counter() - began
    return Fit(model, plan.start, read.n, descent.trace, descent.reason, losses / total, scores / total, seconds)


def _fit_rows(client: Client, trial: MixtureOfExperts, read: _ReadParts, plan: FitPlan) -> tuple[_OnWorkers, Descent]:
    """Fit a model to the rows on workers, from a fit to a sample of them or from its own parameters."""
    learner = trial.learner
    try:
        begun, theta = _begun(learner, _sample(client, learner, read), plan)
        rows = _OnWorkers(client, trial, read, len(theta.experts))
        problem = PartitionedEm(begun.family, rows, begun.prior, begun.options)
        descent, state = partitioned.fit(
            problem, theta, rounds=plan.rounds, tolerance=plan.tolerance, on_round=plan.on_round
        )
    except UnsoundError as error:
        raise batch.not_converged(error) from error
    learner.encoder.limits = None
    learner.start(state)
    return rows, descent


def _begun(learner: Learner, sample: Rows, plan: FitPlan) -> tuple[Em, Parameters]:
    """Freeze scales and ranges by a sample, and return EM on it and where rounds over all rows begin."""
    context, encoder = learner.context, learner.encoder
    limits = np.full(len(encoder.fields), np.inf)
    limits[encoder.plan.numeric[:, 0]] = limits_of(encoder.columns.numbers(sample.X), encoder.range_factor)
    targets = sample.Y if context.family.is_metric else np.zeros_like(sample.Y)  # class indexes have no range
    encoder.limits = limits, limits_of(targets, encoder.range_factor)
    if plan.start == "model":
        fit_bounds(encoder, sample.X, sample.Y, joining=True)
        context.mean_weight[0] = sample.weights.mean()
    else:
        learner.phase = Gathering(rows=[sample])
        fitting.fit_gathered(
            learner,
            from_model=False,
            rounds=min(plan.rounds, SAMPLE_ROUNDS),
            tolerance=max(plan.tolerance, batch.TOLERANCE),
            on_round=None,
        )
    leader = learner.phase.leader
    assert leader is not None  # noqa: S101 - it has just been fitted, or `FitPlan.check` has seen parameters
    begun, (theta,) = fitting.at_the_model(context, leader, context.buffer(encoder, *sample))
    return begun, theta


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


def _read_all(
    client: Client, model: MixtureOfExperts, parts: Sequence[Any], reader: Reader, on_part: Progress | None
) -> _ReadParts:
    state: Any = _bytes_of(model)
    reads, summaries = [], []
    for at, (part, place) in enumerate(zip(parts, _places(client, len(parts)), strict=True)):
        read = client.submit(_read, reader, state, part, at, **place)
        reads.append(read)
        summaries.append(client.submit(itemgetter(2), read, pure=False))
        state = client.submit(itemgetter(0), read, pure=False)
    found = []
    said = set[str]()
    for at, (part, summary) in enumerate(zip(parts, summaries, strict=True)):
        each: _Summary = _result(summary)
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


def _read(reader: Reader, state: bytes, part: Any, at: int) -> tuple[bytes, Rows, _Summary]:
    """Read a part into a model; return the model after it, the rows, and the summary."""
    model = _restored(state)
    kept = BufferingHandler(sys.maxsize)  # for the process that started this one
    with _logging("streammoe", level=logging.INFO, handler=kept), gathering(model.learner):
        try:
            outcome = reader(model, part)
        except Exception as error:
            error.add_note(f"in part {at} of the data")
            raise
        rows = gathered(model.learner)
    log = [(record.name, record.levelno, record.getMessage()) for record in kept.buffer]
    return _bytes_of(model), rows, _Summary(len(rows.X), outcome, log)


@contextmanager
def _logging(name: str, *, level: int, handler: logging.Handler | None = None) -> Iterator[None]:
    """Log what is of a level under a name for the time of the block; to nobody but a handler, if one is given."""
    logger = logging.getLogger(name)
    before = logger.level, logger.propagate
    logger.setLevel(level)
    if handler is not None:
        logger.addHandler(handler)
        logger.propagate = False
    try:
        yield
    finally:
        if handler is not None:
            logger.removeHandler(handler)
        logger.setLevel(before[0])
        logger.propagate = before[1]


def _sample(client: Client, learner: Learner, read: _ReadParts) -> Rows:
    """Return rows drawn from all parts, in order; all of them if there are few enough."""
    context = learner.context
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
    rows: list[Rows] = [_result(part) for part in parts]
    return joined_rows(rows, len(learner.encoder.fields), rows[0].Y.shape[1])


def _rows_at(read: tuple[bytes, Rows, _Summary], chosen: Any) -> Rows:
    return read[1].part(chosen)


# -- Rounds ------------------------------------------------------------------------------------------------------------


class _OnWorkers:
    """Rows in pieces in the memory of workers, as they are and as EM takes them; see `partitioned.Parts`."""

    def __init__(self, client: Client, model: MixtureOfExperts, read: _ReadParts, n_experts: int) -> None:
        self.n = read.n
        self._client = client
        data = client.submit(_same, (_bytes_of(model), model.learner.encoder.limits), pure=False)
        parts = [
            (future, slice(start, min(start + PIECE_ROWS, each.n)))
            for future, each in zip(read.futures, read.summaries, strict=True)
            for start in range(0, each.n, PIECE_ROWS)
        ]
        self._rows, self._pieces = [], []
        for part, place in zip(parts, _places(client, len(parts)), strict=True):
            self._rows.append(client.submit(_rows_at, *part, **place))
            self._pieces.append(client.submit(_em, data, self._rows[-1], n_experts, **place))
        read.futures.clear()  # workers forget what nobody holds a future of, once the pieces are made

    def total(self, sums: Callable[..., Sums], *arguments: Any) -> Sums:
        """Add the sums of all pieces, in an order that depends on their number alone."""
        sent = copy.deepcopy(arguments)  # parameters are changed in place later
        return self._added([self._client.submit(sums, piece, *sent, pure=False) for piece in self._pieces])

    def scores(self, model: MixtureOfExperts) -> Sums:
        """Return the sums of `_score_sums` under the fitted model."""
        fitted = self._client.submit(_same, _bytes_of(model), pure=False)
        return self._added([self._client.submit(_score_sums, fitted, rows, pure=False) for rows in self._rows])

    def _added(self, each: list[Future[Any]]) -> Sums:
        width = 8  # of the tree: fewer steps than of a binary one, and still shared by the workers
        while len(each) > 1:
            each = [self._client.submit(_sum, each[at : at + width], pure=False) for at in range(0, len(each), width)]
        found: Sums = _result(each[0])
        return found


def _em(data: tuple[bytes, Any], rows: Rows, n_experts: int) -> Em:
    """Return EM on a piece of the rows, under a prior of strength 0."""
    learner = _restored(data[0]).learner
    learner.encoder.limits = data[1]
    context = learner.context
    buffer = context.buffer(learner.encoder, *rows.widened(len(learner.encoder.fields)))
    prior = context.family.unit_prior(0.0, buffer.W.shape[1], buffer.R.shape[1], context.targets.n_outputs)
    return Em(context.family, buffer, prior, context.learning_options(n_experts))


def _score_sums(data: bytes, rows: Rows) -> Sums:
    """Return Σ w, Σ w · loss in the target's own units, and Σ w · squared error, or of correct labels."""
    learner = _restored(data).learner
    X, Y, weights = rows.widened(len(learner.encoder.fields))
    scores, _ = score(learner, X, Y)
    if learner.context.family.is_metric:
        each = ((Y - scores.predictions) ** 2).mean(axis=1)
    else:
        each = scores.predictions.argmax(axis=1) == Y[:, 0]
    return tuple(np.array([np.sum(weights * values)]) for values in (np.ones(len(Y)), scores.losses, each))


def _sum(each: Sequence[Sums]) -> Sums:
    return tuple(sum(parts) for parts in zip(*each, strict=True))


# -- What travels ------------------------------------------------------------------------------------------------------


def _places(client: Client, count: int) -> list[dict[str, Any]]:
    """Return the workers of so many tasks: as many on each, in order; those of a lost worker may go anywhere."""
    workers = list(client.nthreads())  # type: ignore[no-untyped-call]  # Dask has few types
    if not workers:
        return [{"pure": False}] * count
    chosen = [workers[at * len(workers) // count] for at in range(count)]
    return [{"workers": [worker], "allow_other_workers": True, "pure": False} for worker in chosen]


def _same(value: Any) -> Any:
    """Return an argument: unlike scattered data, the result can be computed again if its worker is lost."""
    return value


def _bytes_of(model: MixtureOfExperts) -> bytes:
    return checkpoint_format.encode(model.arrays(), model.describe())


def _restored(data: bytes) -> MixtureOfExperts:
    origin = "a model of this fit"
    return model_of(checkpoint_format.decode(data, origin), origin)
