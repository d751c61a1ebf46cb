import copy
import json

import numpy as np
import pyarrow as pa
import pytest
from pyarrow import parquet

from streammoe import MoERegressor
from streammoe.errors import ConfigError
from streammoe.scaleout import reducing
from streammoe.scaleout.reducing import Support, reduction_of


def shard(draw, n_experts=2, **options):
    """A model of y = ±a for red and blue, and of the time since."""
    model = MoERegressor(n_experts=n_experts, warmup=0, timestamps=["t"], **options)
    rng = np.random.default_rng(draw)
    for i, a in enumerate(rng.normal(size=60)):
        color = "red" if i % 2 else "blue"
        model.learn_one({"a": a, "color": color, "t": f"2026-01-{1 + i % 28:02}"}, a if color == "red" else -a)
    return model


@pytest.fixture(scope="module")
def models():
    return {"north": shard(1), "south": shard(2)}


ROWS = [
    {"a": 0.1 * i - 2, "color": ("red", "blue", None)[i % 3], "t": f"2026-01-{1 + i % 28:02}", "more": "x"}
    for i in range(40)
]


def write(folder, form):
    path = folder / f"rows.{form}"
    if form == "csv":
        lines = [",".join("" if value is None else str(value) for value in row.values()) for row in ROWS]
        path.write_text("\n".join(["a,color,t,more", *lines]) + "\n")
    elif form == "jsonl":
        path.write_text("".join(json.dumps(row) + "\n" for row in ROWS))
    else:
        parquet.write_table(pa.Table.from_pylist(ROWS), path)
    return path


def digest(models, path, n_experts=None):
    return reduction_of(n_experts, path)(models, [60.0, 60.0], 120).model.state_digest()


def test_rows_of_each_format_are_the_same_support(tmp_path, models):
    found = {form: digest(models, write(tmp_path, form)) for form in ("csv", "jsonl", "parquet")}
    assert len(set(found.values())) == 1
    direct = reducing.reduce_with_details(list(models.values()), weights=[60.0, 60.0], support=ROWS, n=120)
    assert found["csv"] == direct.model.state_digest()


def test_the_divergences_are_those_of_the_models_in_their_order(tmp_path, models):
    merged = reduction_of(None, write(tmp_path, "jsonl"))(models, [60.0, 600.0], 120)
    assert len(merged.divergences) == 2
    assert merged.divergences[0] > merged.divergences[1] >= 0.0
    assert reduction_of(3, write(tmp_path, "jsonl"))(models, [1.0, 1.0], 120).model.chosen_n_experts == 3


def test_without_a_file_models_need_reservoirs(models):
    with pytest.raises(ConfigError, match="reservoir"):
        reduction_of(None, None)(models, [1.0, 1.0], 120)
    kept = {name: shard(draw, reservoir=50) for draw, name in enumerate(models)}
    assert reduction_of(None, None)(kept, [1.0, 1.0], 120).model.n == 120


def test_models_that_have_adopted_the_result_can_be_merged_again_and_again():
    """Numbers of events do not grow by what each contains of the other, and there is still a support."""
    models, own = {name: shard(draw, reservoir=40) for draw, name in enumerate(("north", "south"))}, 60
    for _ in range(5):
        merged = reduction_of(None, None)(models, [own, own], 2 * own).model
        assert merged.n == 2 * own
        rows = merged.learner.reservoir_rows()
        assert rows.X.shape == (40, 3)
        assert set(np.unique(rows.X[:, merged.fields.index("color")])) == {0.0, 1.0}
        assert merged.arrays()["reservoir.seen"].tolist() == [2 * own]
        again = MoERegressor.from_checkpoint(merged.arrays(), merged.describe()["model"])
        assert again.learner.reservoir_rows().X.tobytes() == rows.X.tobytes()
        models = {name: copy.copy(merged) for name in models}
        for model in models.values():
            model.learn_one({"a": 1.0, "color": "red", "t": "2026-01-01"}, 1.0)
        own += 1


def test_models_that_do_not_fit_are_named(models, tmp_path):
    odd = {**models, "west": shard(3, degree=2)}
    with pytest.raises(ConfigError, match=r"west: degree is 2 here and 1 in north"):
        reduction_of(None, write(tmp_path, "csv"))(odd, [1.0, 1.0, 1.0], 180)


def test_of_a_long_file_evenly_spaced_rows_are_used(tmp_path, models, monkeypatch):
    monkeypatch.setattr(reducing, "MOST_ROWS", 4)
    for form in ("csv", "jsonl", "parquet"):
        events = Support(write(tmp_path, form)).events(models["north"])
        assert [event["a"] for event in events] == [ROWS[i]["a"] for i in (0, 13, 26, 39)]


@pytest.mark.parametrize(
    ("name", "content", "words"),
    [
        ("rows.txt", b"a\n1\n", r"must end in \.csv, \.jsonl or \.parquet"),
        ("rows.csv", None, "cannot be read (No such file"),
        ("rows.csv", b"", "cannot be read"),
        ("rows.csv", b"a,color,t\n", "holds no rows"),
        ("rows.csv", b"a,a\n1,2\n", "cannot be read"),
        ("rows.csv", b"x,y\n1,2\n", "holds no column of the models, which have a, color and t"),
        ("rows.csv", b"a,color,t\n1,red,2026-01-01\n1 2,red,2026-01-01\n", "row 2 of those used: could not convert"),
        ("rows.jsonl", b'{"a": 1}\n[1]\n', "a line is not a JSON object"),
        ("rows.jsonl", b"\xff\n", "cannot be read"),
        ("rows.jsonl", b"[" * 100_000, "cannot be read"),
        ("rows.parquet", b"a\n1\n", "cannot be read"),
    ],
)
def test_what_cannot_be_rows_is_said(tmp_path, models, name, content, words):
    path = tmp_path / name
    if content is not None:
        path.write_bytes(content)
    with pytest.raises(ConfigError) as caught:
        reduction_of(None, path)(models, [1.0, 1.0], 120)
    text = str(caught.value)
    assert f"--support {path}" in text
    assert words.replace("\\", "") in text
    assert "\n" not in text
