"""Files as pandas writes them: the index of a data frame, and columns of lists, structures or bytes."""

import logging

import numpy as np
import pandas as pd
import pytest

from streammoe import load
from tests.unit.daemons import enter, run

ROWS = 200
CONFIG = """
    source = { kind = "file", path = "*.parquet", block_rows = 7 }
    schema.target = "y"
    model = { n_experts = 1, warmup = 50 }
    metrics.enabled = false
"""


@pytest.fixture(autouse=True)
def here(tmp_path, monkeypatch):
    return enter(tmp_path, monkeypatch, CONFIG)


def frame(n=ROWS, seed=0):
    a, b = np.random.default_rng(seed).normal(size=(2, n)).round(3)
    return pd.DataFrame({"a": a, "b": b, "y": a - b})


def learned():
    return load("state").fields


INDEXES = {
    "of gaps": frame()[frame().a > 0],
    "of two levels": frame().set_axis(pd.MultiIndex.from_product([range(2), range(ROWS // 2)])),
    "of numbers only": frame(),
}


@pytest.mark.parametrize(("name", "late"), list(zip(INDEXES, ["false", "true", "true"], strict=True)))
def test_the_index_of_a_frame_is_left_out_with_one_line_in_the_log(name, late, caplog):
    INDEXES[name].to_parquet("1.parquet")
    INDEXES[name].to_parquet("2.parquet")
    with caplog.at_level(logging.INFO, "streammoe.pipeline"):
        run(f"schema.late_columns={late}")
    assert learned() == ["a", "b"]
    said = [record for record in caplog.records if record.name == "streammoe.pipeline"]
    assert len(said) == 1 + (name != "of numbers only")


@pytest.mark.parametrize(("n_times", "late"), [(1, "true"), (2, "false")])
def test_the_index_of_a_frame_in_csv_is_left_out_with_one_warning(n_times, late, caplog):
    frame().to_csv("1.csv")
    if n_times == 2:
        pd.read_csv("1.csv").to_csv("1.csv")
    run("source.path=1.csv", f"schema.late_columns={late}")
    assert learned() == ["a", "b"]
    (warning,) = (record.message for record in caplog.records if record.levelno == logging.WARNING)
    assert "leaving out 'Unnamed: 0'" in warning
    assert run("source.path=1.csv", "schema.numeric=['Unnamed: 0']", fresh=True).learned == ROWS
    assert learned() == ["Unnamed: 0", "a", "b"]


@pytest.mark.parametrize(
    ("values", "late"), [([10, 20], "true"), (["10", "20"], "false"), ([1.5, 2.5], "false"), ([True, False], "true")]
)
def test_the_type_category_decides_unless_a_setting_does(values, late):
    zips = np.array(values)[np.arange(ROWS) % 2]
    coded = frame().assign(zip=pd.Categorical(zips))
    if late == "true":
        coded.loc[:20, "zip"] = None
    coded.to_parquet("1.parquet")
    run(f"schema.late_columns={late}")
    as_typed = load("state")
    assert as_typed.column_kinds["zip"] == "category"
    coded.assign(zip=coded.zip.astype(object)).to_parquet("1.parquet")
    assert run("schema.categorical=['zip']", fresh=True).learned == ROWS
    levels = [name for name in load("state").feature_names if "zip" in name]
    assert levels == [name for name in as_typed.feature_names if "zip" in name]
    assert len(levels) == 2
    if values == [10, 20]:
        coded.to_parquet("1.parquet")
        run("schema.numeric=['zip']", fresh=True)
        assert load("state").column_kinds["zip"] == "number"
