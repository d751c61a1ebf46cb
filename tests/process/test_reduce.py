"""`streammoe reduce` on the checkpoints of real daemons, until a signal comes, and once."""

import re
import signal

import pytest

import streammoe
from tests.process.workspace import EVENTS, LINES, wait_until

HALF = EVENTS // 2
SHARDS = {"north": LINES[:HALF], "south": LINES[HALF:]}
PLACES = [*(f"{name}/state" for name in SHARDS), "--out", "out"]


def learn(here, name, **limit):
    """Let the daemon of a shard read on; return the events that it has learned."""
    model = "n_experts = 2, warmup = 300, reservoir = 200"
    here.config(f"{name}/events.csv", model=model)
    here.run_here(f"checkpoint.dir={name}/state", f"dead_letters.path={name}/letters.jsonl", **limit)
    return here.inspect(f"{name}/state")["n"]


def wait_for_version(watching, version):
    failed = 'streammoe_reduce_rounds_total{outcome="failed"}'
    wait_until(lambda: watching.metric("streammoe_reduce_version") == version or watching.metric(failed))
    assert not watching.metric(failed), watching.err


def test_it_follows_daemons_until_a_signal_comes(here):
    n = {}
    for name, lines in SHARDS.items():
        (here / name).mkdir()
        here.write(f"{name}/events.csv", lines)
        n[name] = learn(here, name, batches=4)
        assert 300 < n[name] < HALF
    watching = here.start("reduce", *PLACES, "--watch", "--every", "0.2", "--metrics-port", "0", "--json")
    wait_for_version(watching, 1)
    assert watching.ask("readyz")[0] == 200
    assert watching.metric('streammoe_shard_events{shard="north/state"}') == n["north"]
    n["north"] = learn(here, "north")
    assert n["north"] == HALF
    wait_for_version(watching, 2)
    watching.send_signal(signal.SIGTERM)
    done = watching.end()
    assert "Traceback" not in watching.err
    assert len(re.findall("version . of the global model contains", watching.err)) == 2
    assert (done["version"], done["n"]) == (2, sum(n.values()))
    for name, part in done["shards"].items():
        assert (part["n"], part["state_digest"]) == (n[name.removesuffix("/state")], here.inspect(name)["state_digest"])
    assert here.start("reduce", *PLACES, "--json").end()["outcome"] == "unchanged"
    model = streammoe.load(here / "out")
    # Both regimes: y = 2a where a > 0, else b - 1.
    assert model.predict_one({"a": 1.0, "b": 0.0}) == pytest.approx(2.0, abs=0.4)
    assert model.predict_one({"a": -1.0, "b": 1.0}) == pytest.approx(0.0, abs=0.4)
