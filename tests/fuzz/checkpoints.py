"""Checkpoints as an enemy would write them: sound bytes with a right digest, and content that no version writes."""

import copy
import json
import math

import numpy as np

from streammoe.persistence import encode
from streammoe.persistence.format import FORMAT, _canonical, _pack

NUMBERS = (0, -1, 1, 2, 7, 2**31, 2**53 + 1, 2**63 - 1, 2**64, 10**400, -0.5, 0.5, 1e308, True)
TEXTS = ("", "x", "../../etc/passwd", "/dev/zero", "a\0b", "\n\x1b[2Jerror: forged", "ü" * 300, "\ud800")
ODD = (None, [], {}, [[]], {"": {}}, "text", *NUMBERS, *TEXTS)
ODD_JSON = (
    *b'{ [NaN] [1e999] null "x" [[[[ [1,1] [[0]] [0][0][0] [[0,null],[0,null]] [[1,null]]'.split(),
    *(b"", b"[" * 5000, b"\xff\xfe", b'["' + b"a" * 5000 + b'"]'),
)
POISON = {
    "f": (math.nan, math.inf, -math.inf, -1.0, 0.0, 1e308, -1e308, 5e-324, 1.0, 7.0, 300.0),
    "i": (-1, 0, 1, 2**53, 2**62, 2**63 - 1, -(2**63)),
    "u": (0, 1, 34, 91, 255),
    "b": (False, True),
}
"""Values by the kind of an array's type."""


class Enemy:
    """Changes arrays and metadata at random, one to three things; `pick` is a `random.Random`."""

    def __init__(self, arrays, metadata, pick):
        self.arrays = {name: array.copy() for name, array in arrays.items()}
        self.metadata = copy.deepcopy(metadata)
        self.random = pick

    def bytes(self):
        """The bytes of a checkpoint whose digest is right."""
        pick = self.random
        for _ in range(pick.choice((1, 1, 1, 2, 3))):
            if self.arrays and pick.random() < 0.6:
                self._spoil_an_array()
            else:
                self._spoil_the_metadata()
        try:
            return encode(self.arrays, self.metadata)
        except ValueError:  # what `encode` rejects is no harder to write for an enemy
            return _pack(self.arrays, _loose({"format": FORMAT, **self.metadata}))

    def _spoil_an_array(self):
        pick, arrays = self.random, self.arrays
        name = pick.choice(sorted(arrays))
        array = arrays[name]
        match pick.randrange(9):
            case 0:
                del arrays[name]
            case 1:
                other = pick.choice(sorted(arrays))
                arrays[name], arrays[other] = arrays[other], arrays[name]
            case 2:
                with np.errstate(invalid="ignore"):
                    arrays[name] = array.astype(pick.choice((np.float64, np.int64, np.uint8, np.bool_)))
            case 3:
                shapes = [(array.size,), (1, array.size), (array.size, 1), (*array.shape, 1), array.shape[::-1]]
                arrays[name] = array.reshape(pick.choice(shapes))
            case 4:
                axis = pick.randrange(array.ndim) if array.ndim else 0
                arrays[name] = array.take(range(array.shape[axis] // 2), axis=axis) if array.ndim else array[None]
            case 5:
                arrays[name] = np.concatenate([array, array]) if array.ndim else array[None]
            case 6:  # nothing, of an enormous shape
                arrays[name] = np.empty((0, pick.choice((2**31, 2**40))), array.dtype)
            case 7 if array.dtype == np.uint8 and array.size:
                arrays[name] = np.frombuffer(self._other_json(array.tobytes()), np.uint8)
            case 8:
                arrays[pick.choice(("state.", "encoder.", "warmup.", "labels.", "scores.", "")) + "more"] = array
            case _ if array.size:
                arrays[name] = array.copy()
                arrays[name].flat[pick.randrange(array.size)] = pick.choice(POISON[array.dtype.kind])

    def _other_json(self, data):
        pick = self.random
        if pick.random() < 0.5:
            return pick.choice(ODD_JSON)
        at = pick.randrange(len(data))
        return data[:at] + bytes([pick.randrange(256)]) + data[at + pick.randrange(2) :]

    def _spoil_the_metadata(self):
        pick, place = self.random, self.metadata
        while keys := sorted(place, key=str) if isinstance(place, dict) else list(range(len(place))):
            key = pick.choice(keys)
            inner = place[key]
            if isinstance(inner, dict | list) and inner and pick.random() < 0.75:
                place = inner
                continue
            match pick.randrange(5):
                case 0:
                    del place[key]
                case 1 if isinstance(place, dict):
                    place[pick.choice(TEXTS[:-1])] = inner
                case 2:
                    place[key] = []
                    for _ in range(pick.choice((3, 40, 400))):
                        place[key] = [place[key]]
                case 3 if isinstance(inner, int | float) and not isinstance(inner, bool):
                    place[key] = pick.choice((math.nan, math.inf, *NUMBERS))
                case _:
                    place[key] = copy.deepcopy(pick.choice(ODD))
            return


def _loose(value):
    """JSON with the constants and the half characters that `encode` rejects."""
    try:
        return _canonical(value)
    except ValueError:
        return json.dumps(value, sort_keys=True, separators=(",", ":"))
