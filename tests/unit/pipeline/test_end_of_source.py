"""How a run is judged where its source ends: it fails if too many of all its records were rejected, however few."""

from pathlib import Path
from types import SimpleNamespace

import pytest

from streammoe.errors import SourceError, TooManyBadRecords
from tests.unit import daemons
from tests.unit.pipeline.written_rows import lines

pytestmark = pytest.mark.usefixtures("logging_as_before")

GOOD, BAD = f"{{:.3f}},{{:.3f}},{1:.30f}\n", f"0.500,wrong,{1:.30f}\n"
RECORD = len(BAD)


@pytest.fixture(autouse=True)
def here(tmp_path, monkeypatch):
    daemons.enter(
        tmp_path,
        monkeypatch,
        f"""
        source = {{ kind = "file", path = "*.csv", block_bytes = {100 * RECORD} }}
        schema = {{ target = "y", numeric = ["b"] }}
        model = {{ n_experts = 1, warmup = 50 }}
        checkpoint = {{ dir = "state", every_events = 100, every_seconds = 1e9 }}
        metrics.enabled = false
        """,
    )


def write(name, *runs):
    """Write a file of runs of records, n good ones for n and bad ones for -n, all of the same length."""
    rows = [BAD if n < 0 else GOOD.format(i % 7 / 7, i % 11 / 11) for n in runs for i in range(abs(n))]
    Path(name).write_text("a,b,y\n" + "".join(rows))


def run(*flags):
    with daemons.opened(*flags) as running:
        return running.daemon.run(SimpleNamespace(requested=False))


def assert_fails():
    with pytest.raises(TooManyBadRecords) as raised:
        run()
    assert raised.value.exit_code == 5


def test_a_short_source_that_is_mostly_bad_fails_each_time_and_after_a_repair_every_record_is_learned_once():
    write("a.csv", -150, 50)
    for _ in range(2):
        assert_fails()
        # A repeated one is counted once here.
        assert len({letter["place"]["offset"] for letter in lines(Path("state/dead-letters.jsonl"))}) == 150
    assert daemons.store().generations() == [], "none while the records so far would have failed the run"
    write("a.csv", 200)
    assert run().learned == 200


def test_each_end_is_judged_by_the_records_since_the_last_one():
    write("a.csv", 300)
    run("checkpoint.every_events=1000000")  # so that nothing is saved before the end
    write("b.csv", -150, 50)
    assert_fails()
    write("b.csv", 200)
    assert run().learned == 500


# --- no target at all -----------------------------------------------------------------------------------------------

ROWS = [f'{{"a": {i % 7}, "b": {i % 5}, "y": {i % 3}}}' for i in range(300)]
LINES = "source.path=*.jsonl"


def write_lines(name, rows=ROWS):
    Path(name).write_text("\n".join([*rows, ""]))


def test_a_run_without_a_single_target_fails_and_once_its_name_is_mended_nothing_is_lost():
    write_lines("all.jsonl")
    for _ in range(2):
        with pytest.raises(SourceError):
            run(LINES, "schema.target=nosuch", "checkpoint.every_events=1000")
    mended = run(LINES)
    assert (mended.learned, mended.predicted_only) == (300, 0)


def test_records_without_a_target_after_any_that_was_learned_or_before_a_label_or_none_are_no_failure():
    write_lines("1.jsonl", ROWS[:3])
    run(LINES)
    write_lines("2.jsonl", [row.replace("y", "z") for row in ROWS])
    assert run(LINES).predicted_only == 300
    halves = [f'{{"id": {i}, "a": {i % 7}}}' for i in range(300)]
    write_lines("3.jsonl", halves)
    flags = (LINES.replace("*", "3"), "labels.key=id", "labels.expire_events=20", "checkpoint.dir=other")
    assert run(*flags, "schema.numeric=[]").learned == 0
    write_lines("4.jsonl", [])
    assert run(LINES.replace("*", "4"), "checkpoint.dir=third").events == 0
