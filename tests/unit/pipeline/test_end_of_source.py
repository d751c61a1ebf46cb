"""How a run is judged where its source ends: it fails if too many of all its records were rejected, however few."""

import itertools
import json
from pathlib import Path

import pytest

from streammoe import assembly
from streammoe.assembly import open_daemon
from streammoe.configuration import load_settings
from streammoe.daemon.guards import BAD_RECORD_WINDOW as WINDOW
from streammoe.errors import TooManyBadRecords
from streammoe.persistence import CheckpointStore

pytestmark = pytest.mark.usefixtures("logging_as_before")

GOOD, BAD = f"{{:.3f}},{{:.3f}},{1:.30f}\n", f"0.500,wrong,{1:.30f}\n"
RECORD = len(BAD)


class Asked:
    """A stop flag that is raised at the given look, if any."""

    def __init__(self, at=None):
        self._looks = itertools.count()
        self._at = at
        self._is_raised = False

    @property
    def requested(self):
        self._is_raised = self._is_raised or next(self._looks) == self._at
        return self._is_raised


@pytest.fixture(autouse=True)
def here(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(assembly, "compile_kernels", lambda settings=None: None)
    Path("config.toml").write_text(f"""
        source = {{ kind = "file", path = "*.csv", block_bytes = {100 * RECORD} }}
        schema.target = "y"
        model = {{ n_experts = 1, warmup = 50 }}
        checkpoint = {{ dir = "state", every_events = 100, every_seconds = 1e9 }}
        metrics.enabled = false
    """)


def write(name, flags):
    """Write a file with a bad record for each true flag; good and bad ones have the same length."""
    rows = (BAD if bad else GOOD.format(i % 7 / 7, i % 11 / 11) for i, bad in enumerate(flags))
    Path(name).write_text("a,b,y\n" + "".join(rows))


def run(*flags, stop=None):
    with open_daemon(load_settings("config.toml", overrides=flags, environment={})) as running:
        return running.daemon.run(stop or Asked())


def fails(*flags):
    with pytest.raises(TooManyBadRecords) as raised:
        run(*flags)
    assert raised.value.exit_code == 5


def letters():
    """The places of the dead letters; a repeated one once."""
    lines = Path("state/dead-letters.jsonl").read_text().splitlines()
    return {(entry["place"]["path"], entry["place"]["offset"]) for entry in map(json.loads, lines)}


def test_a_short_source_that_is_mostly_bad_fails_the_run_each_time():
    flags = [False] * 141 + [True] * 459
    write("a.csv", flags)
    for _ in range(2):
        fails()
        assert len(letters()) == sum(flags)


def test_after_a_repair_every_record_is_learned_once():
    """No checkpoint was made while the records so far would have failed the run, so the next one reads all of them."""
    write("a.csv", [True] * 459 + [False] * 141)
    fails()
    assert CheckpointStore("state").generations() == []
    write("a.csv", [False] * 600)
    assert run().learned == 600


def test_what_was_saved_in_good_order_stays_and_the_rest_is_read_again():
    write("a.csv", [False] * 300 + [True] * 500)
    fails()
    saved = CheckpointStore("state").latest()[1].metadata["counters"]["outcomes"]
    write("a.csv", [False] * 800)
    found = run()
    assert found.learned + saved.get("rejected", 0) == 800 == found.learned + found.rejected


def test_as_many_as_the_ratio_allows_are_not_too_many():
    write("a.csv", [True] * 300 + [False] * 300)
    assert run().rejected == 300
    write("b.csv", [True] * 1_500)
    assert run("dead_letters.max_ratio=1").rejected == 1_800


def test_all_records_count_not_only_those_of_a_window():
    """No 1,000 records in a row are mostly bad here, and 1,000 of these 1,500 are."""
    half = WINDOW // 2
    write("a.csv", [*[True] * half, *[False] * half, *[True] * half])
    for _ in range(2):
        fails()


def test_each_end_is_judged_by_the_records_since_the_last_one():
    write("a.csv", [False] * 900)
    run("checkpoint.every_events=1000000")  # so that nothing is saved before the end
    write("b.csv", [True] * 459 + [False] * 141)
    fails()
    write("b.csv", [False] * 600)
    for _ in range(2):  # the second time without new records
        assert run().learned == 1_500


def test_each_end_is_judged_so_even_if_the_last_record_made_a_checkpoint_due():
    write("a.csv", [False] * 100)
    run("source.block_bytes=1000000")
    write("b.csv", [True] * 60 + [False] * 40)
    fails()


def test_a_resumed_run_counts_what_came_before_the_stop():
    """Two bad records at the end of 502 are few, wherever the run was stopped."""
    write("a.csv", [False] * 502)
    run(stop=Asked(at=5))
    write("a.csv", [False] * 500 + [True] * 2)
    found = run()
    assert (found.learned, found.rejected) == (500, 2)


@pytest.mark.parametrize("repaired", [True, False])
def test_a_run_stopped_amid_bad_records_ends_well_only_after_a_repair(repaired):
    write("a.csv", [True] * 600)
    stopped = run(stop=Asked(at=4))
    assert 0 < stopped.rejected < 600
    if repaired:
        write("a.csv", [i < stopped.rejected for i in range(stopped.rejected + 50)])
        assert run().learned == 50  # the bad ones, although most, are of the earlier run
    else:
        fails()
