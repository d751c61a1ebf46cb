"""Incremental stochastic majorization-minimization for any surrogate that has sufficient statistics.

The mixtures of experts of this package are one use of it, with compiled kernels of their own. docs/mm.md says what a
surrogate is, how to derive one, and shows two that have nothing to do with experts.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping
from typing import Any, NamedTuple, Self

import numpy as np
from numpy.typing import ArrayLike

from streammoe.checked import LARGEST_COUNT, array_of, is_finite_number, require, restoring
from streammoe.engine.mixture import convergence_residual, learning_options
from streammoe.errors import ConfigError, InvalidEvent
from streammoe.kernels.shared import iterate_weight
from streammoe.model.checks import event_weight, is_whole
from streammoe.options import CHOICES, Averaging, RegressorOptions, checked
from streammoe.persistence import durable, pieces, read_checkpoint, state_digest
from streammoe.schedules import Schedule
from streammoe.text import shown
from streammoe.types import AnyArray, FloatArray

MAX_ABS = 1e140
"""Statistics beyond this are rejected: the convergence residual adds up their squares."""

ArrayTree = ArrayLike | tuple[ArrayLike, ...] | Mapping[str, ArrayLike]
"""Statistics or parameters: one array of numbers, a tuple of arrays, or a dict of arrays by name."""


class IncrementalMM:
    """A model that is learned by incremental stochastic majorization-minimization, one event at a time.

    The objective is E[f(θ; z)] over events z = (x, y). At each τ, f has a surrogate that lies above it and touches it:
    −ψ(θ) + ⟨S̄(τ; z), φ(θ)⟩ plus a constant. The model keeps s, a running mean of S̄, and with the n-th event makes

        s ← s + γ_n (S̄(θ; z_n) − s),    θ ← θ̄(s) = argmin_θ [⟨s, φ(θ)⟩ − ψ(θ)]

    This is Algorithm 1 of [MM], which writes the minimizer of the surrogate as the argmax of its negative; hence the
    name of the argument `maximize`.

    Statistics and parameters are each one array, a tuple of arrays, or a dict of arrays by name, whose first shapes
    never change. Both functions get read-only arrays in that form, and must depend on nothing but their arguments if a
    saved model is to resume bit for bit.

    Args:
        statistics: from x, y and the parameters θ to S̄(θ; z), the statistics of the surrogate at θ.
        maximize: from s to θ̄(s), the minimizer of the surrogate, in closed form or by a solver.
        initial_parameters: θ before the first event.
        initial_statistics: s before the first event; θ is θ̄(s) unless `initial_parameters` are given, too. With the
            default schedule γ_1 = 1, so the first event replaces them completely; a schedule with an `offset`, such as
            ``Power(0.6, offset=20)``, keeps them.
        schedule: step sizes, `streammoe.schedules.Power` or `Constant`; Power(0.6) without it.
        min_events: number of events after which θ is updated for the first time; 1 if left out. Until then θ stays as
            it is, and s is the plain mean of S̄ ([MM] §5). Take enough for θ̄(s) to be well defined. Not with
            `initial_statistics`.
        averaging: what `parameters` returns, as for the estimators. With constant steps no iterate counts less than γ.

    Raises:
        ConfigError: an argument is out of range or of a wrong type, or there is nothing to start from.

    The median of a stream: |x − θ| ≤ (x − θ)²/(2u) + u/2 with u = |x − τ|, so that S̄ holds 1/u and x/u. Rounding the
    tip off by 0.01 bounds 1/u.

    >>> median = IncrementalMM(
    ...     lambda x, y, theta: (1 / (0.01 + abs(x - theta)), x / (0.01 + abs(x - theta))),
    ...     lambda s: s[1] / s[0],
    ...     initial_parameters=0.0,
    ... )
    >>> for x in np.random.default_rng(0).exponential(size=10_000):
    ...     median.learn_one(x)
    >>> round(float(median.parameters()), 1)  # log 2
    0.7

    References:
        [MM] Tran, Nguyen, Fort et al., arXiv:2601.19811.
    """

    def __init__(
        self,
        statistics: Callable[[Any, Any, Any], Any],
        maximize: Callable[[Any], Any],
        *,
        initial_parameters: ArrayTree | None = None,
        initial_statistics: ArrayTree | None = None,
        schedule: str | Schedule | None = None,
        min_events: int | None = None,
        averaging: str | Averaging | None = "polyak",
    ) -> None:
        rules = [
            (callable(statistics), f"statistics: got {shown(statistics)}; it must be a function of x, y, parameters"),
            (callable(maximize), f"maximize: got {shown(maximize)}; it must be a function of statistics"),
            (
                min_events is None or (is_whole(min_events, 1) and initial_statistics is None),
                f"min_events: got {shown(min_events)}; it must be a whole number ≥ 1, without initial_statistics",
            ),
            (
                initial_parameters is not None or initial_statistics is not None,
                "initial_parameters: required unless initial_statistics are given",
            ),
        ]
        if problems := [problem for holds, problem in rules if not holds]:
            raise ConfigError(*problems)
        self._statistics = statistics
        self._maximize = maximize
        # These two have the same rules as for mixtures; the other options keep their defaults.
        options = checked(RegressorOptions, {"schedule": schedule, "averaging": averaging})
        self._schedule = options.schedule
        self._min_events = 0 if initial_statistics is not None else int(min_events or 1)
        self._averaging = options.averaging
        # Of what the kernels' options say, only the part about averages and the residual matters here.
        self._options = learning_options(
            bound="tight",
            n_experts=1,
            n_rows=1,
            prior_strength=0.0,
            averaging=options.averaging_kind,
            schedule=options.schedule,
            least_weight=getattr(options.averaging, "rate", 0.0),
        )
        try:
            s = None if initial_statistics is None else _pack(initial_statistics, "initial_statistics")
            theta = (
                _pack(initial_parameters, "initial_parameters")
                if initial_parameters is not None or s is None
                else _pack(maximize(s.unpack()), "maximize")
            )
        except InvalidEvent as error:
            raise ConfigError(str(error)) from None
        self._state = _State(0, 0, s, theta, theta, _zero_residual(s))

    def learn_one(self, x: Any, y: Any = None, w: float = 1.0) -> None:
        """Learn one event; one of weight 0 is checked, and not counted.

        Args:
            x: whatever `statistics` takes.
            y: its second argument.
            w: weight of the event, in [0, 1e6], which scales its term in the objective: s ← s + γ (w S̄ − s).

        Raises:
            InvalidEvent: S̄ is not finite, too large, or of another shape than before, or θ̄ would not be finite; nothing
                was learned. Whatever `statistics` or `maximize` raise leaves the model unchanged as well.
        """
        weight = event_weight(w)
        event_statistics = _pack(self._statistics(x, y, self._state.iterate.unpack()), "statistics", like=self._state.s)
        if weight > 0.0:
            weighted = {name: np.asarray(weight * block) for name, block in event_statistics.blocks.items()}
            self._state = self._stepped(_checked(event_statistics.kind, weighted, "w · statistics"), self.step_size)

    def step(self, statistics: ArrayTree, gamma: float | None = None) -> None:
        """Make one step towards statistics that were computed elsewhere; it counts as one event.

        For mini-batches, give the mean of S̄ over a batch, at the `last_iterate` before it. With γ = 1 and the mean over
        all data this is the batch MM algorithm.

        Args:
            statistics: in place of S̄(θ; z).
            gamma: the step γ, in (0, 1]; `step_size` without it.

        Raises:
            ConfigError: `gamma` is out of range.
            InvalidEvent: as for `learn_one`; nothing was learned.
        """
        if gamma is not None and not (is_finite_number(gamma) and 0.0 < gamma <= 1.0):
            raise ConfigError(f"gamma: got {shown(gamma)}; it must be a number above 0, at most 1")
        event_statistics = _pack(statistics, "statistics", like=self._state.s)
        self._state = self._stepped(event_statistics, self.step_size if gamma is None else float(gamma))

    def replace_statistics(self, statistics: ArrayTree) -> None:
        """Set s, and θ to θ̄(s), without counting an event: for a prior that is added later, or a merge of models.

        The average is kept, and includes θ from the next step on.

        Raises:
            InvalidEvent: as for `learn_one`; nothing has changed.
        """
        s = _pack(statistics, "statistics", like=self._state.s)
        theta = self._solved(s)
        average = self._state.average if self._options.averaging else theta
        residual = _zero_residual(s) if self._state.s is None else self._state.residual
        self._state = self._state._replace(s=s, iterate=theta, average=average, residual=residual)

    def _stepped(self, event_statistics: _Tree, gamma: float) -> _State:
        """Return the state after a step γ towards S̄."""
        n, m, s, theta, average, residual = self._state
        if s is None:
            residual = _zero_residual(event_statistics)
        elif n >= self._min_events:  # before, θ is not θ̄(s)
            residual = _tracked(residual, event_statistics.flat() - s.flat(), self._options.residual_weight)
        s = event_statistics if s is None else s.moved(event_statistics, gamma)
        if n + 1 < self._min_events:
            return _State(n + 1, m, s, theta, average, residual)
        theta = self._solved(s)
        m += 1
        weight = iterate_weight(m, self._options, gamma) if self._options.averaging else 1.0
        return _State(n + 1, m, s, theta, average.moved(theta, weight), residual)

    def _solved(self, s: _Tree) -> _Tree:
        """Return θ̄(s), once it is finite and of the parameters' shape."""
        try:
            return _pack(self._maximize(s.unpack()), "maximize", like=self._state.iterate)
        except InvalidEvent as error:
            if error.reason in {"not_finite", "out_of_range"}:
                message = f"the parameters would not stay finite ({error}); look at the event and its weight"
                raise InvalidEvent(message, reason="poison") from None
            raise ConfigError(str(error)) from None

    @property
    def n(self) -> int:
        """Number of events learned, including those before the first call of `maximize`."""
        return self._state.n

    def parameters(self) -> Any:
        """Return a copy of the average of θ that `averaging` selects, to predict with."""
        return self._state.average.unpack(writeable=True)

    @property
    def last_iterate(self) -> Any:
        """The latest θ̄(s), not averaged, at which the next S̄ is computed."""
        return self._state.iterate.unpack(writeable=True)

    @property
    def statistics(self) -> Any:
        """The running mean s, or ``None`` before there is any."""
        return None if self._state.s is None else self._state.s.unpack(writeable=True)

    @property
    def step_size(self) -> float:
        """γ of the next event: of the schedule, or 1/n as long as s is a plain mean."""
        n = self._state.n + 1
        return 1.0 / n if n <= self._min_events else self._schedule(n)

    @property
    def convergence_residual(self) -> float:
        """‖E(S̄ − s)‖ / E‖S̄ − s‖, exponentially weighted: near 0 at a stationary point ([MM] Prop. 1), 1 far from one.

        NaN until the first event after `maximize` was called.
        """
        return convergence_residual(self._state.residual)

    def __repr__(self) -> str:
        return f"IncrementalMM(n={self.n}, schedule={self._schedule}, averaging={self._averaging!r})"

    def save(self, path: str | os.PathLike[str]) -> None:
        """Write the model to one file, durably, in the package's checkpoint format; its functions are not part of it.

        Raises:
            ConfigError: `path` is no path.
            OSError: it cannot be written; a file that was there is as it was.
        """
        packed = {"statistics": self._state.s, "parameters": self._state.iterate}
        metadata = {
            "model": {
                "kind": _KIND,
                "arguments": {
                    "schedule": CHOICES["schedule"].table(self._schedule),
                    "averaging": CHOICES["averaging"].table(self._averaging),
                    "minimum": self._min_events,
                },
                "forms": {name: each.kind for name, each in packed.items() if each is not None},
            },
            "n": self.n,
            "state_digest": self.state_digest(),
        }
        arrays = self._state.arrays() | {"diagnostics.residual": self._state.residual}
        durable.replace(durable.path_of(path), *pieces(arrays, metadata))

    @classmethod
    def load(
        cls,
        path: str | os.PathLike[str],
        *,
        statistics: Callable[[Any, Any, Any], Any],
        maximize: Callable[[Any], Any],
        schedule: str | Schedule | None = None,
    ) -> Self:
        """Read a model that `save` wrote; with the same functions it resumes bit for bit. Nothing in the file executes.

        Steps are those of the saved model unless a schedule is given, for which n is as it was.

        Raises:
            CheckpointError: there is none, it is damaged, or holds something else.
            ConfigError: an argument is of a wrong type, or `maximize` makes something else of the statistics.
        """
        state, saved, minimum = _read(path)
        start, steps = state.iterate.unpack(), schedule or saved.schedule
        model = cls(statistics, maximize, initial_parameters=start, schedule=steps, averaging=saved.averaging)
        model._min_events, model._state = minimum, state
        if state.s is not None and state.n >= minimum:
            try:
                model._solved(state.s)
            except InvalidEvent as error:
                raise ConfigError(f"maximize: does not fit the statistics of {path} ({error})") from None
        return model

    def state_digest(self) -> str:
        """Return a fingerprint of all that shapes what comes next, save functions and schedule."""
        return state_digest(self._state.arrays())


_KIND = "IncrementalMM"


class _Tree(NamedTuple):
    """An `ArrayTree`, of which no array is ever changed in place."""

    kind: str
    """``array``, ``tuple`` or ``dict``."""
    blocks: dict[str, FloatArray]
    """The arrays by their names in alphabetical order, or places; one empty name if there is nothing else."""

    def unpack(self, *, writeable: bool = False) -> Any:
        """Return copies of the arrays in the form in which they were given."""
        arrays = {name: np.array(block) for name, block in self.blocks.items()}
        for array in arrays.values():
            array.flags.writeable = writeable
        if self.kind == "dict":
            return arrays
        return arrays[""] if self.kind == "array" else tuple(arrays.values())

    def moved(self, towards: _Tree, share: float) -> _Tree:
        """Return arrays that are a share of the way nearer to others."""
        if share >= 1.0:  # s + 1 · (S̄ − s) is not S̄ in floating point
            return towards
        both = zip(self.blocks.items(), towards.blocks.values(), strict=True)
        return _Tree(self.kind, {name: np.asarray(block + share * (end - block)) for (name, block), end in both})

    def flat(self) -> FloatArray:
        """Return all numbers as one vector."""
        return np.concatenate([np.empty(0), *(block.ravel() for block in self.blocks.values())])

    def by_name(self, what: str) -> dict[str, AnyArray]:
        """Return the arrays by their names in a file."""
        prefix = f"mm.{what}"
        if self.kind == "array":
            return {prefix: self.blocks[""]}
        return {f"{prefix}.{name}": block for name, block in self.blocks.items()}

    def form(self) -> str:
        """Describe kind, names and shapes."""
        if self.kind == "array":
            return f"an array of shape {self.blocks[''].shape}"
        described = ", ".join(f"{name}: {block.shape}" for name, block in self.blocks.items())
        return f"a {self.kind} of arrays with shapes {{{described}}}"


class _State(NamedTuple):
    """The mutable part of a model; a step creates a new one, so that an error leaves the old one in place."""

    n: int
    n_average: int
    """Number of iterates in the average."""
    s: _Tree | None
    iterate: _Tree
    average: _Tree
    residual: FloatArray
    """E(S̄ − s), E‖S̄ − s‖ and the number of events behind them, as `engine.mixture.convergence_residual` expects."""

    def arrays(self) -> dict[str, AnyArray]:
        """Return all but the residual by the names in a file."""
        counts = {"mm.counts": np.array([self.n, self.n_average], dtype=np.int64)}
        of_s = {} if self.s is None else self.s.by_name("statistics")
        return counts | of_s | self.iterate.by_name("parameters") | self.average.by_name("average")


def _zero_residual(s: _Tree | None) -> FloatArray:
    return np.zeros((0 if s is None else s.flat().size) + 2)


def _tracked(residual: FloatArray, increment: FloatArray, least_weight: float) -> FloatArray:
    """Return the running means behind `convergence_residual` with one S̄ − s more, in the engine's layout."""
    count = residual[-1] + 1.0
    weight = max(1.0 / count, least_weight)
    now = np.append(increment, np.sqrt(np.sum(increment**2)))
    return np.append(residual[:-1] + weight * (now - residual[:-1]), count)


def _pack(value: Any, what: str, like: _Tree | None = None) -> _Tree:
    """Copy arrays into one vector after checking each number.

    Args:
        value: statistics or parameters.
        what: their origin, for messages.
        like: required form.

    Raises:
        InvalidEvent: they are not arrays of finite numbers, or of another form.
    """
    if type(value) is tuple:
        kind, named = "tuple", {str(index): array for index, array in enumerate(value)}
    elif isinstance(value, tuple):
        message = f"{what}: got a {type(value).__name__}; give a plain tuple or a dict, which a file can hold"
        raise InvalidEvent(message, reason="wrong_type")
    elif isinstance(value, Mapping):
        if any(not isinstance(name, str) for name in value):
            raise InvalidEvent(f"{what}: got names {shown(list(value))}; they must be text", reason="wrong_type")
        kind, named = "dict", {str(name): value[name] for name in sorted(value)}
    else:
        kind, named = "array", {"": value}
    arrays = {name: _real_array(array, _location(what, name)) for name, array in named.items()}
    if like is not None and (form := _Tree(kind, arrays).form()) != like.form():
        raise InvalidEvent(f"{what}: got {form}; it must be {like.form()}, as before", reason="wrong_shape")
    return _checked(kind, arrays, what)


def _checked(kind: str, arrays: Mapping[str, FloatArray], what: str) -> _Tree:
    """Return arrays once each number is in range."""
    for name, array in arrays.items():
        if np.abs(array).max(initial=0.0) <= MAX_ABS:  # which NaN is not
            continue
        location = _location(what, name)
        if np.isfinite(array).all():
            message = f"{location}: holds a number beyond ±{MAX_ABS:g}; rescale the input"
            raise InvalidEvent(message, reason="out_of_range")
        raise InvalidEvent(f"{location}: holds NaN or infinity; every number must be finite", reason="not_finite")
    return _Tree(kind, dict(arrays))


def _real_array(value: Any, what: str) -> FloatArray:
    """Convert a value to an array of real numbers."""
    try:
        array = value if isinstance(value, np.ma.MaskedArray) else np.asarray(value)
    except ValueError:
        raise InvalidEvent(f"{what}: the rows are not all of one length", reason="wrong_shape") from None
    if array.dtype.kind not in "fiub" or isinstance(array, np.ma.MaskedArray):
        raise InvalidEvent(f"{what}: got {shown(value)}; it must be an array of real numbers", reason="wrong_type")
    with np.errstate(over="ignore"):  # of longer floats, which become infinite
        return array.astype(np.float64)  # a copy, of which the caller has none


def _location(what: str, name: str) -> str:
    return f"{what}[{name!r}]" if name else what


def _read(path: str | os.PathLike[str]) -> tuple[_State, RegressorOptions, int]:
    """Return what a file holds: the state, the options, and `min_events`.

    Raises:
        CheckpointError: there is none, it is damaged, or holds something else.
    """
    checkpoint = read_checkpoint(path)
    with restoring(path):
        model, arrays = checkpoint.metadata["model"], checkpoint.arrays
        kind, arguments, forms = model["kind"], dict(model["arguments"]), model["forms"]
        require(kind == _KIND, f"holds a {shown(kind)}, and no {_KIND}; use streammoe.load")
        s = _restored(arrays, "statistics", forms["statistics"]) if "statistics" in forms else None
        theta, average = (_restored(arrays, name, forms["parameters"]) for name in ("parameters", "average"))
        require(theta.form() == average.form(), "parameters and their average are of different shapes")
        n, m = array_of(arrays, "mm.counts", "int64", (2,), least=0, most=LARGEST_COUNT).tolist()
        residual = array_of(arrays, "diagnostics.residual", "float64", _zero_residual(s).shape)
        require((residual[-2:] >= 0.0).all(), "array diagnostics.residual holds a norm or a count below 0")
        minimum = arguments.pop("minimum")
        require(is_whole(minimum, 0), f"minimum is {shown(minimum)}, and no count")
        state = _State(n, m, s, theta, average, residual)
        unknown = sorted(arrays.keys() - state.arrays().keys() - {"diagnostics.residual"})
        require(not unknown, f"there are arrays that belong to no such model: {shown(unknown)}")
        return state, checked(RegressorOptions, arguments), minimum


def _restored(arrays: Mapping[str, AnyArray], what: str, kind: str) -> _Tree:
    """Return the arrays of a checkpoint that `_Tree.by_name` has named."""
    prefix = f"mm.{what}"
    require(kind in {"array", "tuple", "dict"}, f"{what} have the form {shown(kind)}")
    names = [prefix] if kind == "array" else [name for name in arrays if name.startswith(f"{prefix}.")]
    blocks = [array_of(arrays, name, "float64", np.shape(arrays.get(name, 0.0))) for name in names]
    found: Any = {name[len(prefix) + 1 :]: block for name, block in zip(names, blocks, strict=True)}
    if kind != "dict":
        found = found[""] if kind == "array" else tuple(found[str(at)] for at in range(len(found)))
    return _pack(found, what)
