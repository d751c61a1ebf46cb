"""The steady and the quick member, held to the formulas: one expert of the mixture's family with steps of 1/n."""

import numpy as np
import pytest

from streammoe import MoEClassifier, MoERegressor
from streammoe.engine.members.contract import Rows
from streammoe.engine.members.quick import Quick
from streammoe.engine.members.steady import Steady
from streammoe.options import WarmUp
from tests.oracle.literal import ALGORITHMS, log_softmax

MODELS = {"gaussian": (MoERegressor, {}), "categorical": (MoEClassifier, {"classes": (0, 1, 2)})}
P, COUNT, N = 3, 60, 90


@pytest.mark.parametrize(("member_of", "least", "begins"), [(Steady, 3e-3, N), (Steady, 3e-3, 303), (Quick, 0.05, 5)])
@pytest.mark.parametrize("family", MODELS)
def test_predictions_and_losses_are_those_of_the_formulas(family, member_of, least, begins, monkeypatch):
    """Also where 1/n falls below the least step, after 333 events or 20."""
    monkeypatch.setattr("streammoe.engine.warmup.pace", lambda *_: np.inf)
    kind, arguments = MODELS[family]
    rng = np.random.default_rng(5)
    X = rng.normal(size=(N + COUNT, P))
    line = X @ [1.0, -2.0, 0.5] + 0.5 * rng.normal(size=len(X))
    y = line if kind is MoERegressor else np.digitize(line, [-1.0, 1.0])
    model = kind(2, warmup=WarmUp(N, restarts=1), standardize=True, **arguments)
    model.learn_array(X[:N], y[:N])
    (member,) = (each for each in model.learner.phase.portfolio.members if isinstance(each, member_of))
    member.state.n[0] = begins
    encoder = model.learner.encoder
    R = encoder.design(encoder.hold(X[N:])[0])[1]
    targets = (y[N:, None] - encoder.scaler.target_center) / encoder.scaler.target_scale
    state, p = member.state, R.shape[1]
    prior = {"gate_gram": np.ones(p), "expert_gram": state.prior_expert_gram, "experts": state.prior_experts}
    prior["variances"] = state.prior_variances
    start = {"gate": np.empty((0, p)), "gate_gram": np.eye(p), "decay": float(state.decay[0]), "prior": prior}
    start |= {name: getattr(state, name).copy() for name in ("experts", "variances", "masses")}
    grams = state.expert_grams * state.decay[0]
    start |= {"expert_grams": grams, "prior_weight": float(state.prior_weight[0])}
    slow = ALGORITHMS[family](start, bound="adaptive", prior_strength=1.0)
    weights = rng.uniform(0.5, 2.0, size=COUNT)
    given = Rows(np.empty((COUNT, 0)), R, targets, weights, R)
    found = member.learn(given, None, n_outputs=1 if kind is MoERegressor else 3, traced=False)
    for i, r in enumerate(R):
        theta, target = slow.theta, targets[i] if kind is MoERegressor else int(y[N + i])
        expected = theta["experts"][0] @ r
        if kind is MoEClassifier:
            expected = np.exp(log_softmax(slow.class_logits(r, theta)[0]))
        np.testing.assert_allclose(found.predictions[i], expected, rtol=1e-7, atol=1e-9)
        gamma = max(1.0 / (begins + i + 1), least)
        loss = slow.learn(r, r, target, gamma, weights[i])
        np.testing.assert_allclose(found.losses[i], loss, rtol=1e-7, atol=1e-9)
