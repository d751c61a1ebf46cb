"""How near do predictions come where an expert is not linear, but a ReLU or a sigmoid of a linear function?

As experts of [CQT] and hidden units of [MD] C.1 may be: y = g(⟨a_k, x⟩) + noise, k = 1, 2 with a logistic gate, x
standard normal in ten dimensions, σ = 0.1, a_k and the gate on the sphere. Experts here are linear in their features,
so they become such curves only by several of them, by products (`curved`), or by features that bend: squares, or
cosines of random directions (Rahimi and Recht, NIPS 2007) next to the inputs. Figures are the RMSE of the prequential
predictions of the second half over that of the true mean.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import partial
from typing import Any

import numpy as np

from benchmarks.papers.sheets import Options, Sheet
from streammoe import MoERegressor

D, SIGMA, COSINES, SPREAD = 10, 0.1, 60, 0.4
"""Number of inputs, deviation of the noise, number of cosines and deviation of their directions."""
LINKS: dict[str, Callable[[np.ndarray], np.ndarray]] = {
    "linear": lambda t: t,
    "ReLU": lambda t: np.maximum(t, 0.0),
    "sigmoid": lambda t: 1.0 / (1.0 + np.exp(-t)),
}
MODELS: dict[str, dict[str, Any]] = {
    "defaults": {},
    "two experts": {"n_experts": 2},
    "two experts, without products": {"n_experts": 2, "curved": "off"},
    "two experts, squares": {"n_experts": 2, "degree": 2, "curved": "off"},
    f"two experts, {COSINES} cosines": {"n_experts": 2, "curved": "off"},
    "one expert": {"n_experts": 1, "curved": "off"},
}


def of_run(n: int, case: tuple[str, int]) -> list[float]:
    """Return the ratio of each model on one stream."""
    link, seed = case
    rng = np.random.default_rng(seed)
    A, w = rng.normal(size=(2, D)), rng.normal(size=D)
    A, w = A / np.linalg.norm(A, axis=1, keepdims=True), w / np.linalg.norm(w)
    X = rng.normal(size=(n, D))
    means, gate = LINKS[link](X @ A.T), 1.0 / (1.0 + np.exp(-X @ w))
    y = np.where(rng.random(n) < gate, means[:, 0], means[:, 1]) + SIGMA * rng.normal(size=n)
    true = gate * means[:, 0] + (1.0 - gate) * means[:, 1]
    cosines = np.cos(X @ rng.normal(scale=SPREAD, size=(D, COSINES)) + rng.uniform(0.0, 2.0 * np.pi, COSINES))
    found = []
    for name, settings in MODELS.items():
        inputs, model, half = np.hstack([X, cosines]) if "cosines" in name else X, MoERegressor(**settings), n // 2
        model.set_columns([f"x{j}" for j in range(inputs.shape[1])])
        said = model.learn_rows(inputs, y[:, None]).predictions[:, 0]
        found.append(float(np.sqrt(np.mean((y - said)[half:] ** 2) / np.mean((y - true)[half:] ** 2))))
    return found


def sheets(options: Options) -> Iterator[Sheet]:
    """Compute the table."""
    runs, n = options.count(3, 1), options.count(20_000, 2_000)
    cases = [(link, seed) for link in LINKS for seed in range(runs)]
    found = np.array(list(options.map(partial(of_run, n), cases))).reshape(len(LINKS), runs, -1).mean(axis=1)
    rows = [[name, *(f"{ratio:.3f}" for ratio in found[:, at])] for at, name in enumerate(MODELS)]
    yield Sheet(f"[CQT] links, RMSE / oracle, n = {n:,}, {runs} runs", ["", *LINKS], rows)
