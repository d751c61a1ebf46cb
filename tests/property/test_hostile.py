"""Checkpoints by an enemy, sound bytes with a right digest: rejected with a sentence, or harmless."""

import contextlib
import copy
import json
import math

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from streammoe import load
from streammoe.commands.inspect import describe_checkpoint
from streammoe.errors import CheckpointError, StreammoeError
from streammoe.persistence import encode
from streammoe.persistence.format import FORMAT, _pack
from tests.unit.estimators.damages import DAMAGES, outputs, quiet

NUMBERS = (0, -1, 7, 2**53 + 1, 2**63 - 1, 10**400, -0.5, 1e308, math.nan, True)
TEXTS = ("", "../../etc/passwd", "/dev/zero", "a\0b", "\n\x1b[2Jerror: forged", "ü" * 300)
ODD = (None, [], {}, [[]], {"": {}}, *NUMBERS, *TEXTS)
ODD_JSON = (*b'{ [NaN] [1e999] null "x" [[[[ [1,1] [[0]] [[0,null],[0,null]]'.split(), b"[" * 5000, b"\xff\xfe", b"")
POISON = {"f": (math.nan, -math.inf, -1.0, 0.0, 1e308, 5e-324, 7.0), "i": (-1, 0, 2**53, 2**63 - 1), "u": (0, 34, 255)}
"""Values by the kind of an array's type."""


def with_one_value(array, pick):
    array = array.copy()
    if array.size:
        array.flat[pick.randrange(array.size)] = pick.choice(POISON.get(array.dtype.kind, (True,)))
    return array


def of_another_type(array, pick):
    with np.errstate(invalid="ignore"):
        return array.astype(pick.choice((np.float64, np.int64, np.uint8, np.bool_)))


SPOIL = (
    with_one_value,
    of_another_type,
    lambda array, pick: array.reshape(pick.choice([(array.size,), (1, array.size), (*array.shape, 1)])),
    lambda array, pick: np.concatenate([array, array]) if array.ndim else array[None],
    lambda array, pick: array[: len(array) // 2] if array.ndim else array[None],
    lambda array, pick: np.empty((0, 2**40), array.dtype),
    lambda array, pick: np.frombuffer(pick.choice(ODD_JSON), np.uint8),
)


def rewritten(arrays, metadata, pick):
    """Return the bytes of a checkpoint after one to three changes at random."""
    arrays, metadata = dict(arrays), copy.deepcopy(dict(metadata))
    for _ in range(pick.choice((1, 1, 1, 2, 3))):
        if pick.random() < 0.6:
            name, place = pick.choice(sorted(arrays)), pick.choice(sorted(arrays))
            arrays[place] = pick.choice(SPOIL)(arrays[name], pick)
            continue
        place = metadata
        while True:
            key = pick.choice(sorted(place, key=str) if isinstance(place, dict) else range(len(place)))
            if not (isinstance(place[key], dict | list) and place[key] and pick.random() < 0.75):
                break
            place = place[key]
        place[key] = pick.choice(ODD)
    try:
        return encode(arrays, metadata)
    except ValueError:  # what `encode` rejects is no harder to write for an enemy
        return _pack(arrays, json.dumps({"format": FORMAT, **metadata}, sort_keys=True, separators=(",", ":")))


def attack(data, folder):
    """Look at a model and go on with it; return what went wrong, which must be a sentence, or None."""
    path = folder / "model.safetensors"
    path.write_bytes(data)
    with quiet():
        try:
            describe_checkpoint(path)
        except CheckpointError as rejected:
            return rejected
        # Whatever can be looked at can be gone on with, as far as its numbers and arguments let it.
        model = load(path)
        given = model.options
        if given.most_experts > 1000 or max(given.degree, given.gate_degree) > 8:
            return None  # learning would take what its arguments ask for: see SECURITY.md
        with contextlib.suppress(StreammoeError):
            x = dict.fromkeys(model.fields, 0.5)
            model.predict_one(x)
            model.learn_one(x, dict.fromkeys(model.output_names, 1.0) if len(model.output_names) > 1 else 1.0)
    return None


randoms = st.randoms(use_true_random=False)
some = settings(max_examples=10, suppress_health_check=list(HealthCheck))
MODELS = {**{name: make for name, (make, _) in DAMAGES.items()}, "several outputs": outputs}


def is_sentence(error):
    return error is None or (isinstance(error, StreammoeError) and str(error).isprintable())


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    return tmp_path_factory.mktemp("hostile")


@pytest.mark.parametrize("name", MODELS)
@some
@given(pick=randoms)
def test_a_rewritten_model_is_rejected_or_harmless(folder, name, pick):
    model = MODELS[name]()
    assert is_sentence(attack(rewritten(model.arrays(), model.describe(), pick), folder))
