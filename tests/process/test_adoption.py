"""kill -9 at every step of an adoption: what is left is the model from before or the global one, never a mixture."""

import os
import shutil
import signal
from functools import partial
from pathlib import Path

from streammoe.persistence import CheckpointStore
from tests.process.workspace import LINES, Workspace, two_regimes, wait_until
from tests.unit.scaleout.global_models import publish, reduced, taught

EVENTS, ELSEWHERE = 2_000, 400
BAD_ONE_IN = 300
EXTRA = """
    checkpoint.every_events = 300
    guard.on_jump = "stop" # so that learning waits for checkpoints
    predictions = { kind = "file", path = "rows.jsonl" }
    global = { path = "shared", every = 1e6, serve = "local", adopt = true }
"""
MOMENTS = ["learning again", "learned again", 0, 3, 4, 8]
"""Before and after the global model learns what it lacks; then before the n-th sync or rename, or the next batch."""


def kill_at(moment):
    """Have this process end at a moment of the adoption."""
    from streammoe.pipeline.pipeline import Pipeline
    from streammoe.scaleout.follower import GlobalFollower

    adopted, learn_again, process = GlobalFollower.before_checkpoint, Pipeline.learn_again, Pipeline.process
    left = []

    def end():
        os.kill(os.getpid(), signal.SIGKILL)

    def adopting(*arguments, **more):
        result = adopted(*arguments, **more)
        if result is not None:
            if moment == "learned again":
                end()
            left.append(moment)
        return result

    def learning_again(*arguments):
        results = learn_again(*arguments)
        yield next(results)
        if moment == "learning again":
            end()
        yield from results

    def passing(function):
        def passed(*arguments, **more):
            if left and isinstance(left[0], int):
                if not left[0]:
                    end()
                left[0] -= 1
            return function(*arguments, **more)

        return passed

    GlobalFollower.before_checkpoint, Pipeline.learn_again = adopting, learning_again
    os.fsync, Path.replace = passing(os.fsync), passing(Path.replace)
    Pipeline.process = passing(process)  # the next batch, so that the last moments are after the checkpoint


def outcome(here):
    summary = here.run_here()
    same = {name: value for name, value in summary.items() if name not in {"events_per_second", "checkpoint"}}
    places = {letter["place"]["offset"] for letter in here.letters()}
    return {**same, "rows": (here / "rows.jsonl").read_bytes(), "letters": places, "contains": contains_of(here)}


def contains_of(here):
    return CheckpointStore(here / "state").latest()[1].metadata.get("contains")


def test_killed_at_every_step_of_an_adoption_each_event_is_in_the_model_once(tmp_path):
    here = Workspace(tmp_path / "begun")
    lines = [b"what,1,2\n" if i % BAD_ONE_IN == 7 else line for i, line in enumerate(LINES[:EVENTS])]
    here.write("all.csv", lines)
    here.config("all.csv", EXTRA)
    here.run_here(batches=4)
    store = CheckpointStore(here / "state")
    n = store.latest()[1].metadata["n"]
    assert 300 < n < EVENTS / 2
    merged, shards = reduced(store, [tuple(event.values()) for event in two_regimes(ELSEWHERE, seed=5)])
    publish(1, merged, shards, here / "shared")

    def copied(name):
        copy_of_it = Workspace(tmp_path / name)
        shutil.copytree(here.folder, copy_of_it.folder, dirs_exist_ok=True)
        return copy_of_it

    expected = outcome(copied("undisturbed"))
    good = [tuple(event.values()) for i, event in enumerate(two_regimes(EVENTS)) if i % BAD_ONE_IN != 7]
    assert expected["state_digest"] == taught(merged, good[n:]).state_digest()
    assert (expected["learned"], expected["model_events"]) == (len(good), len(good) + ELSEWHERE)
    assert expected["rows"].count(b"\n") == len(good)
    assert len(expected["letters"]) == expected["rejected"] == EVENTS - len(good)
    assert expected["contains"]["adopted_n"] == ELSEWHERE
    old = new = 0
    for moment in MOMENTS:
        killed = copied(f"killed-{moment}")
        command = killed.run(before=partial(kill_at, moment))
        wait_until(lambda command=command: command.code is not None)
        assert command.code == -signal.SIGKILL, (moment, command.err)
        old, new = old + (contains_of(killed) is None), new + (contains_of(killed) is not None)
        assert outcome(killed) == expected, moment
        killed.close()
    assert (old, new) == (4, 2)
