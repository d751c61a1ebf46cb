"""The statistics that a warm-up ends with are the mean of the literal algorithm's S̄ over the buffer, prior included."""

import numpy as np
import pytest

from benchmarks.oracle_agreement import FAMILIES, HOSTILE, STEPS, Case, oracle, powers, start_with_prior, stream
from streammoe.engine import mm
from streammoe.engine.em import Buffer, Em, statistics_at
from streammoe.experts import Parameters, families
from streammoe.kernels.state import VARIANCE_FLOOR, Prior

ROWS = 150


@pytest.mark.parametrize("strength", [0.0, 2.5])
@pytest.mark.parametrize("bound", ["tight", "paper", "adaptive"])
@pytest.mark.parametrize("family", [{}, *FAMILIES], ids=lambda family: " ".join(map(str, family.values())) or "-")
@pytest.mark.sampled(one_in=4)
def test_statistics_of_a_buffer(family, bound, strength):
    case = Case(3, 5, bound, HOSTILE, prior=1.0, **family)
    start, events = start_with_prior(case), stream(case, ROWS)
    weights = np.random.default_rng(1).uniform(0.2, 2.0, size=ROWS)
    rows = powers(events.X, 1)
    Y = events.y.reshape(ROWS, -1).astype(np.float64)
    kind = families()["categorical" if case.classes else f"{case.expert}{'_full' * (case.covariance == 'full')}"]
    given = start["prior"]
    prior = Prior(
        strength,
        given["gate_gram"],
        given["expert_gram"],
        given["experts"],
        given.get("variances", np.empty(0)),
        VARIANCE_FLOOR,
    )
    options = mm.learning_options(
        bound=bound,
        n_experts=case.K,
        n_rows=start["experts"].shape[1],
        prior_strength=strength,
        averaging=None,
        schedule=STEPS[HOSTILE],
    )
    theta = Parameters(
        start["gate"].copy(),
        start["experts"].copy(),
        start["variances"].copy() if "variances" in start else np.empty((case.K, 0)),
    )
    state = statistics_at(Em(kind, Buffer(rows, rows, Y, weights), prior, options), theta)

    literal = oracle(case, start)
    targets = events.y if case.classes else Y
    # All but 1e-15 of what it began with is forgotten, and the prior is left to what follows.
    literal.prior_strength = literal.prior_weight = 0.0
    literal.learn_group(list(zip(rows, rows, targets, strict=True)), 1.0 - 1e-15, weights)
    for name, s in literal.s.items():
        literal.s[name] = s * (ROWS / (ROWS + strength))
    literal.top_up_prior(strength / (ROWS + strength))
    literal.minimise()

    assert state.n[0] == ROWS
    assert state.prior_weight[0] == pytest.approx(strength / (ROWS + strength))
    for name, value in literal.theta.items():
        found = getattr(state, name)
        assert np.abs(found - value).max() <= 1e-9 * np.abs(value).max(), name
