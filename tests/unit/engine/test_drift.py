"""The watch on the loss: what it finds, what it does not mind, and what it remembers."""

import copy
import pickle

import numpy as np
import pytest
from river.drift import PageHinkley as RiversPageHinkley

from streammoe.engine.drift import BLOCK, CALIBRATION, DriftWatch
from streammoe.engine.page_hinkley import PageHinkley
from streammoe.errors import CheckpointError

RNG = np.random.default_rng(0)
QUIET = 0.5 * RNG.chisquare(1, size=100 * BLOCK)
"""Losses of a Gaussian model that is right."""


def found(losses):
    """n at each drift."""
    watch, n, all_of_them = DriftWatch(), 0, []
    while n < len(losses):
        drift = watch.take(losses[n:], n)
        if drift is None:
            break
        all_of_them.append(drift.n)
        n = drift.n
    return all_of_them


class TestWhatItFinds:
    @pytest.mark.parametrize(("rise", "blocks"), [(0.7, 30), (3.0, 8), (1e6, 6)])
    def test_a_rise_of_the_loss_at_the_end_of_a_block(self, rise, blocks):
        begins = 60 * BLOCK + 5
        losses = QUIET + rise * (np.arange(len(QUIET)) >= begins)
        [n] = found(losses)
        assert n % BLOCK == 0
        assert begins < n <= begins + blocks * BLOCK

    def test_the_scale_of_the_loss_does_not_matter(self):
        losses = QUIET + 1.0 * (np.arange(len(QUIET)) >= 60 * BLOCK)
        assert found(7.0 * losses - 1000.0) == found(losses)

    def test_what_was_and_what_is(self):
        watch = DriftWatch()
        seen = watch.take(QUIET + 2.0 * (np.arange(len(QUIET)) >= 60 * BLOCK), 1000)
        assert seen.n == watch.last.n > 1000 + 60 * BLOCK
        assert watch.drifts == 1
        assert abs(seen.before - 0.5) < 0.3
        assert abs(seen.after - 2.5) < 0.8


class TestWhatItDoesNotMind:
    def test_a_fall(self):
        assert found(QUIET - 3.0 * (np.arange(len(QUIET)) >= 60 * BLOCK)) == []

    def test_a_model_that_improves_and_then_does_not(self):
        shrinking = 30.0 / (1.0 + np.arange(len(QUIET)) / BLOCK)
        assert found(QUIET + shrinking) == []

    def test_single_outliers_of_any_size(self):
        for size in (1e2, 1e6, 1e200):
            losses = QUIET.copy()
            losses[40::61] = size
            losses[20 * BLOCK] = -size
            assert found(losses) == []

    def test_an_outlier_in_the_very_first_block(self):
        losses = QUIET + 3.0 * (np.arange(len(QUIET)) >= 60 * BLOCK)
        losses[3] = 1e9
        [n] = found(losses)
        assert n <= 70 * BLOCK

    def test_differences_too_small_to_matter(self):
        losses = np.full(200 * BLOCK, 1e-9)
        losses[100 * BLOCK :] = 2e-3
        assert found(losses) == []

    def test_a_million_quiet_losses(self):
        rng = np.random.default_rng(1)
        for losses in (0.5 * rng.chisquare(1, size=10**6), rng.exponential(size=10**6), rng.standard_t(3, size=10**6)):
            assert found(losses) == []

    def test_a_change_while_it_calibrates_is_what_is_usual(self):
        assert found(QUIET + 3.0 * (np.arange(len(QUIET)) >= (CALIBRATION - 10) * BLOCK)) == []


class TestWhatItRemembers:
    LOSSES = QUIET + 1.0 * (np.arange(len(QUIET)) >= 60 * BLOCK)

    def whole(self):
        watch = DriftWatch()
        assert watch.take(self.LOSSES, 0) is not None
        return watch

    def pieces(self, cuts, between=lambda watch: watch):
        watch, n = DriftWatch(), 0
        for piece in np.split(self.LOSSES, cuts):
            if (drift := watch.take(piece, n)) is not None:
                return watch, drift
            n += len(piece)
            watch = between(watch)
        raise AssertionError("no drift")

    @pytest.mark.parametrize(
        ("cuts", "between"),
        [
            ([1], copy.deepcopy),
            ([BLOCK], lambda watch: pickle.loads(pickle.dumps(watch))),
            ([BLOCK - 1, BLOCK, 64 * BLOCK], DriftWatch.copy),
            (
                range(1, len(QUIET), 7),
                lambda watch: DriftWatch.from_arrays({name: array.copy() for name, array in watch.arrays().items()}),
            ),
        ],
        ids=["deepcopy", "pickle", "copy", "arrays"],
    )
    def test_it_goes_on_identically_wherever_it_was_cut(self, cuts, between):
        watch, drift = self.pieces(list(cuts), between)
        whole = self.whole()
        assert drift == whole.last
        for name, array in whole.arrays().items():
            assert watch.arrays()[name].tobytes() == array.tobytes()

    def test_a_copy_shares_nothing(self):
        watch = DriftWatch()
        watch.take(QUIET[:100], 0)
        before = {name: array.copy() for name, array in watch.arrays().items()}
        watch.copy().take(self.LOSSES[100:], 100)
        assert all(array.tobytes() == before[name].tobytes() for name, array in watch.arrays().items())

    def test_arrays_that_no_watch_has_are_rejected(self):
        sound = self.whole().arrays()
        DriftWatch.from_arrays({key: array.copy() for key, array in sound.items()})
        for name, at, value in [
            ("drift.counts", 0, BLOCK),
            ("drift.counts", 1, -1),
            ("drift.usual", 1, -1.0),
            ("drift.usual", 0, np.nan),
            ("drift.sums", 0, np.inf),
        ]:
            arrays = {key: array.copy() for key, array in sound.items()}
            arrays[name][at] = value
            with pytest.raises(CheckpointError):
                DriftWatch.from_arrays(arrays)
        with pytest.raises(CheckpointError):
            DriftWatch.from_arrays({key: array for key, array in sound.items() if key != "drift.block"})


class TestTheTest:
    """Page's, with a mean that is known."""

    VALUES = np.random.default_rng(3).normal(size=300) + 0.02 * np.arange(300)

    def heights(self, test, values):
        found = []
        for value in values.tolist():
            changed = test.rises(value)
            found.append((*test.sums, changed))
            if changed:
                break
        return found

    def test_is_pages_recursion(self):
        height, expected = 0.0, []
        while not expected or height <= 20.0:
            height = max(height + self.VALUES[len(expected)] - 0.5, 0.0)
            expected.append(height)
        found = self.heights(PageHinkley(threshold=20.0, tolerance=0.5), self.VALUES)
        assert [total - least for total, least, _ in found] == pytest.approx(expected)
        assert [changed for *_, changed in found] == [False] * (len(expected) - 1) + [True]

    def test_goes_on_from_its_sums_bit_for_bit(self):
        whole = self.heights(PageHinkley(threshold=20.0, tolerance=0.5), self.VALUES)
        for cut in (1, 50, len(whole) - 1):
            test = PageHinkley(threshold=20.0, tolerance=0.5)
            first = self.heights(test, self.VALUES[:cut])
            total, least = test.sums
            again = PageHinkley(threshold=20.0, tolerance=0.5, total=total, least=least)
            assert first + self.heights(again, self.VALUES[cut:]) == whole

    def test_has_rivers_sums_bit_for_bit_where_the_mean_is_known(self):
        """River subtracts the mean of all values so far; ours is given what is left of each."""
        river = RiversPageHinkley(min_instances=0, delta=0.25, threshold=20.0, alpha=1.0, mode="up")
        ours, deviations = PageHinkley(threshold=20.0, tolerance=0.25), []
        for value in self.VALUES:
            river.update(value)
            deviations.append(value - river._x_mean.get())
            assert ours.rises(deviations[-1]) == river.drift_detected
            assert ours.sums == (river._sum_increase, min(0.0, river._min_increase))
            if river.drift_detected:
                break
        assert len(deviations) > 20

    def test_rivers_own_gets_used_to_a_drift_that_goes_on(self):
        """Why the mean is given: values that are 3 for ever are no change to a mean of all of them."""
        river = RiversPageHinkley(min_instances=0, delta=2.0, threshold=70.0, alpha=1.0, mode="up")
        ours = PageHinkley(threshold=70.0, tolerance=2.0)
        changes = []
        for _ in range(200):
            river.update(3.0)
            changes.append((river.drift_detected, ours.rises(3.0)))
        assert not any(theirs for theirs, _ in changes)
        assert [mine for _, mine in changes].index(True) == 70
