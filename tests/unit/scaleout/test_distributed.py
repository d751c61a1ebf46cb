"""Fits by several processes: what one process finds that has all rows, whatever becomes of the workers."""

import copy
import json
import os
import signal

import dask
import dask.dataframe as dd
import numpy as np
import pandas as pd
import psutil
import pytest
from click.testing import CliRunner
from distributed import Client
from distributed.security import Security

from streammoe import MoEClassifier, MoEMultiTargetRegressor, MoERegressor, batch, load
from streammoe.batch import FitPlan
from streammoe.commands import main
from streammoe.commands.evaluate.file_settings import files_of, settings_of
from streammoe.commands.fit.one_source import fit_source
from streammoe.console import FileOptions
from streammoe.distributions import Gaussian
from streammoe.errors import ConfigError, InvalidEvent, SourceError
from streammoe.scaleout import distributed
from streammoe.scaleout.files import fit_files

pytestmark = pytest.mark.slow
N = 900


@pytest.fixture(scope="module")
def client():
    with distributed.connected(2) as client:
        mine = client.security
        own = {"ca-file": mine.tls_ca_file, "client.cert": mine.tls_client_cert, "client.key": mine.tls_client_key}
        with dask.config.set({f"distributed.comm.tls.{name}": value for name, value in own.items()}):
            yield client


@pytest.fixture(autouse=True)
def small_pieces(monkeypatch, logging_as_before):
    monkeypatch.setattr(distributed, "PIECE_ROWS", 128)


def frame(n=N, seed=0):
    rng = np.random.default_rng(seed)
    rows = pd.DataFrame({"a": rng.normal(size=n), "c": rng.choice([*"uvw"], n), "b": 3.0 + 7.0 * rng.normal(size=n)})
    rows.loc[rng.random(n) < 0.05, "b"] = np.nan
    rows.loc[rows.index[n // 2], "b"] = 1e5
    # The fourth value would be out of range by the first rows alone, but is not by all.
    rows["d"] = np.where(np.arange(n) < n // 4, 1e-3, 1e2) * rng.normal(size=n)
    rows.loc[rows.index[3], "d"] = 5e4
    rows["y"] = np.where(rows.a > 0, 1 + rows.b.fillna(0.0).clip(-20, 20), -2 * rows.a) + (rows.c == "u")
    rows["y"] += 0.5 * rng.normal(size=n)
    rows["z"] = rows.a - rows.y
    rows["w"] = rng.integers(1, 3, n).astype(float)
    return rows


def cut(rows, *sizes):
    ends = np.cumsum([*sizes, len(rows) - sum(sizes)])
    return [rows.iloc[start:end] for start, end in zip([0, *ends], ends, strict=False)]


PARTS = (200, 0, 350, 1)
"""Sizes of partitions: one of them is empty."""
BRIEF = {"prior_strength": 0.5}
KINDS = {
    "regressor": (MoERegressor(2, standardize=True, **BRIEF), "y"),
    "several": (MoEMultiTargetRegressor(2, expert=Gaussian("full"), **BRIEF), ["y", "z"]),
    "classifier": (MoEClassifier(2, **BRIEF), "y"),
}


def data_of(model, rows):
    return rows.assign(y=np.where(rows.y > 2, "high", "low")) if isinstance(model, MoEClassifier) else rows


def whole_fit(model, rows, target, **more):
    X = rows.drop(columns=[*([target] if isinstance(target, str) else target), "w"])
    return batch.fit(model, X, rows[target], w=rows["w"].to_numpy(), **more)


def test_processes_listen_on_the_loopback_interface_only(client):
    pids = [os.getpid(), *client.run(os.getpid).values()]
    sockets = [each for pid in pids for each in psutil.Process(pid).net_connections("inet")]
    listening = {each.laddr.ip for each in sockets if each.status == psutil.CONN_LISTEN}
    assert len(pids) == 3
    assert listening == {"127.0.0.1"}


def test_others_cannot_talk_to_the_processes(client):
    address = client.scheduler.address
    assert address.startswith("tls://")
    for given in ({"address": address.replace("tls://", "tcp://")}, {"security": Security.temporary()}):
        with pytest.raises(OSError):
            Client(**{"address": address, "timeout": 1, **given})


# --- frames ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("given", "target"), KINDS.values(), ids=KINDS)
def test_a_fit_of_partitions_is_that_of_all_rows(client, given, target):
    rows = data_of(given, frame()).drop(columns=[] if isinstance(target, list) else "z")
    theirs = whole_fit(given.clone(), rows, target, tolerance=1e-12)
    parts = cut(rows, *PARTS) if isinstance(target, list) else dd.from_pandas(rows, npartitions=3)
    ours = distributed.fit(given.clone(), parts, target=target, weight="w", client=client, tolerance=1e-12)
    assert ours.converged
    assert (ours.n, ours.model.n) == (theirs.n, theirs.model.n)
    assert ours.objective == pytest.approx(theirs.objective, abs=1e-6)
    assert ours.log_loss == pytest.approx(theirs.log_loss, abs=1e-3)
    assert (ours.rmse is None, ours.accuracy is None) == (theirs.rmse is None, theirs.accuracy is None)
    assert (ours.rmse or ours.accuracy) == pytest.approx(theirs.rmse or theirs.accuracy, rel=1e-3)
    mine, other = ours.model.arrays(), theirs.model.arrays()
    assert mine.keys() == other.keys()
    for name, array in mine.items():
        if name.startswith("encoder"):
            np.testing.assert_allclose(array, other[name], rtol=1e-12, atol=1e-12, err_msg=name)
    for model in (ours.model, theirs.model):
        model.learn_many(
            rows.drop(columns=["w", *([target] if isinstance(target, str) else target)])[:50], rows[target][:50]
        )
    assert ours.model.n == theirs.model.n == N + 50


def test_scales_of_a_sample_lead_to_nearly_the_same_fit(client, monkeypatch):
    rows, target = frame().drop(columns="z"), "y"
    monkeypatch.setattr(distributed, "SAMPLE_ROWS", 600)
    theirs = whole_fit(MoERegressor(2, **BRIEF), rows, target)
    ours = distributed.fit(MoERegressor(2, **BRIEF), cut(rows, *PARTS), target=target, weight="w", client=client)
    assert ours.n == N
    assert (ours.model.learner.encoder.scaler.center != theirs.model.learner.encoder.scaler.center).any()
    assert ours.log_loss == pytest.approx(theirs.log_loss, abs=0.02)


def test_it_starts_from_the_parameters_of_a_model_and_holds_to_what_that_has_seen(client):
    rows, later = frame(300).drop(columns="z"), frame(seed=1).drop(columns="z")
    first = whole_fit(MoERegressor(2, **BRIEF), rows, "y", rounds=2).model
    theirs = whole_fit(copy.deepcopy(first), later, "y", start="model", tolerance=1e-12)
    ours = distributed.fit(
        copy.deepcopy(first), cut(later, *PARTS), target="y", weight="w", start="model", client=client, tolerance=1e-12
    )
    assert ours.trace[0].objective == pytest.approx(theirs.trace[0].objective, abs=1e-11)
    assert ours.objective == pytest.approx(theirs.objective, abs=1e-9)
    for name, array in ours.model.arrays().items():
        if name.startswith("encoder"):
            np.testing.assert_array_equal(array, theirs.model.arrays()[name], err_msg=name)


def test_a_lost_workers_rows_are_computed_again(client):
    rows = frame()[["a", "c", "b", "y"]]
    given = {"target": "y", "client": client, "rounds": 4, "tolerance": 0.0}
    undisturbed = distributed.fit(MoERegressor(2, **BRIEF), cut(rows, *PARTS), **given)
    killed = []

    def kill(each):
        if each.number == 1:
            address, pid = next(iter(client.run(os.getpid).items()))
            killed.append(address)
            os.kill(pid, signal.SIGKILL)

    done = distributed.fit(MoERegressor(2, **BRIEF), cut(rows, *PARTS), on_round=kill, **given)
    assert killed
    assert killed[0] not in client.scheduler_info()["workers"]
    assert done.model.state_digest() == undisturbed.model.state_digest()
    client.wait_for_workers(2, timeout=30)


def test_errors_leave_the_model_alone_and_say_where(client):
    rows, model = frame()[["a", "b", "y"]], MoERegressor(2)
    before = model.state_digest()
    with pytest.raises(ConfigError, match="a partition has no column 'y'"):
        distributed.fit(model, [rows, rows.drop(columns="y")], target="y", client=client)
    with pytest.raises(InvalidEvent) as caught:
        distributed.fit(model, [rows, rows.assign(a="text")], target="y", client=client)
    assert "in part 1 of the data" in caught.value.__notes__
    with pytest.raises(ConfigError, match="got no row"):
        distributed.fit(model, [rows[:0]], target="y", client=client)
    assert model.state_digest() == before


# --- files ----------------------------------------------------------------------------------------------------------


@pytest.fixture
def folder(tmp_path):
    rows = frame().drop(columns=["z", "w"])
    rows["b"] = rows.b.round(6)
    for at, part in enumerate(cut(rows, *PARTS)):
        part.to_csv(tmp_path / f"{at}.csv", index=False)
    text = (tmp_path / "2.csv").read_text().splitlines()
    text[5] = "oops,u,1.0,2.0,3.0"
    text[9] = "1.0,u,1e40,2.0,3.0"
    (tmp_path / "2.csv").write_text("\n".join(text) + "\n")
    return tmp_path


def settings(path, **more):
    overrides = [f"model.{name}={value}" for name, value in ({"n_experts": 2} | more).items()]
    return settings_of(str(path), FileOptions(("y",), overrides=tuple(overrides)), command="fit")


def test_a_file_with_other_columns_is_named(client, folder):
    (folder / "3.csv").write_text("u,v,y\n1,2,3\n")
    with pytest.raises(SourceError, match=r"3\.csv: has none of the columns of the files before it"):
        fit_files(settings("0.csv"), files_of([str(folder)]), plan=FitPlan(), scheduler=client.scheduler.address)
    (folder / "3.csv").write_text("a,b,c\n1,2,3\n")
    with pytest.raises(SourceError, match=r"3\.csv.*'y'"):
        fit_files(settings("0.csv"), files_of([str(folder)]), plan=FitPlan(), scheduler=client.scheduler.address)


def test_the_command_line_fits_a_folder_as_one_process_does(client, folder, tmp_path):
    theirs = fit_source(settings(folder / "*.csv"), source_name="files", plan=FitPlan(tolerance=1e-9))
    out = tmp_path / "model"
    given = f"fit --scheduler {client.scheduler.address} --target y --set model.n_experts=2 --tolerance 1e-9 --json"
    done = CliRunner().invoke(main, [*given.split(), "--out", str(out), str(folder)], catch_exceptions=False)
    found, model = json.loads(done.stdout), load(out)
    assert (found["source"], found["learned"], found["rejected"]) == ("5 files", N - 2, 2)
    assert found["refused"] == theirs.records.rejected()
    assert found["objective"] == pytest.approx(theirs.fit.objective, abs=1e-6)
    assert found["state_digest"] == model.state_digest()
    for name, array in model.arrays().items():
        if name.startswith("encoder"):
            np.testing.assert_allclose(array, theirs.fit.model.arrays()[name], rtol=1e-12, err_msg=name)
