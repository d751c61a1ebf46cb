import numpy as np
import pytest

from streammoe.errors import InvalidEvent
from streammoe.features import Encoder, number


def encoder(columns=(), *, degree=1, gate_degree=1, range_factor=1e6):
    made = Encoder(n_outputs=1, degree=degree, gate_degree=gate_degree, range_factor=range_factor)
    made.set_columns(columns)
    return made


def take(into, event, target=0.0):
    """What learning does with an event before it reaches the kernels."""
    unseen = into.unseen(event)
    row = into.row(event, unseen)
    into.take(row, np.array([[target]]), unseen)
    return row[0]


def features(of, rows):
    """Gate and expert features as lists, without the zeros that rows are padded with."""
    widths = (1 + of.gate_degree * len(of.columns), 1 + of.degree * len(of.columns))
    found = of.design(np.asarray(rows, dtype=float))
    return tuple(block[:, :width].tolist() for block, width in zip(found, widths, strict=True))


class TestNumber:
    @pytest.mark.parametrize(
        ("value", "expected"), [(1, 1.0), (2.5, 2.5), (True, 1.0), (np.bool_(False), 0.0), (np.float32(0.5), 0.5)]
    )
    def test_numbers_are_numbers(self, value, expected):
        found = number(value, "a")
        assert found == expected
        assert type(found) is float

    @pytest.mark.parametrize(
        ("value", "reason"),
        [
            (float("nan"), "not_finite"),
            (float("inf"), "not_finite"),
            (-np.inf, "not_finite"),
            (np.float64("nan"), "not_finite"),
            (10**400, "not_finite"),
            (None, "wrong_type"),
            ("1.0", "wrong_type"),
            (1j, "wrong_type"),
            ([1.0], "wrong_type"),
            ({}, "wrong_type"),
        ],
    )
    def test_all_else_is_refused_by_name(self, value, reason):
        with pytest.raises(InvalidEvent, match="sensor 7") as refused:
            number(value, "sensor 7")
        assert refused.value.reason == reason
        assert refused.value.feature == "sensor 7"

    def test_a_message_stays_short(self):
        with pytest.raises(InvalidEvent) as refused:
            number("x" * 10_000, "a")
        assert len(str(refused.value)) < 300


class TestColumns:
    def test_are_ordered_by_name_within_the_event_that_first_shows_them(self):
        made = encoder()
        take(made, {"b": 1, "a": 2})
        take(made, {"z": 1, "b": 3, "c": 4, "A": 5})
        assert made.columns == ["a", "b", "A", "c", "z"]
        assert made.row({"z": 9, "a": 1}).tolist()[0][:2] == [1, pytest.approx(np.nan, nan_ok=True)]

    def test_names_of_different_types_can_stand_side_by_side(self):
        made = encoder()
        take(made, {10: 1.0, "x": 2.0, 9: 3.0})
        assert made.columns == [10, 9, "x"]

    def test_unknown_names_do_not_enter_a_row_unless_asked(self):
        made = encoder(["a"])
        assert made.row({"a": 1, "new": 2}).tolist() == [[1.0]]
        assert made.row({"a": 1, "new": 2}, ["new"]).tolist() == [[1.0, 2.0]]

    def test_unknown_names_are_not_even_looked_at(self):
        assert encoder(["a"]).row({"a": 1, "comment": "fine"}).tolist() == [[1.0]]

    def test_a_refused_event_adds_no_column(self):
        made = encoder(["a"])
        with pytest.raises(InvalidEvent):
            take(made, {"a": 1.0, "b": 1e60})
        assert made.columns == ["a"]
        assert made.largest.tolist() == [0.0]


class TestRanges:
    def test_the_largest_accepted_so_far_widens(self):
        made = encoder()
        for value in (5e5, 4e11, 3e17):
            take(made, {"a": value})
        with pytest.raises(InvalidEvent, match=r"a: 4e\+23 is out of range.*3e\+17.*range_factor"):
            take(made, {"a": 4e23})

    def test_small_values_do_not_narrow_it(self):
        made = encoder()
        take(made, {"a": 1e-9})
        take(made, {"a": -1e6})
        assert made.largest.tolist() == [1e6]

    def test_each_column_and_the_target_have_their_own(self):
        made = encoder()
        take(made, {"a": 1e6, "b": 1.0}, target=10.0)
        take(made, {"a": 1e12, "b": 1.0}, target=1e7)
        with pytest.raises(InvalidEvent) as refused:
            take(made, {"a": 1.0, "b": 1e7})
        assert refused.value.feature == "b"
        with pytest.raises(InvalidEvent, match="target") as refused:
            take(made, {"a": 1.0, "b": 1.0}, target=-1e14)
        assert refused.value.reason == "out_of_range"

    def test_without_the_rule_only_the_limit_holds(self):
        made = encoder(range_factor=0.0)
        take(made, {"a": 9e49})
        with pytest.raises(InvalidEvent, match=r"limit is 1e\+50"):
            take(made, {"a": -1.1e50})

    @pytest.mark.parametrize(
        ("degree", "gate_degree", "limit"), [(1, 1, 1e50), (3, 1, 1e50), (4, 1, 10**37.5), (1, 6, 1e25)]
    )
    def test_powers_lower_the_limit_so_that_squares_stay_finite(self, degree, gate_degree, limit):
        made = encoder(degree=degree, gate_degree=gate_degree)
        assert made.limit == pytest.approx(limit)
        assert np.isfinite((made.limit ** max(degree, gate_degree)) ** 2)

    def test_screen_goes_on_after_a_refused_row_which_widens_nothing(self):
        made = encoder(["a", "b"])
        X = np.array([[1.0, 1.0], [1.0, 1e8], [1.0, 1e7], [np.nan, 1.0], [1.0, 1.0]])
        Y = np.array([[1.0], [1.0], [1.0], [1.0], [1e9]])
        assert made.screen(X, Y).tolist() == [-1, 1, 1, -1, 2]
        assert made.largest.tolist() == [1.0, 1.0]
        assert made.target_largest.tolist() == [1.0]

    def test_a_row_without_target_is_held_to_the_limit_only_and_widens_nothing(self):
        made = encoder(["a"])
        verdicts = made.screen(np.array([[1e20], [1e60], [1e20]]), np.array([[np.nan], [np.nan], [1.0]]))
        assert verdicts.tolist() == [-1, 0, 0]
        assert made.largest.tolist() == [0.0]


class TestDesign:
    def test_intercept_then_powers_block_by_block(self):
        W, R = features(encoder(["a", "b"], degree=3, gate_degree=2), [[2.0, 3.0]])
        assert R == [[1, 2, 3, 4, 9, 8, 27]]
        assert W == [[1, 2, 3, 4, 9]]

    @pytest.mark.parametrize("P", range(9))
    def test_rows_are_as_wide_as_said_and_end_in_zeros(self, P):
        made = encoder([f"x{j}" for j in range(P)], degree=3, gate_degree=2)
        W, R = made.design(np.ones((2, P)))
        assert (made.gate_width, made.expert_width) == (W.shape[1], R.shape[1])
        assert (made.n_gate_features, made.n_expert_features) == (1 + 2 * P, 1 + 3 * P)
        assert (W.sum(axis=1) == made.n_gate_features).all()
        assert (R[:, made.n_expert_features :] == 0).all()
        assert R.flags.c_contiguous

    def test_a_missing_value_is_zero_before_means_are_known_and_the_mean_after(self):
        made = encoder(["a", "b"])
        rows = np.array([[1.0, np.nan], [3.0, 10.0]])
        assert features(made, rows)[1] == [[1, 1, 0], [1, 3, 10]]
        made.fit_scaler(rows, np.zeros((2, 1)), standardize=False)
        assert features(made, np.full((1, 2), np.nan))[1] == [[1, 2, 10]]
        assert features(made, rows)[1] == [[1, 1, 10], [1, 3, 10]]

    def test_standardised_rows_have_mean_0_and_deviation_1(self):
        made = encoder(["a", "b"])
        rng = np.random.default_rng(0)
        X = rng.normal([5.0, -300.0], [0.01, 40.0], size=(500, 2))
        Y = rng.normal(7.0, 3.0, size=(500, 1))
        X[::7, 1] = np.nan
        made.fit_scaler(X, Y, standardize=True)
        Z = made.design(X)[1][:, 1:3]
        present = ~np.isnan(X)
        for j in range(2):
            assert Z[present[:, j], j].mean() == pytest.approx(0.0, abs=1e-9)
            assert Z[present[:, j], j].std() == pytest.approx(1.0)
        # A missing value enters as the mean, which is 0 here.
        assert (Z[~present] == 0).all()
        assert made.scaler.target_center[0] == pytest.approx(Y.mean())
        assert made.scaler.target_scale[0] == pytest.approx(Y.std())

    def test_columns_that_do_not_vary_are_centred_and_not_blown_up(self):
        made = encoder(["constant", "rounding", "absent"])
        X = np.column_stack([np.full(50, 0.1), 1e9 + 1e-7 * np.arange(50), np.full(50, np.nan)])
        made.fit_scaler(X, np.full((50, 1), 4.0), standardize=True)
        assert made.scaler.scale.tolist() == [1.0, 1.0, 1.0]
        assert made.scaler.target_scale.tolist() == [1.0]
        assert np.abs(made.design(X)[1][:, 1:]).max() < 1e-5

    def test_late_columns_are_not_scaled(self):
        made = encoder(["a"])
        made.fit_scaler(np.array([[1.0], [5.0]]), np.zeros((2, 1)), standardize=True)
        take(made, {"a": 3.0, "late": 8.0})
        assert features(made, [[5.0, 8.0], [5.0, np.nan]])[1] == [[1, 1, 8], [1, 1, 0]]

    @pytest.mark.parametrize(("degree", "expected"), [(1, [0, 1, 2]), (2, [0, 1, 2, 4, 5])])
    def test_where_old_features_stand_after_a_column_came(self, degree, expected):
        made = encoder(["a", "b", "late"], degree=degree)
        assert made.feature_positions(degree, 2).tolist() == expected
