"""Of `streammoe.schedules`."""

from streammoe import schedules

CASES = {
    "power, alpha out of range": lambda _: schedules.power(alpha=0.4),
    "constant, gamma out of range": lambda _: schedules.constant(2.0),
}
