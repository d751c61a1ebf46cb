"""Classifiers, several outputs and growing files through the whole daemon, with predictions on disk.

Each kind of model ends in one state, whatever form its events have and however often the daemon is killed.
"""

import csv
import gzip
import itertools
import json
import random
import re
import signal
import urllib.request
from collections import defaultdict
from datetime import UTC, datetime

import pyarrow as pa
import pytest
from prometheus_client.parser import text_string_to_metric_families
from pyarrow import parquet

from streammoe.daemon.metrics import CATALOGUE
from tests.process.place import TIMEOUT, Place, wait_until

pytestmark = [pytest.mark.process, pytest.mark.slow]

EVENTS = 4_000
NEW_YEAR = datetime(2026, 1, 1, tzinfo=UTC).timestamp()
COLUMNS = 'categorical = ["c"], timestamps = ["t"], weight = "w"'
KINDS = {
    "regressor": f'schema = {{ target = "y", ignore = ["z", "q", "label"], {COLUMNS} }}',
    "outputs": f'schema = {{ target = ["y", "z", "q"], ignore = ["label"], {COLUMNS} }}',
    "classifier": f"""
        schema = {{ target = "label", ignore = ["y", "z", "q"], {COLUMNS} }}
        model.kind = "classifier"
    """,
}


def events(n=EVENTS):
    """Every kind of value: two regimes, a category and labels some of which come late, targets that are missing."""
    rng = random.Random(5)
    for i in range(n):
        a, b = (round(rng.gauss(0, 1), 5) for _ in range(2))
        y = round((2 * a if a > 0 else b - 1) + rng.gauss(0, 0.1), 5)
        known = rng.random() > 0.02
        label = "rare" if i > n // 2 and rng.random() < 0.1 else "low" if y < -0.5 else "high, or so"
        yield {
            "a": None if rng.random() < 0.01 else a,
            "b": b,
            "c": f"level {rng.randrange(1 + min(i, n - 1) * 6 // n)}",
            "t": datetime.fromtimestamp(NEW_YEAR + 600 * i, UTC).isoformat(),
            "w": rng.choice([0, 1, 1, 2.5]),
            "y": y if known else None,
            "z": round(10 * b, 4) if known else None,
            "q": round(a * b, 6) if known else None,
            "label": label if known else None,
        }


def csv_bytes(chosen, *, header=True):
    folder = []
    lines = csv.writer(type("Lines", (), {"write": staticmethod(folder.append)}), lineterminator="\n")
    chosen = list(chosen)
    if header:
        lines.writerow(chosen[0])
    lines.writerows(held.values() for held in chosen)
    return "".join(folder).encode()


def jsonl_bytes(chosen):
    return b"".join(json.dumps(held).encode() + b"\n" for held in chosen)


@pytest.fixture(scope="module")
def data(tmp_path_factory):
    folder = tmp_path_factory.mktemp("data")
    (folder / "a.csv").write_bytes(csv_bytes(events()))
    (folder / "a.jsonl").write_bytes(jsonl_bytes(events()))
    for name in ("a.csv", "a.jsonl"):
        (folder / f"{name}.gz").write_bytes(gzip.compress((folder / name).read_bytes()))
    parquet.write_table(pa.Table.from_pylist(list(events())), folder / "a.parquet", row_group_size=700)
    return folder


@pytest.fixture(scope="module")
def references(data, tmp_path_factory):
    """The summary of each kind of model over csv."""
    place = Place(tmp_path_factory.mktemp("references"))
    found = {kind: place.run_here(configured(place, kind, data / "a.csv", dir=kind)) for kind in KINDS}
    idle = sum(held["y"] is None or held["w"] == 0 for held in events())
    for summary in found.values():
        assert (summary["learned"], summary["predicted_only"], summary["rejected"]) == (EVENTS - idle, idle, 0)
    return found


@pytest.fixture
def place(tmp_path):
    return Place(tmp_path / "here")


def configured(place, kind, path, *, dir="state", extra=""):
    """A config file for a model of this kind, with small blocks and a short warm-up."""
    config = place.folder / f"{dir}.toml"
    config.write_text(f"""
        source.kind = "file"
        source.path = "{path}"
        source.block_bytes = 8192
        model.n_experts = 2
        model.warmup = 300
        model.warmup_restarts = 2
        checkpoint.dir = "{dir}"
        dead_letters.path = "{dir}/dead-letters.jsonl"
        metrics.port = 0
        {KINDS[kind]}
        {extra}
    """)
    return config


# --- formats --------------------------------------------------------------------------------------------------------


FORMS = ["a.jsonl", "a.csv.gz", "a.jsonl.gz", "a.parquet"]
CHOSEN = [("regressor", "a.jsonl"), ("outputs", "a.csv.gz"), ("classifier", "a.jsonl.gz"), ("classifier", "a.parquet")]


@pytest.mark.parametrize(
    ("kind", "name"),
    [
        case if case in CHOSEN else pytest.param(*case, marks=pytest.mark.exhaustive)
        for case in itertools.product(KINDS, FORMS)
    ],
)
def test_the_same_events_in_any_format_are_the_same_model(place, data, references, kind, name):
    found = place.run_here(configured(place, kind, data / name, extra="source.block_rows = 333"))
    expected = references[kind]
    assert found["state_digest"] == expected["state_digest"] == place.inspect()["state_digest"]
    same = ("learned", "predicted_only", "rejected")
    assert [found[name] for name in same] == [expected[name] for name in same]


# --- while it runs --------------------------------------------------------------------------------------------------


def scraped(url):
    with urllib.request.urlopen(url, timeout=TIMEOUT) as answer:
        text = answer.read().decode()
    samples = [sample for family in text_string_to_metric_families(text) for sample in family.samples]
    return {(sample.name, *sample.labels.values()): sample.value for sample in samples}


def test_metrics_and_checkpoints_show_classes(place, data):
    (place.folder / "live.csv").write_bytes((data / "a.csv").read_bytes())
    extra = "source.follow = true\ncheckpoint.every_seconds = 0.1"
    process = place.start("run", configured(place, "classifier", "live.csv", extra=extra), "--summary", "json")
    try:
        line = next(line for line in process.stderr if "metrics at" in line)
        url = re.search(r"http://\S+", line).group()
        wait_until(lambda: scraped(url)["streammoe_events_total", "learned"] > 2900 and consumed(place) == EVENTS)
        value = scraped(url)
        process.send_signal(signal.SIGTERM)
        done = place.finish(process)
    finally:
        process.kill()
        process.wait()
    summary, found = json.loads(done.stdout), place.inspect()
    learned = summary["learned"]
    assert value["streammoe_model_events",] == value["streammoe_events_total", "learned"] == learned == found["n"]
    assert value["streammoe_model_features",] == len(found["features"]) + 1
    suffixes = ("", "_bucket", "_count", "_sum", "_created")
    known = {name + suffix for name in CATALOGUE for suffix in suffixes}
    assert {name for name, *_ in value} <= known | {name.removesuffix("_total") + "_created" for name in CATALOGUE}
    assert sorted(found["outputs"]) == ["high, or so", "low", "rare"]
    assert value["streammoe_model_classes",] == 3
    assert value["streammoe_prequential_accuracy", "running"] == pytest.approx(summary["accuracy"])
    assert value["streammoe_baseline_accuracy", "running"] == pytest.approx(summary["baseline_accuracy"])
    assert value["streammoe_prequential_log_loss", "running"] == pytest.approx(summary["log_loss"])
    assert 0.5 < summary["baseline_accuracy"] < summary["accuracy"] < 1
    assert not any(name.endswith("rmse") for name, *_ in value)


# --- killed, and growing --------------------------------------------------------------------------------------------


def consumed(place, dir="state"):
    """Events that the newest checkpoint has dealt with."""
    if not list((place.folder / dir).glob("checkpoint-*.safetensors")):
        return 0
    return sum(place.inspect(dir)["counters"]["outcomes"].values())


def append(path, lines):
    """Write as a producer does: in pieces that need not end where lines do."""
    with path.open("ab", buffering=0) as stream:
        for start in range(0, len(lines), 3_000):
            stream.write(lines[start : start + 3_000])


def test_a_growing_file_with_a_rotation_and_a_kill_is_read_as_if_it_had_always_been_whole(place):
    chosen = list(events())
    live = place.folder / "live.csv"
    live.write_bytes(csv_bytes(chosen[:1])[:10])  # the header is not even complete
    config = configured(
        place,
        "classifier",
        "live.csv",
        extra="""
            source.follow = true
            checkpoint.every_seconds = 0.05
            predictions = { kind = "file", path = "state/rows.parquet" }
        """,
    )
    first = place.start("run", config)
    try:
        next(line for line in first.stderr if "metrics at" in line)
        append(live, csv_bytes(chosen[:1500])[10:])
        wait_until(lambda: consumed(place) > 700)
    finally:
        first.kill()
        first.communicate()
    assert first.returncode == -signal.SIGKILL
    append(live, csv_bytes(chosen[1500:1800], header=False))  # while nobody reads

    second = place.start("run", config, "--summary", "json")
    try:
        next(line for line in second.stderr if "metrics at" in line)
        append(live, csv_bytes(chosen[1800:2500], header=False))
        live.rename(place.folder / "live.csv.1")
        append(place.folder / "live.csv.1", csv_bytes(chosen[2500:2600], header=False))  # by a writer that is late
        append(live, csv_bytes(chosen[2600:]))
        wait_until(lambda: consumed(place) == EVENTS or second.poll() is not None)
        second.send_signal(signal.SIGTERM)
        done = place.finish(second)
    finally:
        second.kill()
        second.wait()
    assert done.returncode == 0, done.stderr
    followed = json.loads(done.stdout)

    (place.folder / "whole.csv").write_bytes(csv_bytes(chosen))
    plain = place.run_here(configured(place, "classifier", "whole.csv", dir="plain"))
    assert followed["state_digest"] == plain["state_digest"]
    same = ("events", "learned", "predicted_only", "rejected")
    assert [followed[name] for name in same] == [plain[name] for name in same]

    parts = sorted((place.folder / "state").glob("rows-*.parquet"))
    rows = [row for part in parts for row in parquet.read_table(part).to_pylist()]
    by_place = defaultdict(list)
    for row in rows:
        by_place[tuple(row["place"].items())].append(row)
    assert len(by_place) == len(rows) == EVENTS
