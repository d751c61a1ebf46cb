"""Predictions as JSON, one object per event."""

from __future__ import annotations

import json
from collections.abc import Hashable, Sequence
from functools import cache

import msgspec
import numpy as np

from streammoe.kernels.shortest import DOUBLE, LONGEST, SPARE, TEXT, WHOLE, powers_to_write_by, write_rows
from streammoe.ports import Locations, Predictions
from streammoe.types import AnyArray, FloatArray, IntArray

_encoder = msgspec.json.Encoder()
_powers = cache(powers_to_write_by)


def json_lines(rows: Predictions) -> tuple[memoryview, IntArray]:
    """Encode one object per event: place, model_version, prediction, and whatever else is known.

    With several outputs, ``prediction``, ``interval`` and ``target`` are objects by output. ``loss`` is the -log s(y|x)
    of a learned event. ``global_version``, where there is a global model, is 0 if the daemon's own model predicted.
    What is unknown or not finite is null.

    Returns:
        The n lines, each with its line end, and (n,) where each of them ends.
    """
    line = _Line(len(rows))
    line.text(b'{"place":')
    locations = rows.locations
    if isinstance(locations, Locations):
        line.text(_encode(locations.common)[:-1])
        for i, (name, numbers) in enumerate(locations.numbers.items()):
            line.text(b"%s%s:" % (b"," if i or locations.common else b"", _encode(name)))
            line.column(WHOLE, numbers)
        line.text(b"}")
    else:
        line.texts([_encode(location) for location in locations])
    line.text(b',"model_version":')
    line.column(WHOLE, rows.versions)
    if rows.global_versions is not None:
        line.text(b',"global_version":')
        line.column(WHOLE, rows.global_versions)
    line.text(b',"prediction":')
    predictions, targets = rows.predictions, rows.targets
    if isinstance(predictions, np.ndarray) and isinstance(targets, np.ndarray):
        line.by_output(predictions, rows.outputs)
        if rows.intervals is not None:
            line.text(b',"interval":')
            line.by_output(rows.intervals(), rows.outputs)
        line.text(b',"target":')
        unknown = set(np.flatnonzero(np.isnan(targets).any(axis=1)).tolist())
        if len(rows.outputs) > 1 and unknown:
            objects = [dict(zip(rows.outputs, row, strict=True)) for row in targets.tolist()]
            line.texts([_encode(None if i in unknown else each) for i, each in enumerate(objects)])
        else:
            line.by_output(targets, rows.outputs)
    else:
        line.labels(list(predictions))
        line.text(b',"target":')
        line.labels(list(targets))
    if rows.losses is not None:
        line.text(b',"loss":')
        line.column(DOUBLE, rows.losses)
    if rows.probabilities is not None:
        line.text(b',"probabilities":')
        line.mapping(rows.classes, rows.probabilities)
    if rows.gate is not None:
        line.text(b',"gate":')
        line.array(rows.gate)
    line.text(b"}\n")
    return line.write()


def _encode(value: object) -> bytes:
    try:
        return _encoder.encode(value)
    except UnicodeEncodeError:  # the path of a file whose name is not UTF-8, of which JSON can write the escapes
        return json.dumps(value, separators=(",", ":")).encode("ascii")


class _Line:
    """A builder of n lines: the texts that they share, and a column for each value that differs."""

    def __init__(self, n: int) -> None:
        self._n = n
        self._texts = [b""]
        self._kinds: list[int] = []
        self._columns: list[AnyArray] = []
        self._levels: list[bytes] = []
        self._level_bytes = 0
        """How long all texts of columns are together."""

    def text(self, text: bytes) -> None:
        """Continue each line by the same text."""
        self._texts[-1] += text

    def column(self, kind: int, values: AnyArray) -> None:
        """Continue each line by a number of its own, or by the level of that index."""
        self._kinds.append(kind)
        self._columns.append(values)
        self._texts.append(b"")

    def texts(self, texts: Sequence[bytes]) -> None:
        """Continue each line by a text of its own."""
        self._indexed(texts, np.arange(len(texts)))

    def labels(self, labels: Sequence[Hashable]) -> None:
        """Continue each line by a label, of which there are few."""
        index = {label: i for i, label in enumerate(dict.fromkeys(labels))}
        self._indexed(list(map(_encode, index)), np.fromiter(map(index.__getitem__, labels), np.int64, self._n))

    def _indexed(self, levels: Sequence[bytes], indexes: IntArray) -> None:
        lengths = np.fromiter(map(len, levels), np.int64, len(levels))
        self._level_bytes += int(lengths[indexes].sum())
        self.column(TEXT, indexes + len(self._levels))
        self._levels += levels

    def by_output(self, values: FloatArray, outputs: Sequence[str]) -> None:
        """Continue each line by its row of (n, Q, …): the value of the only output, or an object by output."""
        if len(outputs) > 1:
            self.mapping(outputs, values)
        else:
            self._value(values[:, 0])

    def mapping(self, names: Sequence[str], values: FloatArray) -> None:
        """Continue each line by an object that has its row of (n, Q, …) under these names."""
        self.text(b"{")
        # The last one counts where two labels read alike, such as 1 and "1".
        for i, (name, q) in enumerate({name: q for q, name in enumerate(names)}.items()):
            self.text(b"%s%s:" % (b"," if i else b"", _encode(name)))
            self._value(values[:, q])
        self.text(b"}")

    def _value(self, values: FloatArray) -> None:
        if values.ndim == 1:
            self.column(DOUBLE, values)
        else:
            self.array(values)

    def array(self, values: FloatArray) -> None:
        """Continue each line by its row of (n, k)."""
        self.text(b"[")
        for k in range(values.shape[1]):
            if k:
                self.text(b",")
            self.column(DOUBLE, values[:, k])
        self.text(b"]")

    def write(self) -> tuple[memoryview, IntArray]:
        """Write all lines."""
        n, m = self._n, len(self._columns)
        cells = np.empty((n, m), np.int64)
        doubles = cells.view(np.float64)
        for j, (kind, values) in enumerate(zip(self._kinds, self._columns, strict=True)):
            (doubles if kind == DOUBLE else cells)[:, j] = values
        lengths = [len(text) for text in self._texts]
        n_bytes = n * (sum(lengths) + LONGEST * m) + self._level_bytes + SPARE
        out, ends = np.empty(n_bytes, np.uint8), np.empty(n, np.int64)
        written = write_rows(
            cells,
            np.array(self._kinds),
            np.frombuffer(b"".join(self._texts), np.uint8),
            np.cumsum(lengths),
            np.frombuffer(b"".join(self._levels), np.uint8),
            np.cumsum([len(level) for level in self._levels], dtype=np.int64),
            _powers(),
            out,
            ends,
        )
        return out.data[:written], ends
