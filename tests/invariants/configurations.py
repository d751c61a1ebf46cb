"""Models, the one stream that they learn, and what may go wrong in it."""

import math
from datetime import UTC, datetime
from typing import Any, NamedTuple

import numpy as np
from allpairspy import AllPairs

from streammoe import MoEClassifier, MoEMultiTargetRegressor, MoERegressor, schedules
from streammoe.distributions import Gaussian
from streammoe.options import Auto, Lags

N, LATE_COLUMN, LATE_LABELS, CHANGE = 260, 57, (25, 118), 170
NEW_YEAR = datetime(2026, 1, 1, tzinfo=UTC).timestamp()
TARGETS = {MoERegressor: ("y0",), MoEMultiTargetRegressor: ("y0", "y1"), MoEClassifier: ("label",)}


class Configuration(NamedTuple):
    kind: type
    arguments: dict[str, Any]
    reaches: frozenset[str] = frozenset()
    """What has to happen to it amid the stream, or its script would say nothing of that."""

    def new(self):
        given = dict(self.arguments)
        if given["n_experts"] == "auto":
            given["n_experts"] = Auto(3)
        return self.kind(**given)

    @property
    def targets(self):
        return TARGETS[self.kind]

    @property
    def is_fragile(self):
        """Whether values in range would leave no finite model; classes take them, since weights are relative."""
        return self.arguments.get("range_factor") == 0.0 and self.kind is not MoEClassifier

    def __str__(self):
        given = ", ".join(f"{name}={value!r}" for name, value in self.arguments.items() if name not in ALWAYS)
        return f"{self.kind.__name__}({given})"


ALWAYS = {"categorical": ("Z",), "timestamps": ("t",), "numeric": ("a",), "max_levels": 3, "reservoir": 40}
MODELS = {
    "gaussian": (MoERegressor, {}),
    "student_t": (MoERegressor, {"expert": "student_t"}),
    "laplace": (MoERegressor, {"expert": "laplace"}),
    "several": (MoEMultiTargetRegressor, {}),
    "several, full": (MoEMultiTargetRegressor, {"expert": Gaussian("full")}),
    "classifier": (MoEClassifier, {}),
}
OPTIONS = {
    "model": list(MODELS),
    "n_experts": [2, "auto", 1],
    "warmup": [30, None, 0],
    "averaging": ["polyak", "exponential", "decay"],
    "serve": ["portfolio", "polyak"],
    "top_k": [None, 1],
    "bound": ["sharp", "adaptive", "tight", "paper"],
    "drift": ["off", "page_hinkley"],
    "standardize": [False, True],
    "degree": [1, 2],
    "schedule": [None, schedules.Constant(0.05)],
    "lags": [None, 3, Lags(2, ("a", "late"))],
    "curved": ["auto", "on", "off"],
    "hold": [True, False],
}


USUAL = [("gaussian", 30), ("gaussian", None), ("several, full", 30), ("classifier", 30), ("classifier", None)]
"""Models with defaults, and their first fits."""
HAPPENS = frozenset({"scaling", "fitting", "settled", "curved", "resting"})
"""What happens to them: new scales, fits with new scales or without, and a member that comes and rests."""


def can_be(row):
    """Whether the values chosen so far go together."""
    chosen = dict(zip(OPTIONS, row, strict=False))
    if chosen["model"] == "classifier" and chosen.get("lags") is not None:
        return False
    if chosen.get("curved") == "on" and not (chosen["serve"] == "portfolio" and chosen.get("hold", True)):
        return False
    return not (chosen.get("warmup") == 0 and (chosen.get("n_experts") == "auto" or chosen.get("standardize")))


def configurations():
    """Models with defaults, any two options together, and models that a single event in range can spoil."""
    found = []
    for name, warmup in USUAL:
        kind, arguments = MODELS[name]
        given = {"n_experts": 2, "warmup": warmup, "drift": "page_hinkley"}
        reaches = HAPPENS | {"drift"} if kind is not MoEClassifier and warmup else HAPPENS
        found.append(Configuration(kind, {**ALWAYS, **arguments, **given}, reaches))
    for row in AllPairs(list(OPTIONS.values()), filter_func=can_be):
        chosen = dict(zip(OPTIONS, row, strict=True))
        kind, arguments = MODELS[chosen.pop("model")]
        if kind is MoEClassifier:
            del chosen["lags"]
        found.append(Configuration(kind, {**ALWAYS, **arguments, **chosen}))
    fragile = {
        "degree": 3,
        "range_factor": 0.0,
        "hold": False,
        "prior_strength": 0.0,
        "schedule": schedules.Constant(0.999999),
    }
    for name, more in (
        ("gaussian", {"n_experts": 2, "warmup": 40, "drift": "page_hinkley", "lags": 2}),
        ("gaussian", {"n_experts": "auto", "warmup": 40, "drift": "page_hinkley"}),
        ("several, full", {"n_experts": 2, "warmup": None}),
        ("classifier", {"n_experts": 2, "warmup": 40}),
    ):
        kind, arguments = MODELS[name]
        found.append(Configuration(kind, {**ALWAYS, **arguments, **more, **fragile, "averaging": None}))
    return found


CONFIGURATIONS = configurations()
"""Categories are named `z`: where columns are fixed ahead, as the daemon does, levels come behind all of them."""
RNG = np.random.default_rng(5)
A, B, NOISE = RNG.normal(size=(3, N)).round(6)
WEIGHTS = RNG.choice([0.5, 1.0, 3.0], size=N)


def event(configuration, i):
    """The i-th event. Values are missing in some, and levels, a column and labels come late."""
    a, b = float(A[i]), float(B[i])
    side = 1.0 if i < CHANGE else -1.0
    y = side * (2.0 * b if a > 0.0 else -b) + 0.1 * float(NOISE[i])
    found = {
        "a": a,
        "b": b,
        "Z": 1 + int(i % 3 == 1) + 2 * int(i >= 20 and i % 3 == 2) + 4 * int(i >= 100 and i % 7 == 0),
        "t": datetime.fromtimestamp(NEW_YEAR + 5400 * i, UTC).isoformat(),
        "w": float(WEIGHTS[i]),
    }
    if i % 11 == 5:
        del found["b"]
    if i % 17 == 3:
        del found["Z"]
    if i >= LATE_COLUMN and i % 3:
        found["late"] = a * b
    if configuration.kind is MoEClassifier:
        rare = [i >= at and i % 5 == at % 5 for at in LATE_LABELS]
        return {**found, "label": "rare" if rare[1] else "some" if rare[0] else "up" if y > 0.0 else "down"}
    return {**found, "y0": y} | ({"y1": a - 10.0 * y} if configuration.kind is MoEMultiTargetRegressor else {})


HUGE = {"a": 9e49, "b": 1.0, "w": 1e6}
"""In range where that has no factor, and a cube of which the square overflows."""
ANYWHERE = ["a=inf", "a=1e300", "w=-1"]
_VALUES = {
    "a": {"nan": math.nan, "inf": math.inf, "1e300": 1e300, "text": "much", "None": None},
    "Z": {"list": [1], "nan": math.nan},
    "t": {"text": "yesterday", "1e300": 1e300},
    "y": {"nan": math.nan, "inf": math.inf, "list": [1.0]},
    "w": {"nan": math.nan, "-1": -1.0, "1e7": 1e7, "text": "heavy"},
}
DISTURBANCES = {
    **{f"{name}={value}": {name: held} for name, values in _VALUES.items() for value, held in values.items()},
    "huge": HUGE,
    "no record": {},
    "weight 0": {"w": 0.0},
    "no target": {},
}
MISSING = {"a=nan", "a=None", "Z=nan"}
"""What in a dict says that there is no value."""
_TEXTS = ["a=text", "t=text", "w=nan"]
BAD = {
    "one": [name for name in DISTURBANCES if name not in {"huge", "no record", "weight 0", "no target", *MISSING}],
    "many": [*ANYWHERE, *_TEXTS],
    "array": [*ANYWHERE, "a=nan", "t=1e300", "y=nan", "w=nan"],
    "rows": ["a=inf", "a=1e300", "t=1e300", "y=inf"],
    "csv": [*ANYWHERE, *_TEXTS, "a=nan", "w=text", "no record"],
    "jsonl": [*ANYWHERE, *_TEXTS, "a=nan", "Z=list", "y=list", "no record"],
    "parquet": [*ANYWHERE, "w=1e7"],
}
"""What each way rejects."""
IDLE = {way: ["weight 0", "no target"] if way in {"rows", "csv", "jsonl", "parquet"} else ["weight 0"] for way in BAD}
"""What is looked at, and not learned."""
