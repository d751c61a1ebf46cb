"""A curvature in blocks of features: what it costs, what it still knows, and that it survives whatever happens.

That its iterates are those of the mathematics is in `tests/oracle/test_iterates.py`, and that no restart leaves a trace
in `tests/invariants`.
"""

import numpy as np
import pytest

from streammoe import Blocks, MoEClassifier, MoERegressor, WarmUp, batch, load, reduce
from streammoe.errors import ConfigError
from tests.unit.estimators.damages import quiet

N = 1_500


def correlated(p, n=N, seed=0):
    """Inputs that share factors, and targets of two linear experts."""
    rng = np.random.default_rng(seed)
    X = rng.normal(size=(n, 3)) @ rng.normal(size=(3, p)) + rng.normal(size=(n, p))
    beta = rng.normal(size=(2, p)) / np.sqrt(p)
    first = X @ rng.normal(size=p) > 0.0
    return X, np.where(first, X @ beta[0] + 1.0, X @ beta[1] - 1.0) + 0.3 * rng.normal(size=n)


def trained(X, y, curvature, kind=MoERegressor, **given):
    model = kind(2, curvature=curvature, **{"warmup": WarmUp(300, restarts=1), **given})
    with quiet():
        model.learn_array(X, y)
    return model


def test_no_matrix_is_left_after_the_warm_up():
    X, y = correlated(100, 800)
    model = trained(X, y, Blocks(16))
    of_steps = {
        name: array.nbytes
        for name, array in model.arrays().items()
        if name.startswith(("state.", "portfolio.")) and ".growing." not in name and ".curved" not in name
    }
    assert {"portfolio.steady.expert_grams", "portfolio.quick.expert_inverses"} <= of_steps.keys()
    # A matrix of all features is 104² numbers; blocks are 7 16², and all coefficients take less than that.
    assert max(of_steps.values()) == 8 * 7 * 16 * 16


@pytest.mark.parametrize("kind", [MoERegressor, MoEClassifier])
def test_it_predicts_nearly_as_well_as_whole_matrices(kind):
    X, y = correlated(40, 4_000)
    targets = (y > 0.0).astype(int) if kind is MoEClassifier else y
    losses = []
    for curvature in ("full", "blocks", Blocks(8)):
        model = kind(2, curvature=curvature, curved="off", refits=False, warmup=WarmUp(restarts=1))
        with quiet():
            losses.append(model.learn_array(X, targets)[2_000:].mean())
    assert losses[1] < losses[0] + 0.02
    assert losses[2] < losses[0] + 0.05


def test_whole_matrices_begin_a_model_in_blocks_and_not_the_other_way_round():
    X, y = correlated(20, 600)
    names = [f"x{j:02}" for j in range(20)]
    whole, in_blocks = (trained(X, y, curvature).parameters() for curvature in ("full", Blocks(8)))
    model = MoERegressor.from_parameters(whole, feature_names=names, curvature=Blocks(8))
    model.learn_array(X, y, feature_names=names)
    assert model.is_finite()
    with pytest.raises(ConfigError, match="gate_gram"):
        MoERegressor.from_parameters(in_blocks, feature_names=names)
    with pytest.raises(ConfigError, match="gram_blocks"):
        MoERegressor.from_parameters(in_blocks, feature_names=names, curvature=Blocks(16))


@pytest.mark.parametrize("kind", [MoERegressor, MoEClassifier])
def test_late_columns_and_classes_join_the_last_block_and_new_ones(kind):
    X, y = correlated(9, 900)
    targets = np.digitize(y, [-1.0, 0.0, 1.0]) if kind is MoEClassifier else y
    model = kind(2, curvature=Blocks(4), warmup=WarmUp(200, restarts=1))
    with quiet():
        for i in range(900):
            target = targets[i] % 2 if i < 400 and kind is MoEClassifier else targets[i]
            seen = 3 if i < 500 else 9
            model.learn_one({f"x{j}": X[i, j] for j in range(seen)}, target)
    parameters = model.parameters()
    assert parameters["gram_blocks"].shape == (3, 4, 4)
    assert parameters["experts"].shape[2] == 10
    gram = parameters["gram_blocks"]
    assert (np.einsum("bii->bi", gram)[:2] > 0.0).all()
    # Features of one block are known to be correlated, those that came later as well.
    assert np.abs(gram[1] - np.diag(np.diag(gram[1]))).max() > 0.0
    assert model.is_finite()


def test_experts_are_told_apart():
    X, y = correlated(20, 2_000)
    whole, in_blocks = (trained(X, y, curvature).experts() for curvature in ("full", "blocks"))
    for expected, found in zip(whole, in_blocks, strict=True):
        assert found["share"] == pytest.approx(expected["share"], abs=0.1)
        assert found["divergence"] == pytest.approx(expected["divergence"], rel=0.5)
        assert found["condition"] == "alive"


def test_losses_of_experts_of_classes_are_their_entropies():
    X, y = correlated(20, 2_000)
    labels = np.digitize(y, [-0.7, 0.7])
    whole, in_blocks = (trained(X, labels, curvature, MoEClassifier).experts() for curvature in ("full", Blocks(6)))
    for expected, found in zip(whole, in_blocks, strict=True):
        assert 0.0 < found["loss"] < np.log(3.0)
        assert found["loss"] == pytest.approx(expected["loss"], abs=0.25)


def test_a_fit_to_all_rows_goes_on_in_blocks():
    X, y = correlated(20, 600)
    model = MoERegressor(2, curvature=Blocks(8))
    with quiet():
        batch.fit(model, X, y)
    assert model.parameters()["gram_blocks"].shape == (3, 8, 8)
    before = np.std(y - model.predict_array(X))
    with quiet():
        model.learn_array(X, y)
    assert np.std(y - model.predict_array(X)) < 1.1 * before


def test_statistics_of_experts_cannot_be_told_apart():
    X, y = correlated(5, 500)
    models = [trained(X, y, "blocks"), trained(X, y, "full")]
    with pytest.raises(ConfigError, match=r"models\[0\].*in blocks"):
        reduce(models)


def test_a_saved_model_is_the_same_and_has_no_residual(tmp_path):
    X, y = correlated(12, 500)
    model = trained(X, y, Blocks(5))
    model.save(tmp_path / "model")
    again = load(tmp_path / "model")
    assert again.curvature == Blocks(5)
    assert again.state_digest() == model.state_digest()
    assert np.isnan(model.convergence_residual)
