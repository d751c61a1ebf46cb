"""The curved member, held to the formulas: one expert of the mixture's family on products of its features."""

import itertools

import numpy as np
import pytest

from streammoe import MoEClassifier, MoEMultiTargetRegressor, MoERegressor
from streammoe.distributions import Gaussian
from streammoe.engine.members.contract import Rows
from streammoe.options import WarmUp
from tests.oracle.literal import ALGORITHMS, log_softmax

MODELS = {
    "gaussian 1": (MoERegressor, {}),
    "gaussian_full 2": (MoEMultiTargetRegressor, {"expert": Gaussian("full")}),
    "student_t 1": (MoERegressor, {"expert": "student_t"}),
    "categorical 3": (MoEClassifier, {"classes": (0, 1, 2)}),
}
P, COUNT = 3, 60


def rows(n):
    rng = np.random.default_rng(5)
    X = rng.normal(size=(n, P))
    far = (X**2).sum(axis=1) + X[:, 0] * X[:, 1] + 0.5 * rng.normal(size=n)
    return X, far


@pytest.mark.parametrize("name", MODELS)
def test_predictions_and_losses_of_the_curved_member_are_those_of_the_formulas(name, monkeypatch):
    monkeypatch.setattr("streammoe.engine.warmup.pace", lambda *_: np.inf)
    kind, arguments = MODELS[name]
    family, M = name.split()
    X, far = rows(460)
    Y = {"1": far[:, None], "2": np.column_stack([far, X[:, 0]]), "3": np.digitize(far, [2.0, 4.0])[:, None]}[M]
    model = kind(2, warmup=WarmUp(400, restarts=1), standardize=True, **arguments)
    model.learn_array(X[:400], Y[:400] if M == "2" else Y[:400, 0])
    member = model.learner.phase.portfolio.members[-1]
    encoder = model.learner.encoder
    R = encoder.design(encoder.hold(X[400:])[0])[1]
    targets = (Y[400:] - encoder.scaler.target_center) / encoder.scaler.target_scale
    columns = [R[:, 0], *(R[:, 1 + j] for j in range(P))]
    columns += [R[:, 1 + i] * R[:, 1 + j] for i, j in itertools.combinations_with_replacement(range(P), 2)]
    products = np.column_stack(columns)
    state = member.state
    assert state.n[0] == 400, "it has learned the rows of the warm-up"
    p = len(columns)
    prior = {"gate_gram": np.ones(p), "expert_gram": state.prior_expert_gram, "experts": state.prior_experts}
    prior["variances"] = state.prior_variances
    start = {"gate": np.empty((0, p)), "gate_gram": np.eye(p), "decay": float(state.decay[0]), "prior": prior}
    start |= {name: getattr(state, name).copy() for name in ("experts", "variances", "masses")}
    start |= {"expert_grams": state.expert_grams * state.decay[0], "prior_weight": float(state.prior_weight[0])}
    slow = ALGORITHMS[family](start, bound="adaptive", prior_strength=1.0)
    weights = np.random.default_rng(1).uniform(0.5, 2.0, size=COUNT)
    given = Rows(np.empty((COUNT, 0)), R, targets, weights, R)
    found = member.learn(given, None, n_outputs=int(M), traced=False)
    for i in range(COUNT):
        r, theta = products[i], slow.theta
        y = targets[i] if kind is not MoEClassifier else int(Y[400 + i, 0])
        if kind is MoEClassifier:
            expected = np.exp(log_softmax(slow.class_logits(r, theta)[0]))
        else:
            expected = theta["experts"][0] @ r
        np.testing.assert_allclose(found.predictions[i], expected, rtol=1e-7, atol=1e-9)
        loss = slow.learn(r, r, y, member.step, weights[i])
        np.testing.assert_allclose(found.losses[i], loss, rtol=1e-7, atol=1e-9)
