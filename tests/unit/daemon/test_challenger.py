"""A daemon with a challenger: it resumes and begins as the settings say, and can be promoted."""

import json
from pathlib import Path

import numpy as np
import pytest
from click.testing import CliRunner

from streammoe.commands import main
from streammoe.commands.inspect import inspect_path
from streammoe.commands.promote import promote
from streammoe.commands.rollback import roll_back
from streammoe.daemon.signals import StopFlag
from streammoe.daemon.status import read
from streammoe.errors import CheckpointError
from tests.unit import daemons
from tests.unit.daemons import checkpoints, latest, opened, settings, store, write_csv
from tests.unit.pipeline.written_rows import lines

pytestmark = pytest.mark.usefixtures("logging_as_before")

N = 700
CHALLENGER = ("challenger.n_experts=3", "challenger.warmup=90")
EXCHANGED = ("model.n_experts=3", "model.warmup=90", "challenger.n_experts=2", "challenger.warmup=50")
AS_MODEL = EXCHANGED[:2]


@pytest.fixture(autouse=True)
def here(tmp_path, monkeypatch):
    daemons.enter(
        tmp_path,
        monkeypatch,
        """
        source = { kind = "file", path = "data*.csv", block_bytes = 4096 }
        schema.target = "y"
        model = { n_experts = 2, warmup = 50 }
        checkpoint = { every_events = 100, keep = 9 }
        predictions = { kind = "file", path = "rows.jsonl" }
        metrics.enabled = false
        """,
    )
    write(0)


def write(part):
    """Write so many further events."""
    pairs = np.random.default_rng(part).normal(size=(N, 2)).round(4).tolist()
    write_csv(f"data{part}.csv", [(a, b, round((2 * a if a > 0 else b) + 0.1 * a * b, 4)) for a, b in pairs])


def run(*flags, **options):
    """Run to the end, and return the state of the daemon."""
    with opened(*flags, **options) as running:
        running.daemon.run(StopFlag())
        return running.daemon.state


def digests(state):
    return state.model.state_digest(), state.pipeline.challenger.model.state_digest()


def alone(*flags):
    """Return digest, predictions and scores of a model that has learned all there is in a folder of its own."""
    Path("alone.jsonl").unlink(missing_ok=True)
    found = run(*flags, "checkpoint.dir=alone", "predictions.path=alone.jsonl", fresh=True)
    return found.model.state_digest(), rows("alone.jsonl"), found.pipeline.scores.summary()


def rows(name="rows.jsonl"):
    return [row["prediction"] for row in lines(Path(name))]


def events():
    """Return what the history says of challengers, with the events that the model had learned."""
    return [
        (entry["event"], entry["n"]) for entry in latest()["history"] if entry["event"] not in {"started", "fitted"}
    ]


# --- learning next to the model -------------------------------------------------------------------------------------


def test_a_resume_goes_on_bit_for_bit_and_what_is_shown_is_what_was_scored():
    first = run(*CHALLENGER)
    write(1)
    with opened(*CHALLENGER) as running:
        state = running.daemon.state
        assert digests(state) == digests(first)
        running.daemon.run(StopFlag())
    (model, _, scores), (challenger, _, others) = alone(), alone(*AS_MODEL)
    assert (*digests(state), latest()["state_digest"]) == (model, challenger, model)
    summary = state.pipeline.challenger.summary()
    assert (summary["events"], summary["model_events"], summary["missed"]) == (2 * N, 2 * N, 0)
    assert summary["champion_scores"] == pytest.approx(scores)
    assert summary["challenger_scores"] == pytest.approx(others)
    assert read(Path("state"))["challenger"] == summary
    shown = inspect_path(Path("state"))["challenger"]
    assert (shown["n"], shown["state_digest"]) == (2 * N, digests(state)[1])
    assert (shown["scores"], shown["champion_scores"]) == (summary["challenger_scores"], summary["champion_scores"])
    assert "challenger" in CliRunner().invoke(main, ["inspect", "state"]).stdout
    assert running.daemon.metrics.gauge("streammoe_challenger_events", "learned")._value.get() == 2 * N
    assert events() == [("challenger began", 0)]


def test_another_challenger_begins_anew_and_the_model_goes_on_with_the_scores_from_there():
    run()
    write(1)
    found = run(*CHALLENGER, "challenger.seed=1")
    challenger = found.pipeline.challenger
    assert (challenger.model.n, challenger.champion_scores.log_loss.count) == (N, N)
    errors = [row["prediction"] - row["target"] for row in lines(Path("rows.jsonl"))[N:]]
    assert challenger.champion_scores.summary()["rmse"] == pytest.approx(np.sqrt(np.mean(np.square(errors))))
    write(2)
    found = run(*CHALLENGER, "challenger.seed=2")
    assert found.pipeline.challenger.model.n == N
    write(3)
    found = run(*CHALLENGER, "challenger.seed=2", "model.range_factor=1e9")  # of both, and may change
    assert (found.pipeline.challenger.model.n, found.pipeline.challenger.model.range_factor) == (2 * N, 1e9)
    write(4)
    found = run()
    assert found.pipeline.challenger is None
    assert not any(name.startswith(("challenger.", "champion.")) for name in store().latest()[1].arrays)
    assert found.model.state_digest() == alone()[0]
    began = [("challenger began", N), ("challenger began", 2 * N), ("challenger dropped", 4 * N)]
    assert events() == began


def test_a_challenger_that_fails_is_dropped_and_begins_anew_at_the_next_start():
    with opened(*CHALLENGER) as running:
        state = running.daemon.state
        state.pipeline.challenger.model.learner.context.outliers[0] = -1  # which no restart would accept
        state.pipeline.challenger.pipeline.scores.log_loss.update(np.array([np.nan]))  # and which is not saved
        running.daemon.run(StopFlag())
    assert state.pipeline.challenger is None
    assert state.model.state_digest() == alone()[0]
    assert "challenger" not in latest()
    assert run(*CHALLENGER).pipeline.challenger.model.n == 0
    assert [event for event, _ in events()] == ["challenger began", "challenger failed", "challenger began"]


# --- promotion ------------------------------------------------------------------------------------------------------


def test_after_a_promotion_the_challenger_predicts_whether_or_not_the_settings_know_of_it():
    before = run(*CHALLENGER)
    done = CliRunner().invoke(main, ["promote", "state"])
    assert done.exit_code == 0, done.stderr
    assert "n_experts = 3 (was 2)" in done.stdout
    write(1)
    after = run(*CHALLENGER)
    (model, predicted, _), (challenger, others, _) = alone(), alone(*AS_MODEL)
    assert digests(after) == (challenger, model)
    assert rows() == predicted[:N] + others[N:]
    scores, was = after.pipeline.challenger.scores, before.pipeline.challenger.scores
    assert [each.log_loss.count for each in scores.values()] == [2 * N] * 2
    assert after.pipeline.scores.summary() == scores["champion"].summary()
    assert was["challenger"].summary()["rmse"] != was["champion"].summary()["rmse"]
    assert events()[1:] == [("promoted", N)]
    assert latest()["promoted"]
    digest = digests(after)
    assert digests(run(*EXCHANGED)) == digest, "the settings may be exchanged at any later start"
    assert "promoted" not in latest()
    with pytest.raises(CheckpointError):
        run(*CHALLENGER)
    promote(Path("state"))
    assert digests(run(*EXCHANGED)) == digest[::-1], "a second promotion undoes the first"


def test_a_rollback_undoes_a_promotion():
    before = digests(run(*CHALLENGER))
    promote(Path("state"))
    roll_back(Path("state"))
    assert digests(run(*CHALLENGER)) == before


def test_settings_that_match_neither_model_are_rejected():
    run(*CHALLENGER)
    promote(Path("state"))
    before = checkpoints()
    for flags in ((), ("challenger.n_experts=4",)):
        with pytest.raises(CheckpointError) as rejected:
            run(*flags)
        assert "promoted" in str(rejected.value)
    assert checkpoints() == before


def test_a_reload_of_settings_that_do_not_know_of_a_promotion_reaches_the_right_model():
    run(*CHALLENGER)
    promote(Path("state"))
    with opened(*CHALLENGER) as running:
        running.daemon.reconfigure(settings(*CHALLENGER, "challenger.range_factor=1e9"), affects_events=True)
        state = running.daemon.state
    assert (state.model.range_factor, state.pipeline.challenger.model.range_factor) == (1e9, 1e6)


def test_a_promotion_that_is_not_possible_changes_nothing():
    with pytest.raises(CheckpointError):
        promote(Path("state"))
    run()
    before = checkpoints()
    with pytest.raises(CheckpointError):
        promote(Path("state"))
    run(*CHALLENGER)
    with opened(*CHALLENGER), pytest.raises(CheckpointError):
        promote(Path("state"))
    assert latest()["challenger"]["n"] == 0
    with pytest.raises(CheckpointError):
        promote(Path("state"))
    assert all(checkpoints()[path] == content for path, content in before.items())
    assert json.dumps(latest()["history"]).count("promoted") == 0
