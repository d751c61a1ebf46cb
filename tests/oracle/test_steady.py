"""Members that are one expert of the mixture's family, held to the formulas: the curved one, and those of a pace."""

import itertools

import numpy as np
import pytest

from streammoe import MoEClassifier, MoEMultiTargetRegressor, MoERegressor
from streammoe.distributions import Gaussian
from streammoe.options import WarmUp
from tests.oracle.agreement import one_expert
from tests.oracle.literal import ALGORITHMS, log_softmax

MODELS = {
    "gaussian": (MoERegressor, {}),
    "gaussian_full": (MoEMultiTargetRegressor, {"expert": Gaussian("full")}),
    "student_t": (MoERegressor, {"expert": "student_t"}),
    "categorical": (MoEClassifier, {"classes": (0, 1, 2)}),
}
P, COUNT = 3, 60
LEAST = {"steady": 3e-3, "quick": 0.05}
"""Steps are 1/n, and no shorter than this."""


def products(row):
    """The features of the curved member, by the plain ones."""
    pairs = itertools.combinations_with_replacement(row[1 : 1 + P], 2)
    return np.array([*row[: 1 + P], *(a * b for a, b in pairs)])


@pytest.mark.parametrize(
    ("name", "family", "begins"),
    [
        *(("curved", family, None) for family in MODELS),
        # Also where 1/n falls below the least step, after 333 events or 20.
        *(("steady", "gaussian", begins) for begins in (90, 303)),
        ("steady", "categorical", 303),
        *(("quick", family, 5) for family in ("gaussian", "categorical")),
    ],
)
def test_predictions_and_losses_are_those_of_the_formulas(name, family, begins, monkeypatch):
    monkeypatch.setattr("streammoe.engine.warmup.pace", lambda *_: np.inf)
    kind, arguments = MODELS[family]
    n = 400 if name == "curved" else 90
    rng = np.random.default_rng(5)
    X = rng.normal(size=(n + COUNT, P))
    far = (X**2).sum(axis=1) + X[:, 0] * X[:, 1] if name == "curved" else X @ [1.0, -2.0, 0.5]
    far += 0.5 * rng.normal(size=len(X))
    Y = {MoEMultiTargetRegressor: np.column_stack([far, X[:, 0]]), MoERegressor: far[:, None]}.get(kind)
    Y = np.digitize(far, np.quantile(far, [0.3, 0.7]))[:, None] if Y is None else Y
    model = kind(2, warmup=WarmUp(n, restarts=1), standardize=True, **arguments)
    model.learn_array(X[:n], Y[:n] if kind is MoEMultiTargetRegressor else Y[:n, 0])
    (member,) = (each for each in model.learner.phase.portfolio.members if each.name == name)
    assert member.state.n[0] == n, "it has learned the rows of the warm-up"
    encoder = model.learner.encoder
    R = encoder.design(encoder.hold(X[n:])[0])[1]
    targets = (Y[n:] - encoder.scaler.target_center) / encoder.scaler.target_scale
    slow = one_expert(ALGORITHMS[family], member.state._asdict(), bound="adaptive")
    if begins:
        member.state.n[0] = begins
    weights = np.random.default_rng(1).uniform(0.5, 2.0, size=COUNT)
    found = member.learn(R, targets, weights, n_outputs=3 if kind is MoEClassifier else Y.shape[1])
    for i in range(COUNT):
        r, theta = products(R[i]) if name == "curved" else R[i], slow.theta
        y = targets[i] if kind is not MoEClassifier else int(Y[n + i, 0])
        if kind is MoEClassifier:
            expected = np.exp(log_softmax(slow.class_logits(r, theta)[0]))
        else:
            expected = theta["experts"][0] @ r
        np.testing.assert_allclose(found.predictions[i], expected, rtol=1e-7, atol=1e-9)
        step = member.step if name == "curved" else max(1.0 / (begins + i + 1), LEAST[name])
        np.testing.assert_allclose(found.losses[i], slow.learn(r, r, y, step, weights[i]), rtol=1e-7, atol=1e-9)
