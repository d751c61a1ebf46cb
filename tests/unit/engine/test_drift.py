"""The detector on the loss: what it finds, what it does not mind, and what it remembers.

Its every block is held to a literal detector in tests/oracle.
"""

import numpy as np
import pytest

from streammoe.engine.drift import BLOCK, CALIBRATION, THRESHOLD, TOLERANCE, Drift, DriftDetector
from streammoe.kernels.drift import exceeds, hold_against_usual

RNG = np.random.default_rng(0)
QUIET = 0.5 * RNG.chisquare(1, size=100 * BLOCK)
"""Losses of a Gaussian model that is right."""
AT = np.arange(len(QUIET))


def found(losses):
    """n at each drift, by the kernel's own functions, which take the losses block by block."""
    detector, closed, all_of_them = DriftDetector(), np.empty((1, 3)), []
    for start in range(0, len(losses), BLOCK):
        block, counts, usual, sums = detector.arrays_of_losses
        is_full = hold_against_usual(losses[start : start + BLOCK], block, counts, usual, closed)
        if is_full and counts[1] > CALIBRATION and exceeds(sums, closed[0, 0], TOLERANCE, THRESHOLD):
            all_of_them.append(start + BLOCK)
            detector.declare(Drift(start + BLOCK, *closed[0, 1:]))
    return all_of_them


@pytest.mark.parametrize(("rise", "blocks"), [(0.7, 30), (3.0, 8), (1e6, 6)])
def test_a_rise_of_the_loss_is_found_at_the_end_of_a_block(rise, blocks):
    begins = 60 * BLOCK + 5
    losses = QUIET + rise * (begins <= AT)
    [n] = found(losses)
    assert n % BLOCK == 0
    assert begins < n <= begins + blocks * BLOCK
    assert found(7.0 * losses - 1000.0) == [n]  # whatever the unit of the loss


@pytest.mark.parametrize(
    "losses",
    [
        pytest.param(QUIET - 3.0 * (AT >= 60 * BLOCK), id="a fall"),
        pytest.param(QUIET + 30.0 / (1.0 + AT / BLOCK), id="a model that improves and then does not"),
        pytest.param(np.where(AT % 61 == 40, 1e200, QUIET), id="absurd outliers"),
        pytest.param(np.where(np.arange(200 * BLOCK) < 100 * BLOCK, 1e-9, 2e-3), id="differences too small to matter"),
        pytest.param(QUIET + 3.0 * (AT >= (CALIBRATION - 10) * BLOCK), id="a change while it calibrates"),
        pytest.param(RNG.standard_t(3, size=10**6), id="a million with heavy tails"),
    ],
)
def test_this_is_no_drift(losses):
    assert found(losses) == []
