"""Dead letters written to a file that a source reads, so that what a fix lets pass is learned."""

import json
from collections import Counter
from pathlib import Path

import numpy as np
import pytest
from click.testing import CliRunner

from streammoe.assembly import open_daemon
from streammoe.commands import main
from streammoe.commands.dead_letters import Records, read_contents
from streammoe.configuration import load_settings
from streammoe.daemon.signals import StopFlag
from streammoe.errors import ConfigError, SourceError
from streammoe.pipeline.dead_letters import DeadLetterFile
from streammoe.ports import DeadLetter

N, FAR, TEXT = 180, 5, 3
"""Records; those that a range_factor of 1e6 rejects, and 1e12 lets pass; those that are rejected for good."""
CONFIG = """
source = {{ kind = "file", path = "data*.{format}" }}
schema = {{ target = "y", weight = "w" }}
model = {{ n_experts = 2, warmup = 40, range_factor = {factor} }}
metrics.enabled = false
"""
LETTERS = Path("state/dead-letters.jsonl")

pytestmark = pytest.mark.usefixtures("logging_as_before")


@pytest.fixture(autouse=True)
def here(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr("streammoe.assembly.compile_kernels", lambda settings=None: None)


def events():
    rng = np.random.default_rng(3)
    for i in range(N):
        a, b = rng.normal(size=2)
        y = 2 * a if a > 0 else b
        yield {"a": 1e9 if i % 36 == 35 else float(a), "b": "x" if i % 55 == 44 else float(b), "y": float(y), "w": 1.0}


def write(format, records, name="data"):
    lines = [json.dumps(each) if format == "jsonl" else ",".join(map(str, each.values())) for each in records]
    Path(f"{name}.{format}").write_text("\n".join([*["a,b,y,w"] * (format == "csv"), *lines, ""]))


def settings(factor="1e12", format="csv", *overrides):
    Path("config.toml").write_text(CONFIG.format(factor=factor, format=format))
    return load_settings("config.toml", environment={}, overrides=overrides)


def learn(*arguments):
    with open_daemon(settings(*arguments)) as running, StopFlag() as stop:
        return running.daemon.run(stop)


def call(arguments, code=0):
    done = CliRunner().invoke(main, ["dead-letters", "config.toml", *arguments.split()])
    assert done.exit_code == code, done.output
    return done


def keep(*letters):
    """Leave these letters, as a daemon would, and the settings that name their file."""
    file = DeadLetterFile(LETTERS)
    file.write(list(letters))
    file.flush()
    file.close()
    return settings()


def letter(offset, record=b"1,2", format="csv", columns=("a", "y"), path="data.csv", **more):
    place = {"path": path, "offset": offset}
    return DeadLetter(place, "decode", "malformed", "bad", record, format, columns, **more)


@pytest.mark.parametrize("format", ["csv", "jsonl"])
def test_what_passes_after_a_fix_is_learned_as_if_it_came_last(format):
    write(format, events())
    summary = learn("1e6", format)
    assert (summary.learned, summary.rejected) == (N - FAR - TEXT, FAR + TEXT)
    LETTERS.rename("old.jsonl")
    found = call(f"--set dead_letters.path=old.jsonl --reason out_of_range --out again.{format} --json")
    assert json.loads(found.stdout).items() >= {"letters": FAR, "written": FAR, "repeated": 0, "incomplete": 0}.items()
    again = learn("1e12", format, f"source.path=again.{format}")
    assert (again.learned, again.rejected) == (N - TEXT, FAR + TEXT)
    assert learn("1e12", format).state_digest == again.state_digest, "it is not read twice"
    for path in (f"data.{format}", f"again.{format}"):
        Path(path).unlink()
    good = [event for event in events() if event["b"] != "x"]
    write(format, sorted(good, key=lambda event: event["a"] == 1e9))
    assert learn("1e12", format, "checkpoint.dir=twin").state_digest == again.state_digest


def test_a_record_is_written_once_for_each_place_and_only_if_it_is_whole():
    config = keep(letter(4), letter(8), letter(4), letter(12, b"1", None))
    records = Records()
    assert read_contents(config, records=records)["counts"] == [
        {"reason": "malformed", "stage": "decode", "letters": 4}
    ]
    assert (records.write(Path("again.csv")), records.repeated, records.incomplete) == (2, 1, 1)
    assert Path("again.csv").read_bytes() == b"a,y\n1,2\n1,2\n"
    LETTERS.unlink()
    keep(letter(0, b'{\r\n "a": 1,\n "y": 2}', "jsonl", None), letter(1, b'{"a": 2, "y": 3}', "jsonl", None))
    call("--out again.jsonl")
    lines = Path("again.jsonl").read_text().splitlines()
    assert [json.loads(line) for line in lines] == [{"a": 1, "y": 2}, {"a": 2, "y": 3}]


def test_records_of_any_dialect_are_read_as_they_were():
    columns = ("a;b", "c", "d", "w")
    keep(
        letter(0, b'1,5;"two\nlines";2,5;1', columns=columns, delimiter=";", decimal=","),
        letter(9, b"2,5;;4,5;1\r", columns=columns, delimiter=";", decimal=","),
    )
    assert "2 record(s) written to again.csv" in call("--out again.csv").stdout
    flags = ["source.path=again.csv", "source.delimiter=';'", "source.decimal=','", "schema.categorical=['c']"]
    summary = learn("1e12", "csv", *flags, "schema.target='d'")
    assert (summary.learned, summary.rejected, summary.skipped) == (2, 0, 0)


def test_what_waited_in_vain_is_kept_and_counts_once_and_half_an_event_is_not_written(caplog):
    flags = ["labels.key=id", "schema.ignore=['id']", "labels.max_pending=100", "labels.keep_expired=true"]
    features = [{"id": i, **event} for i, event in enumerate(events())]
    labels = [{"id": each["id"], "y": each.pop("y")} for each in features]
    write("jsonl", [*features, *labels[-100:]])
    done = learn("1e6", "jsonl", *flags)
    found = read_contents(settings("1e6", "jsonl", *flags))
    kept = Counter({each["reason"]: each["letters"] for each in found["counts"]})
    assert (done.expired, done.rejected, done.pending) == (kept["expired"], kept.total() - kept["expired"], 0)
    assert kept["expired"] > 70
    assert "expired" not in caplog.text  # which is no surprise that a log would tell of
    call("--reason expired --out again.jsonl", code=3)


def test_what_is_no_letter_is_counted_and_a_file_without_any_is_an_error():
    config = keep(letter(0))
    with LETTERS.open("ab") as stream:
        stream.write(b'\xff what\n[1]\n{"place": {}}\n{"half')
    assert read_contents(config)["unreadable"] == 4
    LETTERS.write_text("no letter\n")
    with pytest.raises(SourceError):
        read_contents(config)
    LETTERS.unlink()
    with pytest.raises(SourceError):
        read_contents(config)
    topic = 'dead_letters = { kind = "kafka", topic = "d", bootstrap_servers = "there:1" }'
    Path("config.toml").write_text(f"{Path('config.toml').read_text()}{topic}\n")
    with pytest.raises(ConfigError, match=r"dead_letters\.kind"):
        read_contents(load_settings("config.toml", environment={}))
