import numpy as np
import pytest

from benchmarks import tasks

GENERATORS = [tasks.paper_5_2, tasks.two_experts, tasks.full_gate]


def three_classes(n, seed):
    return tasks.classes(3, n, seed)


@pytest.mark.parametrize("generate", [*GENERATORS, three_classes])
def test_equal_seeds_give_equal_events_and_other_seeds_others(generate):
    once, again, other = generate(50, seed=3), generate(50, seed=3), generate(50, seed=4)
    for a, b, c in zip(once, again, other, strict=True):
        assert np.array_equal(a, b)
        assert not np.array_equal(a, c)


@pytest.mark.parametrize(("generate", "d"), [(tasks.paper_5_2, 2), (tasks.two_experts, 10), (tasks.full_gate, 10)])
def test_streams_have_the_shapes_they_promise(generate, d):
    X, y, truth = generate(60, seed=1)
    assert X.shape == (60, d)
    assert y.shape == truth.shape == (60,)
    assert np.abs(X).max() <= 1.0


@pytest.mark.parametrize("generate", GENERATORS)
def test_targets_scatter_around_the_truth_without_bias(generate):
    _, y, truth = generate(20_000, seed=5)
    error = y - truth
    assert abs(error.mean()) < 4.0 * error.std() / np.sqrt(len(y))
    assert abs(np.cov(error, truth)[0, 1]) < 4.0 * error.std() * truth.std() / np.sqrt(len(y))


def test_the_oracle_of_the_paper_task_is_left_with_its_noise():
    X, y, truth = tasks.paper_5_2(20_000, seed=0)
    g = 1.0 / (1.0 + np.exp(-8.0 * X[:, 0]))
    spread = 25.0 * X[:, 0] ** 2 * g * (1.0 - g)  # of the two means, beside unit noise
    assert tasks.rmse(y, truth) == pytest.approx(np.sqrt(np.mean(1.0 + spread)), rel=0.02)


def test_the_two_experts_agree_in_the_last_two_inputs():
    X, y, _ = tasks.two_experts(20_000, seed=0, noise=0.0)
    apart = np.abs(X[:, 0]) > 0.9  # there the gate is as good as certain, and each side has one expert
    left, right = apart & (X[:, 0] < 0), apart & (X[:, 0] > 0)
    slopes = [np.linalg.lstsq(X[side], y[side], rcond=None)[0] for side in (left, right)]
    assert np.allclose(slopes[0][-2:], slopes[1][-2:], atol=0.1)
    assert np.allclose(slopes[0][1:-2], -slopes[1][1:-2], atol=0.1)


def test_noise_free_targets_of_a_single_expert_are_linear():
    X, y, truth = tasks.full_gate(200, seed=2, k=1, d=3, noise=0.0)
    assert np.array_equal(y, truth)
    assert np.allclose(X @ np.linalg.lstsq(X, y, rcond=None)[0], y)


@pytest.mark.parametrize("m", [2, 3, 5])
class TestClasses:
    def test_have_the_shapes_they_promise(self, m):
        X, y, truth = tasks.classes(m, 60, seed=1, d=4)
        assert (X.shape, y.shape, truth.shape) == ((60, 4), (60,), (60, m))
        assert np.issubdtype(y.dtype, np.integer)
        assert set(y.tolist()) <= set(range(m))

    def test_are_drawn_with_the_probabilities_that_are_told(self, m):
        _, y, truth = tasks.classes(m, 20_000, seed=5)
        np.testing.assert_allclose(truth.sum(axis=1), 1.0)
        hits = (np.arange(m) == y[:, None]) - truth
        assert np.abs(hits.mean(axis=0)).max() < 4.0 * 0.5 / np.sqrt(len(y))
        # Calibrated, too: where a class is likely it comes as often.
        likely = truth[:, 0] > 0.8
        assert hits[likely, 0].mean() == pytest.approx(0.0, abs=4.0 * 0.4 / np.sqrt(likely.sum()))

    def test_the_two_experts_are_opposite(self, m):
        """Far out along the first input the gate is certain, and the other end of a line has the other expert."""
        X, _, truth = tasks.classes(m, 4000, seed=2)
        slopes = np.random.default_rng(2)
        slopes.uniform(-1.0, 1.0, (4000, 10))
        logits = 4.0 * X @ slopes.normal(size=(m, 10)).T
        right = X[:, 0] > 0.97
        expected = np.exp(logits[right]) / np.exp(logits[right]).sum(axis=1, keepdims=True)
        np.testing.assert_allclose(truth[right], expected, atol=1e-3)
        left = X[:, 0] < -0.97
        expected = np.exp(-logits[left]) / np.exp(-logits[left]).sum(axis=1, keepdims=True)
        np.testing.assert_allclose(truth[left], expected, atol=1e-3)


def test_crime_is_read_by_the_names_of_its_columns(tmp_path):
    names = ["communityname", *reversed(tasks.CRIME_INPUTS), "ViolentCrimesPerPop"]
    (tmp_path / "communities.names").write_text("".join(f"@attribute {name} numeric\n" for name in names))
    (tmp_path / "communities.data").write_text("Town,1,2,3,4,5,6,7,8,9,10,11\nCity,?,2,3,4,5,6,7,8,9,10,12\n")
    X, y = tasks.crime(tmp_path)
    assert X[0].tolist() == [10, 9, 8, 7, 6, 5, 4, 3, 2, 1]
    assert y.tolist() == [11, 12]


def test_crime_is_not_there_unless_a_folder_is_named(tmp_path, monkeypatch):
    monkeypatch.delenv("STREAMMOE_DATA", raising=False)
    assert tasks.crime_folder() is None
    assert tasks.crime_folder(tmp_path) is None
    folder = tmp_path / "communities_crime"
    folder.mkdir()
    (folder / "communities.data").touch()
    monkeypatch.setenv("STREAMMOE_DATA", str(tmp_path))
    assert tasks.crime_folder() == folder


def test_each_row_is_scored_once_and_never_learned_before():
    parts = tasks.folds(23, repetition=1)
    assert sorted(np.concatenate([score for _, score in parts])) == list(range(23))
    for learn, score in parts:
        assert sorted([*learn, *score]) == list(range(23))
    assert not np.array_equal(parts[0][1], tasks.folds(23, repetition=2)[0][1])


class TestSimulationWithTenInputs:
    def test_only_the_first_input_acts(self):
        X, _, truth = tasks.paper_5_3(200, seed=3)
        first = 1.0 / (1.0 + np.exp(-8.0 * X[:, 0]))
        # Two lines in the first input, weighted by the gate: four numbers give all 200.
        columns = np.column_stack([first, first * X[:, 0], 1.0 - first, (1.0 - first) * X[:, 0]])
        found, *_ = np.linalg.lstsq(columns, truth, rcond=None)
        assert np.allclose(columns @ found, truth)
        assert ((np.abs(found) >= 1.5) & (np.abs(found) <= 5.0)).all()
        assert found[3] < 0.0 < found[1]

    def test_targets_scatter_around_the_truth_without_bias(self):
        _, y, truth = tasks.paper_5_3(20_000, seed=5)
        error = y - truth
        assert abs(error.mean()) < 4.0 * error.std() / np.sqrt(len(y))


class TestGridlock:
    @pytest.mark.parametrize("p", [None, 0.5])
    def test_parameters_lie_on_the_sphere(self, p):
        found = tasks.gridlock(50, seed=1, k=3, d=4, p=p)
        assert found.X.shape == (50, 4)
        assert np.allclose(np.linalg.norm(found.regressors, axis=1), 1.0)
        assert np.allclose(np.linalg.norm(found.gate, axis=1), [1.0, 1.0, 0.0])

    def test_each_target_is_one_of_the_regressors(self):
        found = tasks.gridlock(500, seed=2, k=3, sigma=0.0)
        apart = np.abs(found.X @ found.regressors.T - found.y[:, None]).min(axis=1)
        assert np.allclose(apart, 0.0)

    def test_two_normals_are_further_out_than_one(self):
        one, two = tasks.gridlock(20_000, seed=3), tasks.gridlock(20_000, seed=3, p=0.5)
        assert one.X.mean(axis=0) == pytest.approx(np.zeros(10), abs=0.05)
        assert np.linalg.norm(two.X.mean(axis=0)) > 0.2


def test_symmetric_experts_are_opposite_and_the_gate_says_which():
    X, y, slopes, gate = tasks.symmetric_experts(50_000, seed=1)
    assert np.allclose(np.linalg.norm([slopes, gate], axis=1), 4.0)
    sure = X @ gate > 5.0
    assert np.linalg.lstsq(X[sure], y[sure], rcond=None)[0] == pytest.approx(slopes, abs=0.2)
    sure = X @ gate < -5.0
    assert np.linalg.lstsq(X[sure], y[sure], rcond=None)[0] == pytest.approx(-slopes, abs=0.2)


def test_uci_files_are_read_with_and_without_a_line_of_names(tmp_path):
    (tmp_path / "airfoil").mkdir()
    path = tmp_path / "airfoil" / "airfoil_self_noise.dat"
    for names in ("", "Freq\tAngle\tLength\tVel\tDispl\tPressure\n"):
        path.write_text(names + "800\t0\t0.3\t71.3\t0.002\t126.2\n1000\t0\t0.3\t71.3\t0.002\t125.2\n")
        X, y = tasks.uci("airfoil", tasks.uci_file("airfoil", tmp_path))
        assert X.tolist() == [[800.0, 0.0, 0.3, 71.3, 0.002], [1000.0, 0.0, 0.3, 71.3, 0.002]]
        assert y.tolist() == [126.2, 125.2]


def test_the_stock_set_is_read_without_its_row_numbers(tmp_path):
    (tmp_path / "stock_portfolio").mkdir()
    path = tmp_path / "stock_portfolio" / "all_period.csv"
    path.write_text("id,a,b,c,d,e,f,annual,excess,more\n1,10,11,12,13,14,15,16,17,18\n\n")
    X, y = tasks.uci("stock", tasks.uci_file("stock", tmp_path))
    assert X.tolist() == [[10, 11, 12, 13, 14, 15]]
    assert y.tolist() == [17]


def test_uci_splits_share_out_all_rows():
    splits = tasks.uci_splits(63, 3)
    for learn, score in splits:
        assert (len(learn), len(score)) == (47, 16)
        assert sorted([*learn, *score]) == list(range(63))
    assert not np.array_equal(splits[0][0], splits[1][0])
