"""How long a sink keeps its callers waiting is seen from another thread."""

import threading

import numpy as np
import pytest

from streammoe.daemon.outputs import Outputs
from streammoe.errors import RetriableCheckpointError, RetriableSinkError
from streammoe.pipeline.sink_wait import SinkWait
from streammoe.pipeline.writing import PredictionWriter
from streammoe.ports import Predictions
from tests.kafka_lab.lab import wait_until


class Sink:
    """Each of its methods does what is planned for it."""

    transactional = True

    def __init__(self, **plan):
        self.plan = plan

    def __getattr__(self, name):
        return lambda *_: self.plan.get(name, lambda: None)()


def outputs(wait, **plan):
    """Return outputs whose predictions go to such a sink."""
    return Outputs(Sink(), Sink(**plan), {"predictions": wait, "dead_letters": SinkWait()})


def fail(error):
    raise error


def write_row(sink, wait):
    """Write a prediction."""
    one = np.ones((1, 1))
    row = Predictions(
        locations=[{"row": 0}], versions=np.ones(1, np.int64), predictions=one, targets=one, outputs=("y",)
    )
    PredictionWriter(sink, 0.0, gate=False, wait=wait).write(row)


def started(call):
    thread = threading.Thread(target=call)
    thread.start()
    return thread


LETTERS = [("dead_letters", call) for call in ("flush", "write")]


@pytest.mark.parametrize(
    ("section", "call"), [*LETTERS, *(("predictions", call) for _, call in LETTERS), ("predictions", "commit")]
)
def test_a_call_is_a_wait_while_it_lasts(section, call):
    answered, waits = threading.Event(), {"predictions": SinkWait(), "dead_letters": SinkWait()}
    sinks = {name: Sink(**({call: answered.wait} if name == section else {})) for name in waits}
    found, wait = Outputs(sinks["dead_letters"], sinks["predictions"], waits), waits[section]
    calls = {"flush": found.flush, "commit": lambda: found.commit({}, 1)}
    calls["write"] = lambda: found.write(["a letter"])
    if section == "predictions":
        calls["write"] = lambda: write_row(sinks[section], wait)
    assert wait.seconds == 0
    thread = started(calls[call])
    wait_until(lambda: wait.seconds > 0.02, "it waits")
    answered.set()
    thread.join()
    assert wait.seconds == 0


def test_an_attempt_that_a_full_disk_refuses_is_no_wait_for_the_sink():
    wait = SinkWait()
    with pytest.raises(RetriableCheckpointError):
        outputs(wait, flush=lambda: fail(RetriableCheckpointError("the disk is full"))).flush()
    assert wait.seconds == 0


def test_a_wait_goes_on_between_attempts_and_over_a_new_sink_until_one_succeeds():
    wait, error = SinkWait(), RetriableSinkError("no answer")
    for _ in range(2):
        with pytest.raises(type(error)):
            outputs(wait, flush=lambda: fail(error)).flush()
    lasted = wait.seconds
    assert lasted > 0
    write_row(Sink(), wait)  # which may only buffer
    assert wait.seconds > lasted
    outputs(wait).flush()
    assert wait.seconds == 0
