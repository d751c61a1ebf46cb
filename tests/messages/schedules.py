"""Of `streammoe.schedules`."""

from streammoe import schedules
from streammoe.schedules import from_settings

CASES = {
    "power, alpha out of range": lambda _: schedules.power(alpha=0.4),
    "constant, gamma out of range": lambda _: schedules.constant(2.0),
    "power, two numbers out of range": lambda _: schedules.power(2, gamma0=-1),
    "power, text for a number": lambda _: from_settings({"kind": "power", "alpha": "0.6"}),
    "power, offset below 0": lambda _: from_settings({"kind": "power", "offset": -1}),
    "power, unknown name": lambda _: from_settings({"kind": "power", "alfa": 1}),
    "constant, nothing": lambda _: from_settings({"kind": "constant"}),
    "unknown kind": lambda _: from_settings({"kind": "cosine"}),
    "no kind": lambda _: from_settings({}),
}
