"""Of `streammoe.mm`: arguments, events, and files that do not fit."""

import math
from typing import NamedTuple

import numpy as np

from streammoe import load
from streammoe.mm import IncrementalMM
from streammoe.persistence import encode, read_checkpoint


class Pair(NamedTuple):
    a: float
    b: float


def _model(maximize=lambda s: s["sum"] / s["count"], **more):
    return IncrementalMM(lambda x, y, theta: x, maximize, **{"initial_parameters": 0.0} | more)


def _sees(found, **more):
    """Return a case of a model that has learned one event and gets these statistics for the next."""

    def case(_):
        model = _model(**more)
        model.learn_one({"sum": 1.0, "count": 1.0})
        model.learn_one(found)

    return case


def _file(change=lambda arrays, said: None, read=IncrementalMM.load, **functions):
    """Return a case of a file of which something was changed."""
    functions = functions or {"statistics": lambda x, y, theta: x, "maximize": lambda s: s["sum"] / s["count"]}

    def case(folder):
        model = _model()
        model.learn_one({"sum": 1.0, "count": 1.0})
        model.save(folder / "m")
        arrays, said = read_checkpoint(folder / "m")
        change(arrays, said)
        (folder / "m").write_bytes(encode(arrays, said))
        read(folder / "m", **functions if read is not load else {})

    return case


CASES = {
    "every argument wrong": lambda _: IncrementalMM(None, 1.0, schedule=0.01, min_events=0, initial_statistics=None),
    "unknown averaging": lambda _: _model(averaging="mean"),
    "min_events with statistics": lambda _: _model(min_events=2, initial_statistics={"sum": 0.0, "count": 1.0}),
    "initial parameters, text": lambda _: _model(initial_parameters={"a": "text"}),
    "initial parameters, a named tuple": lambda _: _model(initial_parameters=Pair(0.0, 1.0)),
    "gamma": lambda _: _model().step({"sum": 1.0, "count": 1.0}, gamma=2.0),
    "statistics, NaN": _sees({"sum": math.nan, "count": 1.0}),
    "statistics, large": _sees({"sum": 1e200, "count": 1.0}),
    "statistics, another shape": _sees({"sum": np.ones(2), "count": 1.0}),
    "statistics, a name less": _sees({"sum": 1.0}),
    "statistics, one array": _sees(1.0),
    "statistics, nothing": _sees(None),
    "statistics, ragged": _sees({"sum": [[1.0], [1.0, 2.0]], "count": 1.0}),
    "statistics, names that are no text": _sees({1: 1.0, 2: 1.0}),
    "parameters, NaN": _sees({"sum": 2.0, "count": 1.0}, maximize=lambda s: s["sum"] if s["sum"] == 1.0 else math.nan),
    "parameters, another shape": _sees({"sum": 2.0, "count": 1.0}, maximize=lambda s: [s["sum"], s["count"]]),
    "file, another kind": _file(lambda arrays, said: said["model"].update(kind="MoERegressor")),
    "file, read as an estimator": _file(read=load),
    "file, an array more": _file(lambda arrays, said: arrays.update({"mm.more": np.zeros(1)})),
    "file, an array less": _file(lambda arrays, said: arrays.pop("mm.average")),
    "file, a name less": _file(lambda arrays, said: arrays.pop("mm.statistics.sum")),
    "file, other statistics": _file(lambda arrays, said: arrays.update({"mm.statistics.sum": np.ones(3)})),
    "file, another average": _file(lambda arrays, said: arrays.update({"mm.average": np.ones(3)})),
    "file, parameters NaN": _file(lambda arrays, said: arrays["mm.parameters"].fill(math.nan)),
    "file, a count below 0": _file(lambda arrays, said: arrays["mm.counts"].fill(-1)),
    "file, no description": _file(lambda arrays, said: said.clear()),
    "file, no forms": _file(lambda arrays, said: said["model"].update(forms={})),
    "file, a schedule that is none": _file(lambda arrays, said: said["model"]["arguments"].update(schedule=0.1)),
    "file, a norm below 0": _file(lambda arrays, said: arrays["diagnostics.residual"].fill(-1.0)),
    "file, a minimum below 0": _file(lambda arrays, said: said["model"]["arguments"].update(minimum=-1)),
    "file, a form that is none": _file(lambda arrays, said: said["model"]["forms"].update(parameters="set")),
    "file, another function": _file(statistics=lambda x, y, theta: x, maximize=lambda s: [1.0, 2.0]),
}
