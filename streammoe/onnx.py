"""Models as files of ONNX, by which runtimes in other languages predict what `predict_array` does."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping, Sequence
from functools import partial
from typing import Any, Literal

import numpy as np

from streammoe.columns.encoder import Encoder
from streammoe.engine.portfolio import shares_of_members
from streammoe.errors import ConfigError, not_installed
from streammoe.estimators import MixtureOfExperts, problem_of
from streammoe.kernels.features import DAY, FEW, FEWEST, LEAP, MARGIN, MONDAY, SETTLED, STILL, WEEK, YEAR
from streammoe.persistence import durable
from streammoe.text import shown, some_of
from streammoe.types import AnyArray, FloatArray, IntArray

try:
    from onnx import ModelProto, TensorProto, helper, numpy_helper
except ImportError as error:
    raise not_installed("streammoe.onnx", "onnx", "onnx") from error

__all__ = ["export"]

OPSET, IR_VERSION = 19, 9
"""The first versions in which `Equal` compares texts; onnxruntime reads them from 1.16 on."""
TYPES = {"float64": TensorProto.DOUBLE, "float32": TensorProto.FLOAT}


def export(model: MixtureOfExperts, path: durable.AnyPath, *, dtype: Literal["float64", "float32"] = "float64") -> None:
    """Write a model to a file of ONNX, durably; it needs a model that has learned something.

    Each column of the model is an input of its name, (rows, 1): numbers of `dtype`, categories as text, times as
    float64 in seconds since 1970-01-01 UTC. NaN and an empty text are missing values. What the file predicts is what
    `predict_array` does, up to rounding: of events that may come in any order, so that the member `series` is left out.

    Outputs of a regressor are ``mean`` (rows, Q), the point prediction, and ``variance`` (rows, Q), that of the
    predictive distribution; of a classifier ``label`` (rows,), as text, and ``probabilities`` (rows, M) in the order of
    `output_names`, which the file's metadata list; of both ``gate`` (rows, K), the mixture's. Where a column has the
    name of an output, the output's ends with an apostrophe.

    Raises:
        ConfigError: the model cannot be written in ONNX: it has learned nothing, sees lags, or has identifiers.
        OSError: the file cannot be written.
    """
    if problem := problem_of(model):
        raise ConfigError(f"model: {problem}")
    if dtype not in TYPES:
        raise ConfigError(f"dtype: got {shown(dtype)}; choose float64 or float32")
    columns, phase = model.learner.encoder.columns, model.learner.phase
    if not (columns.feature_names and phase.served(model.learner.context).members):
        raise ConfigError("model: has learned no events with inputs yet; let it learn some before it is exported")
    if columns.n_lags:
        rule = 'which a file cannot remember; export one that has learned with lags = "auto" or "off"'
        raise ConfigError(f"lags: all members see {some_of(columns.lagged[: columns.n_lags])}, {rule}")
    if columns.identifiers:
        rule = "a file cannot hold what the targets of so many levels were; learn with more max_levels, or without it"
        raise ConfigError(f"{some_of(columns.identifiers)}: {rule}")
    with np.errstate(over="ignore"):  # limits that float32 cannot hold are infinite there
        exported = _exported(model, dtype)
    durable.replace(durable.path_of(path), exported.SerializeToString(deterministic=True))


class _Graph:
    """A graph in the making: each call adds a node, and returns the name of what that computes."""

    def __init__(self, dtype: str) -> None:
        self.dtype = dtype
        self.nodes: list[Any] = []
        self.constants: list[Any] = []
        self.inputs: list[Any] = []
        self.outputs: list[Any] = []
        self._taken: set[str] = set()

    def __call__(self, kind: str, *values: str | AnyArray, **attributes: Any) -> str:
        """Add a node of this kind; values are names, or arrays, whose floats become those of the graph."""
        names = [value if isinstance(value, str) else self.constant(value, self.dtype) for value in values]
        found = self._new(f"{kind}_{len(self.nodes)}")
        self.nodes.append(helper.make_node(kind, names, [found], **attributes))
        return found

    def constant(self, value: AnyArray, dtype: str) -> str:
        """Add an array, with floats of this type, and return its name."""
        own = value.astype(dtype) if value.dtype == np.float64 else value
        name = self._new(f"constant_{len(self.constants)}")
        self.constants.append(numpy_helper.from_array(np.ascontiguousarray(own), name))
        return name

    def input(self, name: Any, kind: int) -> str:
        """Add an input, (rows, 1), and return its name."""
        found = self._new(str(name))
        self.inputs.append(helper.make_tensor_value_info(found, kind, ["rows", 1]))
        return found

    def output(self, name: str, value: str, *widths: int, kind: int | None = None) -> None:
        """Let a value be an output, (rows, *widths)."""
        found = self._new(name)
        self.nodes.append(helper.make_node("Identity", [value], [found]))
        shape: list[str | int | None] = ["rows", *widths]
        self.outputs.append(helper.make_tensor_value_info(found, TYPES[self.dtype] if kind is None else kind, shape))

    def _new(self, name: str) -> str:
        while name in self._taken:
            name += "'"
        self._taken.add(name)
        return name


def _exported(model: MixtureOfExperts, dtype: str) -> ModelProto:
    """Return as a graph what `predicting.score` does of rows that are not the next event; components are C in all."""
    learner, graph = model.learner, _Graph(dtype)
    context, encoder, scaler, targets = learner.context, learner.encoder, learner.encoder.scaler, learner.targets
    served, is_metric, Q = learner.phase.served(context), context.family.is_metric, targets.n_outputs
    kinds = {"number": TYPES[dtype], "category": TensorProto.STRING, "time": TensorProto.DOUBLE}
    W, R, unheld = _designs(graph, encoder, {n: graph.input(n, kinds[kind]) for n, kind in model.column_kinds.items()})
    # The member that sees the last targets has no share: the first one stands in for it.
    members = [at for at, member in enumerate(served.members) if not member.n_lags]
    gates, means, squares = [], [], []
    for predictor in (served.members[at] for at in members):
        theta, terms, base = predictor.theta, predictor.terms, R if predictor.is_held else unheld
        seen = base if terms is None else graph("Mul", *(graph("Gather", base, each, axis=1) for each in terms.T))
        K, _, p_v = theta.experts.shape
        free = theta.gate if K > 1 else np.empty((0, encoder.gate_width))  # one expert has no gate
        gates.append(graph("Softmax", graph("MatMul", W, np.pad(free, ((0, 1), (0, 0))).T), axis=1))
        # The first class is the reference, of logit 0, and the last expert that of the gate.
        rows = theta.experts if is_metric else np.pad(theta.experts, ((0, 0), (1, 0), (0, 0)))
        said = graph("Reshape", graph("MatMul", seen, rows.reshape(-1, p_v).T), np.array([0, K, Q]))
        means.append(said if is_metric else graph("Softmax", said, axis=2))
        squares.append(theta.variances if theta.variances.ndim == 2 else np.einsum("kqq->kq", theta.variances))
    gate, mean = graph("Concat", *gates, axis=1), graph("Concat", *means, axis=1)  # (rows, C) and (rows, C, Q)

    def shares(*, in_density: bool) -> str:
        own = shares_of_members(*served, is_next=False, in_density=in_density)[members]
        return graph("Unsqueeze", graph("Mul", gate, np.repeat(own, [*map(len, squares)])), np.array([2]))

    def mixed(shares: str, values: str, **attributes: int) -> str:
        return graph("ReduceSum", graph("Mul", shares, values), np.array([1]), **attributes)

    point = mixed(shares(in_density=False), mean, keepdims=0)
    if is_metric:
        low, high, _, seen_targets = encoder.target_bounds
        reach = np.where(encoder.holds & (seen_targets > FEWEST), MARGIN * (high - low), math.inf)
        point = graph("Add", graph("Mul", point, scaler.target_scale), scaler.target_center)
        graph.output("mean", _held(graph, point, low - reach, high + reach), Q)
        density = shares(in_density=True)
        apart = graph("Sub", mean, mixed(density, mean, keepdims=1))
        within = context.family.noise.spread(Q) * np.concatenate(squares)
        around = mixed(density, graph("Add", graph("Mul", apart, apart), within), keepdims=0)
        graph.output("variance", graph("Mul", around, scaler.target_scale**2), Q)
    else:
        labels = np.array([*map(str, targets.names)], dtype=object)
        likeliest = graph("Gather", labels, graph("ArgMax", point, axis=1, keepdims=0))
        graph.output("label", likeliest, kind=TensorProto.STRING)
        graph.output("probabilities", graph("Min", point, np.array(1.0)), Q)
    graph.output("gate", gates[0], len(squares[0]))
    whole = helper.make_graph(graph.nodes, "streammoe", graph.inputs, graph.outputs, graph.constants)
    made = helper.make_model(whole, opset_imports=[helper.make_opsetid("", OPSET)], ir_version=IR_VERSION)
    about = {"model": type(model).__name__, "n": str(model.n), "state_digest": model.state_digest()}
    helper.set_model_props(made, {**about, "outputs": json.dumps([*map(str, targets.lagged_names)])})
    return made


def _held(graph: _Graph, value: str, low: str | FloatArray, high: str | FloatArray) -> str:
    return graph("Min", graph("Max", value, low), high)


def _designs(graph: _Graph, encoder: Encoder, given: Mapping[Any, str]) -> tuple[str, str, str]:
    """Return what `Encoder.designs` does of the rows that the inputs hold."""
    plan, fields = encoder.plan, encoder.fields
    pieces = []
    for at, places in zip(plan.coded.tolist(), plan.places, strict=True):
        if levels := [*encoder.levels[fields[at]]]:
            is_level = graph("Equal", given[fields[at]], np.array([levels], dtype=object))
            pieces.append((graph("Cast", is_level, to=TYPES[graph.dtype]), places[: len(levels)]))
    if len(plan.timed):
        times = graph("Concat", *(given[fields[at]] for at in plan.timed[:, 0]), axis=1)
        pieces += _cycles(graph, encoder, times)
    held = near = ""
    if len(plan.numeric):
        raw = graph("Concat", *(given[fields[at]] for at in plan.numeric[:, 0]), axis=1)
        held, near = _numbers(graph, encoder, raw)
    features = partial(_features, graph, encoder, pieces)
    R = features(held, encoder.degree, encoder.expert_width)
    W = R if encoder.gate_degree == encoder.degree else features(held, encoder.gate_degree, encoder.gate_width)
    return W, R, features(near, encoder.degree, encoder.expert_width)


def _numbers(graph: _Graph, encoder: Encoder, raw: str) -> tuple[str, str]:
    """Return the scaled numbers, (rows, N), of raw ones: held to what was seen, and held only where far beyond it."""
    at, columns = encoder.plan.numeric.T
    low, high, _, seen = (each[at] for each in encoder.bounds)
    width = np.where(encoder.holds & (seen > SETTLED), high - low, math.inf)
    fill, center, scale = (each[columns] for each in encoder.scaler[:3])
    bounded = _held(graph, raw, encoder.plan.lowest[at], encoder.plan.highest[at])
    held = _held(graph, bounded, low - MARGIN * width, high + MARGIN * width)
    leaps = graph("Greater", graph("Abs", graph("Sub", bounded, held)), LEAP * width)
    missing, found = graph("IsNaN", raw), []
    for value in (held, graph("Where", leaps, held, bounded)):
        deviation = graph("Sub", graph("Where", missing, fill, value), center)
        # A column that has not varied says something where it does: see `kernels.features`.
        counts = graph("Greater", graph("Abs", deviation), np.where(scale != 1.0, -1.0, STILL * np.abs(center)))
        found.append(graph("Where", counts, graph("Div", deviation, scale), np.array(0.0)))
    return found[0], found[1]


def _cycles(graph: _Graph, encoder: Encoder, times: str) -> list[tuple[str, IntArray]]:
    """Return sines and cosines of times, (rows, T), in the day, the week and the year, and their columns."""
    T = len(encoder.plan.timed)
    at, first = np.tile(encoder.plan.timed, (3, 1)).T
    period, shift, cycle = (np.repeat(each, T) for each in ((DAY, WEEK, YEAR), (0.0, MONDAY, 0.0), (0, 2, 4)))
    low, high, _, seen = (each[at] for each in encoder.bounds)
    is_held, reach = (seen > FEW) & (high - low < period), MARGIN * (high - low)
    low = np.where(is_held, low - reach, encoder.plan.lowest[at])
    latest, high = np.where(is_held, high, math.nan), np.where(is_held, high + reach, encoder.plan.highest[at])
    # Seconds since 1970 take float64 in any case.
    own = partial(graph.constant, dtype="float64")
    times = graph("Concat", times, times, times, axis=1)
    known = graph("Where", graph("IsNaN", times), own(latest), _held(graph, times, own(low), own(high)))
    rest = graph("Mod", graph("Add", known, own(shift)), own(period), fmod=1)
    angle, found = graph("Mul", rest, own(2.0 * math.pi / period)), []
    for more, phase in enumerate((0.0, 0.5 * math.pi)):
        columns = first + cycle + more
        wave = graph("Cast", graph("Sin", graph("Add", angle, own(np.array(phase)))), to=TYPES[graph.dtype])
        found.append((graph("Where", graph("IsNaN", wave), encoder.scaler.fill[columns], wave), columns))
    return found


def _features(
    graph: _Graph, encoder: Encoder, pieces: Sequence[tuple[str, IntArray]], numbers: str, degree: int, width: int
) -> str:
    """Return features as `expand_rows` lays them out, (rows, width), given scaled numbers and other columns."""
    layout, columns = encoder.layout, encoder.plan.numeric[:, 1]
    parts, power = [(name, 1 + places) for name, places in pieces], numbers
    for d in range(degree if numbers else 0):
        power = graph("Mul", power, numbers) if d else numbers
        parts.append((power, 1 + columns if d == 0 else layout.n_features(d) + np.arange(layout.numeric)))
    # Behind the constant feature are the parts, and a zero for padding; then all get their places.
    joined = graph("Pad", graph("Concat", *(name for name, _ in parts), axis=1), np.array([0, 1, 0, 0]), np.array(1.0))
    places = np.concatenate([places for _, places in parts])
    order = np.full(width, 1 + len(places))
    order[[0, *places]] = np.arange(1 + len(places))
    return graph("Gather", graph("Pad", joined, np.array([0, 0, 0, 1])), order, axis=1)
