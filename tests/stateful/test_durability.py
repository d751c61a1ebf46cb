"""Any history of files, bad records, crashes, torn checkpoints and rollbacks ends in the model of one quiet run.

What a daemon must have learned is a plain list of records; hypothesis looks for a history that makes it differ.
"""

import itertools
import os
import shutil
import signal
import tempfile
from pathlib import Path

import pytest
from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, precondition, rule, run_state_machine_as_test

from streammoe.assembly import open_daemon
from streammoe.commands.rollback import roll_back
from streammoe.configuration import load_settings
from streammoe.daemon.signals import StopFlag
from streammoe.persistence import CheckpointStore
from streammoe.pipeline.dead_letters import read_letter

pytestmark = pytest.mark.slow

CONFIG = """
source = { kind = "file", path = "data-*.csv", block_bytes = 4096 }
schema = { target = "y", features = ["a", "b"], numeric = ["a"] }
model = { n_experts = 2, warmup = 60 }
checkpoint = { every_events = 100, every_seconds = 1e6, keep = 4 }
dead_letters.max_ratio = 1.0
metrics.enabled = false
"""
HEADER = b"a,b,y\n"
OUTCOMES = ("learned", "predicted_only", "rejected")
BAD = (b"inf,1,2", b"1,inf,2", b"1e300,0,1", b"one,1,2", b"1,2,3,4", b"\xff,1,2", b"1,2,inf")


def good(i):
    a, b = (i * 37 % 101) / 50 - 1, (i * 61 % 89) / 44 - 1
    return f"{a:.6f},{b:.6f},{(2 * a if b > 0 else 1 - a):.6f}".encode()


RECORDS = st.lists(
    st.one_of(
        st.integers(1, 150).map(lambda n: ("learned", n)),
        st.sampled_from([("predicted_only", b"0.5,0.25,"), ("predicted_only", b"1,2"), ("learned", b"nan,1,2")]),
        st.sampled_from([("rejected", record) for record in BAD]),
    ),
    min_size=1,
    max_size=6,
)


def after(count):
    """A function that kills this process when it is called for the n-th time."""
    left = itertools.count(count - 1, -1)

    def step(*_):
        if next(left) == 0:
            os.kill(os.getpid(), signal.SIGKILL)

    return step


def between(step, call):
    """The same call with a step before and after it."""

    def stepped(*arguments, **keywords):
        step()
        result = call(*arguments, **keywords)
        step()
        return result

    return stepped


def run(folder, *, fresh=False, on_batch=None):
    """One run of a daemon to the end of its files."""
    os.chdir(folder)
    found = load_settings("config.toml", environment={})
    with open_daemon(found, fresh=fresh, on_batch=on_batch) as running:
        return running.daemon.run(StopFlag())


class Durability(RuleBasedStateMachine):
    def __init__(self):
        super().__init__()
        self.folder = Path(tempfile.mkdtemp(prefix="streammoe-"))
        (self.folder / "config.toml").write_text(CONFIG)
        self.store = CheckpointStore(self.folder / "state")
        self.records = []
        """All that was written, in order: what each record is worth, and the record."""
        self.sound = set()
        """Generations that are not damaged."""
        self.seen = set()
        self.number = 0
        self.good = 0

    def teardown(self):
        try:
            if self.records:
                self.run_to_the_end()
        finally:
            os.chdir("/")
            shutil.rmtree(self.folder)

    # --- what the world does ----------------------------------------------------------------------------------------

    @rule(content=RECORDS)
    def a_file_comes(self, content):
        lines = []
        if not self.good:  # a run that finds no target at all is an error
            content = [("learned", 1), *content]
        for outcome, what in content:
            if isinstance(what, int):
                lines += [("learned", good(self.good + i)) for i in range(what)]
                self.good += what
            else:
                lines.append((outcome, what))
        self.records += lines
        (self.folder / f"data-{self.number:05d}.csv").write_bytes(HEADER + b"".join(line + b"\n" for _, line in lines))
        self.number += 1

    @precondition(lambda self: self.records)
    @rule(batches=st.integers(1, 8), syncs=st.integers(1, 60))
    def the_daemon_is_killed(self, batches, syncs):
        child = os.fork()
        if child == 0:
            step = after(syncs)
            os.fsync, os.replace, os.rename = (between(step, call) for call in (os.fsync, os.replace, os.rename))
            try:
                run(self.folder, on_batch=after(batches))
            finally:
                os._exit(1)  # the run ended before it was killed
        os.waitpid(child, 0)
        self.look()

    # How many checkpoints a kill leaves is up to the disk. A precondition on it would make histories irreproducible.

    @rule(share=st.integers(0, 999), flip=st.booleans())
    def the_newest_checkpoint_is_torn(self, share, flip):
        if len(self.sound) < 2:
            return
        newest = max(self.sound)
        path = self.store.path(newest)
        data = bytearray(path.read_bytes())
        at = share * len(data) // 1000
        if flip:
            data[at] ^= 1 << (at % 8)
        else:
            del data[at:]
        path.write_bytes(data)
        self.sound.discard(newest)

    @rule(generation=st.integers(0, 11))
    def somebody_rolls_back(self, generation):
        if earlier := sorted(self.sound)[:-1]:
            roll_back(self.folder / "state", to=earlier[generation % len(earlier)])
            self.look()

    @rule(half=st.sampled_from([b'{"place": {"pa', b"{", b"\xff\x00"]))
    def a_dead_letter_is_torn(self, half):
        path = self.folder / "state" / "dead-letters.jsonl"
        if path.exists():
            with path.open("ab") as file:
                file.write(half)

    # --- what must be true ------------------------------------------------------------------------------------------

    @precondition(lambda self: self.records)
    @rule(fresh=st.sampled_from([False, False, False, True]))
    def run_to_the_end(self, fresh=False):
        done = run(self.folder, fresh=fresh)
        self.look()
        assert {outcome: getattr(done, outcome) for outcome in OUTCOMES} == {
            outcome: sum(what == outcome for what, _ in self.records) for outcome in OUTCOMES
        }
        assert done.events == len(self.records)
        assert done.state_digest == self.digest_of_a_quiet_run()
        assert self.letters() == {line for what, line in self.records if what == "rejected"}

    def digest_of_a_quiet_run(self):
        with tempfile.TemporaryDirectory(prefix="streammoe-") as name:
            (Path(name) / "config.toml").write_text(CONFIG)
            (Path(name) / "data-0.csv").write_bytes(HEADER + b"".join(line + b"\n" for _, line in self.records))
            return run(name).state_digest

    def letters(self):
        path = self.folder / "state" / "dead-letters.jsonl"
        lines = path.read_bytes().splitlines() if path.exists() else []
        return {letter.record.rstrip(b"\n") for letter in map(read_letter, lines) if letter is not None}

    def look(self):
        """Which generations there are now; those that are new are sound."""
        found = set(self.store.generations())
        newest = max(self.seen, default=0)
        self.sound = (self.sound & found) | {one for one in found if one > newest}
        self.seen = found


FEW = settings(
    max_examples=6, stateful_step_count=12, suppress_health_check=[HealthCheck.too_slow, HealthCheck.data_too_large]
)


def test_any_history_ends_in_the_model_of_a_quiet_run():
    run_state_machine_as_test(Durability, settings=FEW)


@pytest.mark.exhaustive
def test_many_histories_do():
    run_state_machine_as_test(Durability, settings=settings(FEW, max_examples=100, stateful_step_count=15))
