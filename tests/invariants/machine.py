"""A model that is fed in every way, disturbed and restarted, next to one that was fed row by row.

A script is a list of steps. After each of them the model is, to the last bit, what its undisturbed twin was after as
many events; what it said of them on the way is what the twin said.
"""

import copy
import math
import pickle
import random
from functools import cache
from itertools import pairwise
from types import SimpleNamespace
from typing import NamedTuple

import numpy as np
import pandas as pd
import pytest

from streammoe import InvalidEvent, MoEClassifier, MoEMultiTargetRegressor, load
from streammoe.columns.layout import Additions
from streammoe.columns.values import seconds
from streammoe.errors import REASONS
from streammoe.estimators import model_of
from streammoe.model.learn_rows import introduce, learn_rows
from streammoe.model.tables import Events
from streammoe.persistence import decode, encode
from streammoe.pipeline.pipeline import Pipeline
from streammoe.pipeline.schema import Schema
from streammoe.pipeline.scores import ClassificationScores, PrequentialScores
from streammoe.pipeline.writing import PredictionWriter
from tests.batches import batch_of
from tests.invariants.configurations import BAD, CONFIGURATIONS, DISTURBANCES, IDLE, MISSING, N, event

RESTARTS = {
    "save": lambda model, folder: (model.save(folder / "model"), load(folder / "model"))[1],
    "checkpoint": lambda model, _: model_of(decode(encode(model.arrays(), model.describe()), "memory"), "memory"),
    "pickle": lambda model, _: pickle.loads(pickle.dumps(model)),
    "copy": lambda model, _: copy.copy(model),
    "deepcopy": lambda model, _: copy.deepcopy(model),
    "clone": lambda model, _: model.clone(include_attributes=True),
}
WAYS = tuple(BAD)
LIBRARY = ("one", "many", "array", "rows")
"""Ways of the library; the others are formats that the daemon decodes."""


class Step(NamedTuple):
    """So many events in a way, with a disturbance before one of them; or a restart, or a look."""

    what: str
    n: int = 0
    disturbance: str | None = None
    at: int = 0


def script(at, seed):
    """Every way with and without every sort of disturbance, every restart and a look, in an order of its own."""
    rng = random.Random(f"{at} {seed}")
    configuration = CONFIGURATIONS[at]
    # What comes first may be bad, when neither columns nor outputs are known.
    first = WAYS[at % len(WAYS)]
    steps, learned = [Step(first, 3, rng.choice(BAD[first]), 0)], 3
    while learned < N:
        deck = [(way, sort) for way in WAYS for sort in ("", "bad", "idle")] + [(name, "") for name in RESTARTS]
        deck += [("look", ""), ("look", "")]
        rng.shuffle(deck)
        for what, sort in deck:
            if what not in BAD:
                steps.append(Step(what))
                continue
            n = min(rng.choice([1, 2, 3, 5, 9, 14]), N - learned)
            if not n:
                break
            place = rng.randrange(n)
            odd = rng.choice(BAD[what] if sort == "bad" else IDLE[what]) if sort else None
            if sort == "bad" and configuration.is_fragile and learned + place >= SCALED:
                odd = rng.choice([odd, "huge"])
            steps.append(Step(what, n, odd, place))
            learned += n
    return steps


SCALED = 12
"""Events after which inputs say something of a number, at the latest; before, the mean predicts."""


# --- the twin -------------------------------------------------------------------------------------------------------


class Twin(NamedTuple):
    """What was said before and of each event, and what the model was after as many."""

    digests: list[str]
    losses: np.ndarray
    predictions: list[np.ndarray]
    asked: list[np.ndarray]
    """What it predicts of each event when it is asked before."""
    arrays: dict[str, bytes]
    reached: set[str]


@cache
def twin_of(at):
    """A model that learns rows, one at a time; it also says what it predicted and lost."""
    twin = Machine(at)
    model, digests, said, asked, reached = twin.model, [twin.model.state_digest()], [], [], set()
    for i in range(N):
        held, known = event(twin.configuration, i), model.feature_names
        asked.append(predicted(model, held))
        said.append(twin.rows([held], None))
        digests.append(model.state_digest())
        reached |= happening(model)
        if known == model.feature_names:  # a new column comes before its event is predicted, and averages begin again
            prediction = np.minimum(said[-1].predictions[0][: len(asked[-1])], bound_of(model))
            np.testing.assert_array_equal(prediction, asked[-1])
    arrays = {name: array.tobytes() for name, array in model.arrays().items()}
    losses = np.concatenate([each.losses for each in said])
    return Twin(digests, losses, [each.predictions[0] for each in said], asked, arrays, reached)


def happening(model):
    """What a stream should reach."""
    phase = model.learner.phase
    fit, portfolio = getattr(phase, "fit", None), getattr(phase, "portfolio", None)
    said = {
        "drift": model.drifts,
        "scaling": fit is not None and not fit.plan.is_fitting,
        "fitting": fit is not None and fit.plan.is_fitting,
        "settled": fit is not None and not fit.plan.is_scaling,
        "resting": portfolio is not None and bool(portfolio.resting),
        "curved": "curved" in model.member_weights,
    }
    return {what for what, happens in said.items() if happens}


def bound_of(model):
    """Probabilities are at most one when they are asked for; sums of shares may be a rounding above it."""
    return 1.0 if isinstance(model, MoEClassifier) else math.inf


def predicted(model, held):
    """What the model predicts for the next event, as numbers in the order of its outputs."""
    x, _ = parts(model, held)
    past = model.learner.context.past
    if past is not None:  # as if each event so far had been predicted right before it was learned
        past.is_timely = True
    found = model.predict_proba_one(x) if isinstance(model, MoEClassifier) else model.predict_one(x)
    if past is not None:
        past.is_timely = False
    return np.array(list(found.values()) if isinstance(found, dict) else [found])


def parts(model, held):
    """Features and target of an event."""
    names = [name for name in held if name.startswith(("y", "label"))]
    x = {name: value for name, value in held.items() if name not in names and name != "w"}
    if isinstance(model, MoEMultiTargetRegressor):
        return x, {name: held[name] for name in names}
    return x, held[names[0]]


def learn_one(model, held):
    model.learn_one(*parts(model, held), w=held["w"])


# --- the model ------------------------------------------------------------------------------------------------------


class Said(NamedTuple):
    """Of learned events, in order."""

    losses: np.ndarray | None = None
    predictions: list[np.ndarray] | None = None


class Machine:
    """Plays steps on a model."""

    def __init__(self, at):
        self.configuration = CONFIGURATIONS[at]
        self.model = self.configuration.new()
        self.learned = 0

    @property
    def kind(self):
        return self.configuration.kind

    def play(self, step, twin, folder):
        """Do one step, and compare with the twin."""
        if step.what in RESTARTS:
            self.restart(step.what, folder)
        elif step.what == "look":
            self.look()
        else:
            held = [event(self.configuration, i) for i in range(self.learned, self.learned + step.n)]
            odd = step.disturbance and self.disturbed(held[step.at], step.disturbance)
            self.feed(step, held, odd, twin)
        assert self.model.n == self.learned
        assert self.model.state_digest() == twin.digests[self.learned]
        if self.learned < N:
            asked = predicted(self.model, event(self.configuration, self.learned))
            np.testing.assert_array_equal(asked, twin.asked[self.learned])

    def feed(self, step, held, odd, twin):
        """Feed events; a frame or an array as far as it can hold them."""
        while held:
            piece, at, way = held, step.at, step.what
            if way == "array":
                piece = held[: same_columns(held)]
                if not piece:
                    piece, way = held[:1], "one"
            here = None if odd is None or at >= len(piece) else (at, step.disturbance, odd)
            said = getattr(self, way)(piece, here) if way in LIBRARY else self.decoded(way, piece, here)
            stop = self.learned + len(piece)
            if said.losses is not None:
                assert said.losses.tobytes() == twin.losses[self.learned : stop].tobytes()
            for mine, theirs in zip(said.predictions or (), twin.predictions[self.learned : stop], strict=False):
                width = min(len(mine), len(theirs))  # a class that is not known yet has no probability, or one of 0
                np.testing.assert_array_equal(mine[:width], theirs[:width])
                assert not np.any(mine[width:])
                assert not np.any(theirs[width:])
            self.learned = stop
            held = held[len(piece) :]
            step = step._replace(at=step.at - len(piece))
            odd = None if here else odd

    def disturbed(self, held, disturbance):
        """An event that must not be learned, and what else it would bring: a column, a level and a label."""
        change = DISTURBANCES[disturbance]
        bad = {**held, "Z": held.get("Z", 1), **{name: value for name, value in change.items() if name != "y"}}
        first = self.configuration.targets[0]
        if "y" in change:
            bad[first] = change["y"]
        elif disturbance == "no target":
            bad |= dict.fromkeys(self.configuration.targets)
        elif self.kind is MoEClassifier:
            bad[first] = "unheard of"
        return bad

    # -- ways --------------------------------------------------------------------------------------------------------

    def one(self, held, odd):
        for i, each in enumerate(held):
            if odd and odd[0] == i and odd[1] not in MISSING:
                strange = {**odd[2], "new": 1.0, "Z": odd[2]["Z"] if odd[1].startswith("Z=") else 99}
                self.tried(odd[1], lambda strange=strange: learn_one(self.model, strange))
            learn_one(self.model, each)
        return Said()

    def tried(self, disturbance, learn, row=None):
        """Let the model reject something, or not learn it."""
        before = self.model.state_digest(), list(self.model.fields), list(self.model.output_names)
        if disturbance == "weight 0":
            learn()
        else:
            with pytest.raises(InvalidEvent) as rejected:
                learn()
            assert rejected.value.row == row
            assert rejected.value.reason in ({"poison"} if disturbance == "huge" else set(REASONS) - {"poison"})
        assert (self.model.state_digest(), self.model.fields, self.model.output_names) == before

    def many(self, held, odd):
        def learn(rows):
            frame = pd.DataFrame(rows)
            X = frame.drop(columns=[*self.configuration.targets, "w"])
            y = frame[list(self.configuration.targets)]
            y = y if self.kind is MoEMultiTargetRegressor else y[self.configuration.targets[0]]
            self.model.learn_many(X, y, frame["w"].to_numpy())

        if odd:
            at, disturbance, bad = odd
            whole = [*held[:at], {**held[at], **bad}, *held[at:]]
            if disturbance == "weight 0":
                learn(whole)
                return Said()
            self.tried(disturbance, lambda: learn(whole), at)
        learn(held)
        return Said()

    def array(self, held, odd):
        names = [name for name in held[0] if name not in self.configuration.targets and name != "w"]

        def learn(rows):
            X = np.array([[as_number(name, each[name]) for name in names] for each in rows])
            Y = np.array([[each[name] for name in self.configuration.targets] for each in rows])
            y = Y if self.kind is MoEMultiTargetRegressor else Y[:, 0]
            weights = np.array([each["w"] for each in rows])
            return self.model.learn_array(X, y, w=weights, feature_names=names)

        if odd:
            at, disturbance, bad = odd
            if disturbance == "y=nan" and self.kind is MoEClassifier:
                disturbance, bad = "a=nan", {**held[at], "a": math.nan}
            whole = [*held[:at], {**held[at], **bad}, *held[at:]]
            if disturbance == "weight 0":
                losses = learn(whole)
                assert math.isnan(losses[at])
                return Said(np.delete(losses, at))
            self.tried(disturbance, lambda: learn(whole), at)
        return Said(learn(held))

    def rows(self, held, odd):
        """As the daemon does: a first event says which columns there are, and a later one may bring more."""
        rows = held if odd is None else [*held[: odd[0]], odd[2], *held[odd[0] :]]
        skipped = -1 if odd is None else odd[0]
        self.name_targets()
        if not self.model.fields:
            names = sorted(feature_names(held[0]))
            introduce(self.model.learner, names, self.numbers(held[:1], names), self.targets(held[:1]))
        losses, predictions = [], []
        new = [i for i, each in enumerate(rows) if "late" in each and "late" not in self.model.fields and i != skipped]
        for start, stop in pairwise(sorted({0, len(rows), *new[:1], *(at + 1 for at in new[:1])})):
            piece, some = range(start, stop), rows[start:stop]
            late = ("late",) if start in new[:1] else ()
            weights = np.array([each["w"] for each in some])
            texts = {"Z": [None if each.get("Z") is None else str(each["Z"]) for each in some]}
            X = self.numbers(some, [*self.model.fields, *late])
            events = Events(X, texts, self.targets(some), weights)
            outcome = learn_rows(self.model.learner, events, Additions(late), traced=False)
            good = [j for j, i in enumerate(piece) if i != skipped]
            assert outcome.learned[good].all()
            if len(good) < len(piece):
                (bad,) = set(range(len(piece))) - set(good)
                assert not outcome.learned[bad]
                assert set(outcome.rejected) == (set() if odd[1] in {"weight 0", "no target"} else {bad})
                assert np.isnan(outcome.losses[bad])
            losses.append(outcome.losses[good])
            predictions += list(outcome.predictions[good])
        return Said(np.concatenate(losses), predictions)

    def decoded(self, format, held, odd):
        """Through the daemon's pipeline, with predictions on."""
        records, idle = list(held), 0
        if odd:
            at, disturbance, bad = odd
            # In a record NaN is a missing value, and no disturbance.
            if disturbance == "y=nan" and self.kind is MoEClassifier:
                bad = {**held[min(at, len(held) - 1)], "a": math.inf}
            bad = {name: math.inf if value != value else value for name, value in bad.items()}  # noqa: PLR0124
            idle = int(disturbance in {"weight 0", "no target"})
            # Before there is a model, the first record that can be read says which columns there are.
            more = {"new": 1.0} if self.learned and disturbance != "huge" else {}
            no_record = {"csv": b'1,"2', "jsonl": b"{"}.get(format)
            records.insert(at, no_record if disturbance == "no record" else {**bad, **more})
        self.name_targets()
        kept = []
        classes = self.kind is MoEClassifier
        columns = {
            "weight": "w",
            "categorical": frozenset("Z"),
            "timestamps": frozenset("t"),
            "numeric": frozenset("a"),
        }
        schema = Schema(self.configuration.targets, **columns, late_columns=True)
        scores = ClassificationScores() if classes else PrequentialScores(len(self.configuration.targets))
        pipeline = Pipeline(
            self.model, schema, scores, PredictionWriter(SimpleNamespace(write=kept.append), 0.0, gate=False)
        )
        done = pipeline.process(batch_of(records, format))
        assert done.outcomes["learned"] == len(held)
        assert (done.outcomes["rejected"], done.outcomes["predicted_only"]) == (int(bool(odd)) - idle, idle)
        if odd and odd[1] == "huge":
            assert done.letters[0].reason == "poison"
        losses, predictions = [], []
        for said in kept:
            values = said.probabilities if classes else said.predictions
            for place, loss, prediction in zip(said.locations, said.losses, values, strict=True):
                if not odd or place["row"] != odd[0]:
                    losses.append(loss)
                    predictions.append(prediction)
        return Said(np.array(losses), predictions)

    # -- what rows are made of ---------------------------------------------------------------------------------------

    def name_targets(self):
        if self.kind is MoEMultiTargetRegressor and not self.model.output_names:
            self.model.set_targets(self.configuration.targets)

    def numbers(self, some, names):
        return np.array(
            [[math.nan if name == "Z" else as_number(name, each.get(name)) for name in names] for each in some]
        )

    def targets(self, some):
        names = self.configuration.targets
        if self.kind is MoEClassifier:
            return [each[names[0]] for each in some]
        return np.array([[math.nan if each[name] is None else each[name] for name in names] for each in some])

    # -- restarts ----------------------------------------------------------------------------------------------------

    def restart(self, how, folder):
        """Go on with a copy, while the original learns something else."""
        original, self.model = self.model, RESTARTS[how](self.model, folder)
        assert type(self.model) is self.kind
        assert self.model.convergence_residual == pytest.approx(original.convergence_residual, rel=0, nan_ok=True)
        for i in range(2):
            held = event(self.configuration, (self.learned + 7 * i) % N)
            learn_one(original, {**held, "a": -3.0, "original": 1.0, "Z": "original"})

    def look(self):
        """Ask for everything that learns nothing."""
        model = self.model
        x, _ = parts(model, event(self.configuration, self.learned % N))
        strange = {**x, "unknown": 1.0, "Z": "unknown", "a": 1e40}
        X = np.array([[1.0, math.pi]])
        if model.learner.context.past is not None:  # rows are not taken for the next event
            model.learner.context.past.is_timely = False
        rows = model.predict_array(X, feature_names=["a", "b"])
        many = model.predict_many(pd.DataFrame(X, columns=["a", "b"]))
        one = model.predict_one({"a": 1.0, "b": math.pi})
        np.testing.assert_array_equal(np.ravel(many), np.ravel(rows))
        assert np.ravel(rows).tolist() == (list(one.values()) if isinstance(one, dict) else [one])
        for look in (model.predict_one, model.gate_one):
            look(strange)
        for look in (model.experts, model.describe, model.__repr__):
            look()
        if model.n and self.kind is MoEClassifier:
            model.log_likelihood_array(X, ["unknown"], feature_names=["a", "b"])
        elif model.n and not self.configuration.is_fragile:
            # Without a prior, steps of almost 1 may leave a covariance that is singular, of which there is none.
            model.predict_distribution_one(strange)
        if not model.is_warming_up:
            for array in model.parameters(averaged=True).values():
                if isinstance(array, np.ndarray):
                    array.fill(7.0)


def feature_names(held):
    return [name for name in held if name in {"a", "b", "Z", "t", "late", "new"}]


def same_columns(held):
    """How many of the first events a table without gaps can hold."""
    full = {"a", "b", "Z", "t"} <= held[0].keys()
    return next((i for i, each in enumerate(held) if each.keys() != held[0].keys()), len(held)) if full else 0


def as_number(name, value):
    if value is None:
        return math.nan
    return seconds(value, "t") if name == "t" else float(value)


# --- scripts --------------------------------------------------------------------------------------------------------


def check(at, steps, folder):
    """Play a script; where it fails, say which steps play it again."""
    twin, machine = twin_of(at), Machine(at)
    for number, step in enumerate(steps, 1):
        try:
            machine.play(step, twin, folder)
        except Exception as error:
            recipe = f"in test_invariants.py: check({at}, {steps[:number]}, tmp_path)  # {CONFIGURATIONS[at]}"
            raise AssertionError(recipe) from error
    assert machine.learned == N
    found = {name: array.tobytes() for name, array in machine.model.arrays().items()}
    assert not {name for name in found if found[name] != twin.arrays.get(name)}
