"""The statistics that a warm-up ends with are the mean of the literal algorithm's S̄ over the buffer, prior included."""

import numpy as np
import pytest

from streammoe.engine import mixture
from streammoe.engine.em import Buffer, Em, statistics_at
from streammoe.experts import Parameters, families
from streammoe.kernels.state import VARIANCE_FLOOR, Prior
from tests.oracle.agreement import FAMILIES, HOSTILE, STEPS, Case, oracle, powers, start_of, stream
from tests.pairs import pairwise_cases

ROWS = 150
SOME = ["gaussian", "full 3", "student_t 3", "laplace", "2 classes", "5 classes"]


def _halved(found, whole):
    """The step as often halved as the one that was found."""
    shorter = np.linalg.norm(whole) / np.linalg.norm(found)
    return whole * 0.5 ** round(float(np.log2(shorter)))


@pytest.mark.parametrize(
    "options",
    pairwise_cases(family=SOME, bound=["sharp", "tight", "paper", "adaptive"], strength=[0.0, 2.5], K=[3, 1]),
)
def test_statistics_of_a_buffer(options):
    bound, strength = options["bound"], options["strength"]
    case = Case(options["K"], 5, bound, HOSTILE, prior=1.0, **FAMILIES[options["family"]])
    events = stream(case, ROWS)
    start = start_of(case, events)
    weights = np.random.default_rng(1).uniform(0.2, 2.0, size=ROWS)
    rows = powers(events.X, 1)
    Y = events.y.reshape(ROWS, -1).astype(np.float64)
    given = start["prior"]
    prior = Prior(
        strength,
        given["gate_gram"],
        given["expert_gram"],
        given["experts"],
        given.get("variances", np.empty(0)),
        VARIANCE_FLOOR,
    )
    chosen = mixture.learning_options(
        bound=bound,
        n_experts=case.K,
        n_rows=start["experts"].shape[1],
        prior_strength=strength,
        averaging=None,
        schedule=STEPS[HOSTILE],
    )
    variances = start.get("variances", np.empty((case.K, 0)))
    theta = Parameters(*(array.copy() for array in (start["gate"], start["experts"], variances)))
    state = statistics_at(Em(families()[case.family], Buffer(rows, rows, Y, weights), prior, chosen), theta)

    literal = oracle(case, start)
    targets = events.y if case.classes else Y
    literal.guarded = False
    # All but 1e-15 of what it began with is forgotten, and the prior is left to what follows.
    literal.prior_strength = literal.prior_weight = 0.0
    literal.learn_group(list(zip(rows, rows, targets, strict=True)), 1.0 - 1e-15, weights)
    literal.mm.replace_statistics({name: s * (ROWS / (ROWS + strength)) for name, s in literal.mm.statistics.items()})
    literal.top_up_prior(strength / (ROWS + strength))

    assert state.n[0] == ROWS
    assert state.decay[0] == 1.0
    assert state.prior_weight[0] == pytest.approx(strength / (ROWS + strength))
    for name, value in literal.theta.items():
        found, expected = getattr(state, name), value
        if name == "gate" and bound == "sharp" and value.size:
            expected = start["gate"] + _halved(found - start["gate"], value - start["gate"])
        assert np.abs(found - expected).max(initial=0.0) <= 1e-9 * np.abs(expected).max(initial=0.0), name
