"""A daemon that is killed while candidates race goes on with all of them."""

import random

import pytest

from tests.process.place import Place, wait_until

pytestmark = [pytest.mark.process, pytest.mark.slow]

EVENTS = 3_000
BATCHES = 8
WARM_UP = 300
AUTO = 'model = { n_experts = "auto", max_experts = 2, warmup = 300, warmup_restarts = 1 }'
BEFORE = "model = { n_experts = 2, warmup = 300, warmup_restarts = 2 }"


def test_a_kill_amid_a_race_leaves_no_trace(tmp_path):
    place = Place(tmp_path / "place")
    rng = random.Random(4)
    lines = ["a,b,y\n"]
    for _ in range(EVENTS):
        a, b = rng.uniform(-1, 1), rng.uniform(-1, 1)
        y = (2 * b if a > 0 else -a - b) + rng.gauss(0, 0.1)
        lines.append(f"{a:.4f},{b:.4f},{y:.4f}\n")
    (place.folder / "all.csv").write_text("".join(lines))
    path = place.config("all.csv", extra="checkpoint.every_events = 1")
    text = path.read_text()
    assert BEFORE in text
    path.write_text(text.replace(BEFORE, AUTO))

    process = place.start_paused(path, "all.csv", BATCHES)
    try:
        # Checkpoints are written beside the learning.
        wait_until(lambda: any((place.folder / "state").glob("*.safetensors")) and place.inspect()["n"] > WARM_UP)
    finally:
        process.kill()
        place.finish(process)
    found = place.inspect()
    assert WARM_UP < found["n"] < WARM_UP + 2_000
    assert found["candidates"] == 2
    summary = place.run_here()
    whole = place.run_here("config.toml", "checkpoint.dir=whole", "dead_letters.path=whole/letters.jsonl")
    assert summary["learned"] == whole["learned"] == EVENTS
    assert summary["state_digest"] == whole["state_digest"]
    ended, as_well = place.inspect(), place.inspect("whole")
    assert ended["candidates"] == as_well["candidates"] == 1
    assert ended["experts"] == as_well["experts"]
    assert ended["scores"] == as_well["scores"]
