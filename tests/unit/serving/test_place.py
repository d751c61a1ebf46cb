"""Where models are read from that others write, and the commands that predict by them."""

import contextlib
import http.client
import json
import threading
from pathlib import Path

import fsspec
import pytest
from click.testing import CliRunner

import streammoe
from streammoe.commands import main
from streammoe.errors import CheckpointError
from streammoe.persistence.backup import Target, back_up
from streammoe.serving.place import Place
from streammoe.serving.server import PredictionServer
from streammoe.settings import ServeSettings
from tests.unit import daemons
from tests.unit.serving.served import snapshot_of

pytestmark = pytest.mark.usefixtures("logging_as_before")

RECORD = {"a": 3, "b": 1}


@pytest.fixture
def rows(tmp_path, monkeypatch):
    """What data.csv has, of which a daemon has learned 300."""
    rows = daemons.enter_small(tmp_path, monkeypatch, 300, 50)
    daemons.run()
    return rows


def save_model():
    streammoe.load("state").save("model.safetensors")
    return "model.safetensors"


def backed_up(address):
    back_up(daemons.store(), Target(address))
    return address


PLACES = {
    "folder": lambda: "state",
    "checkpoint": lambda: str(daemons.store().path(1)),
    "model": save_model,
    "backups": lambda: backed_up("copies"),
    "url": lambda: backed_up("memory://copies"),
}


@pytest.mark.parametrize("kind", PLACES)
def test_a_model_is_found_wherever_something_writes_it_and_again_once_it_is_new(rows, kind):
    fsspec.filesystem("memory").store.clear()
    address = PLACES[kind]()
    place = Place(address)
    snapshot = place.snapshot_of(place.read_if_new())
    model = streammoe.load("state")
    assert snapshot.model.predict_one(RECORD) == model.predict_one(RECORD)
    assert snapshot.digest == model.state_digest()
    assert snapshot.schema.targets == ("y",)
    assert bool(snapshot.positions) is (kind != "model")
    assert place.read_if_new() is None
    if kind == "checkpoint":  # never changes
        return
    daemons.write_csv("data.csv", [*rows, *rows])
    daemons.run()
    PLACES[kind]()
    assert place.snapshot_of(place.read_if_new()).version == 600


def test_what_is_damaged_or_missing_is_said(rows):
    Path("model.safetensors").write_bytes(b"{}")
    for address in ("nowhere", "model.safetensors", "memory://nowhere"):
        with pytest.raises(CheckpointError):
            Place(address).read_if_new()


def test_what_cannot_be_read_is_tried_again_when_it_has_changed(rows):
    place, newest = Place("state"), daemons.store().path(1)
    sound = place.read_if_new()
    content = newest.read_bytes()
    newest.write_bytes(content[:1000])
    with pytest.raises(CheckpointError):
        place.read_if_new()
    assert place.read_if_new() is None
    newest.write_bytes(content)
    assert place.read_if_new().metadata == sound.metadata


def predict(*words, code=0):
    done = CliRunner().invoke(main, ["predict", "state", *words])
    assert done.exit_code == code, done.output
    return [json.loads(line) for line in done.stdout.splitlines()], done.stderr


def test_each_record_of_a_file_that_can_be_read_is_predicted(rows):
    Path("new.csv").write_text("b,a,other,y\n1,3,7,x\n1e60,3,7,8\n,,,\n2,wrong,7,8\n")
    found, said = predict("new.csv", "--interval", "0.5")
    model = streammoe.load("state")
    for row, x in zip(found, (RECORD, {}), strict=True):
        assert row["prediction"] == pytest.approx(model.predict_one(x), rel=1e-12)
        assert row["interval"] == pytest.approx(model.predict_interval_one(x, 0.5), rel=1e-6)
        assert row.keys() == {"place", "model_version", "prediction", "interval"}
    assert found[0]["place"] == {"path": "new.csv", "offset": 12}
    assert "out_of_range 1, wrong_type 1" in said
    assert predict("new.csv", "--gate", "--out", "rows.jsonl")[0] == []
    assert len(json.loads(Path("rows.jsonl").read_text().splitlines()[0])["gate"]) == 2
    before = Path("new.csv").read_bytes()
    predict("new.csv", "--out", "new.csv", code=2)
    assert Path("new.csv").read_bytes() == before
    Path("new.csv").write_text("a,b\nx,1\n")
    predict("new.csv", code=5)


def ask(server, record):
    connection = http.client.HTTPConnection("127.0.0.1", int(server.url.rpartition(":")[2]), timeout=60)
    with contextlib.closing(connection):
        connection.request("POST", "/predict", json.dumps(record))
        answer = connection.getresponse()
        return answer.status, answer.headers, json.loads(answer.read())


def test_a_server_answers_by_the_latest_snapshot_and_says_which_it_is(rows):
    with contextlib.closing(PredictionServer(ServeSettings(port=0), 0.9)) as server:
        server.show({"problem": "no disk"})
        status, headers, said = ask(server, RECORD)
        assert (status, headers["Retry-After"], "no disk" in said["error"]) == (503, "1", True)
        place = Place("state")
        server.take(place.snapshot_of(place.read()))
        status, headers, row = ask(server, RECORD)
        assert status == 200
        assert row["prediction"] == pytest.approx(streammoe.load("state").predict_one(RECORD), rel=1e-12)
        assert (headers["Streammoe-Version"], headers["Streammoe-Digest"]) == ("300", server.latest.digest)
        assert json.loads(headers["Streammoe-Positions"]) == server.latest.positions
        # What a model learns after its snapshot does not show, whoever asks meanwhile.
        model = streammoe.load("state")
        server.take(snapshot_of(model))
        asked = []
        asking = threading.Thread(target=lambda: asked.extend(ask(server, RECORD)[2]["prediction"] for _ in range(50)))
        asking.start()
        for a, b, _ in rows:
            model.learn_one({"a": a, "b": b}, 1000.0)
        asking.join()
        assert set(asked) == {row["prediction"]}
        server.take(snapshot_of(model))
        assert ask(server, RECORD)[2]["prediction"] > 1.0 + row["prediction"]
