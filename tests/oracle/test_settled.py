"""The statistics that a warm-up ends with are the mean of the literal algorithm's S̄ over the buffer, prior included."""

import numpy as np
import pytest

from streammoe.engine.em import statistics_at
from tests.oracle.literal import ALGORITHMS
from tests.pairs import pairwise_cases
from tests.unit.cases import CASES, copied, problem, random_theta

N, P = 150, 5


def _halved(found, whole):
    """The step as often halved as the one that was found."""
    shorter = np.linalg.norm(whole) / np.linalg.norm(found)
    return whole * 0.5 ** round(float(np.log2(shorter)))


@pytest.mark.parametrize(
    "options",
    pairwise_cases(case=CASES, bound=["sharp", "tight", "paper", "adaptive"], strength=[0.0, 2.5], K=[3, 1]),
)
def test_statistics_of_a_buffer(options):
    case, bound, strength, K = (options[name] for name in ("case", "bound", "strength", "K"))
    em, theta = problem(case, N, P, K, strength=strength, bound=bound), random_theta(case, K, P)
    start = theta._asdict() | {"masses": np.full(K, 1.0 / K), "gate_gram": np.eye(P), "prior": em.prior._asdict()}
    start |= {"expert_grams": np.stack([np.eye(P)] * K), "decay": 1.0, "prior_weight": 0.0}
    literal = ALGORITHMS[case.name](start, bound=bound)
    state = statistics_at(em, copied(theta))

    targets = em.buffer.Y if case.family.is_metric else em.buffer.Y[:, 0].astype(int)
    literal.guarded = False
    # All but 1e-15 of what it began with is forgotten, and the prior is left to what follows.
    rows = zip(em.buffer.W, em.buffer.R, targets, strict=True)
    literal.learn_group(list(rows), 1.0 - 1e-15, em.buffer.weights)
    literal.mm.replace_statistics({name: s * (N / (N + strength)) for name, s in literal.mm.statistics.items()})
    literal.top_up_prior(strength / (N + strength))

    assert (state.n[0], state.decay[0]) == (N, 1.0)
    assert state.prior_weight[0] == pytest.approx(strength / (N + strength))
    for name, value in literal.theta.items():
        found, expected = getattr(state, name), value
        if name == "gate" and bound == "sharp" and value.size:
            expected = theta.gate + _halved(found - theta.gate, value - theta.gate)
        assert np.abs(found - expected).max(initial=0.0) <= 1e-9 * np.abs(expected).max(initial=0.0), name
