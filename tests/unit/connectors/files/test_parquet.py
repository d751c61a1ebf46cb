import json

import numpy as np
import pyarrow as pa
import pytest
from pyarrow import parquet

from streammoe.errors import SourceError
from tests.unit.connectors.reading import drain, read, source, through_json

ROWS = 12_000
TABLE = pa.table({"x": np.random.default_rng(0).normal(size=ROWS), "y": np.arange(ROWS)})
GROUP = 4_000


@pytest.fixture
def path(tmp_path):
    path = tmp_path / "a.parquet"
    parquet.write_table(TABLE, path, row_group_size=GROUP, write_page_checksum=True)
    return path


def tables(batches):
    return pa.Table.from_batches([batch.table for batch in batches])


def scramble(path, start, stop):
    content = bytearray(path.read_bytes())
    content[start:stop] = bytes(255 - octet for octet in content[start:stop])
    path.write_bytes(content)


def group_bytes(path, i):
    """Where a row group begins and ends in its file."""
    columns = [parquet.read_metadata(path).row_group(i).column(j) for j in range(2)]
    starts = [column.dictionary_page_offset or column.data_page_offset for column in columns]
    return min(starts), max(s + column.total_compressed_size for s, column in zip(starts, columns, strict=True))


def test_rows_columns_and_places(path, tmp_path):
    batches = read(path, block_rows=4096)
    assert tables(batches).equals(TABLE)
    assert {(batch.format, batch.columns, batch.block) for batch in batches} == {("arrow", ("x", "y"), b"")}
    assert max(map(len, batches)) == 4096
    assert batches[1].location(3) == {"path": str(path), "row": len(batches[0]) + 3}
    assert batches[0].record(1) == b'{"x": %r, "y": 1}' % float(TABLE["x"][1].as_py())
    path.rename(tmp_path / "data")
    assert tables(read(tmp_path / "data", format="parquet")).equals(TABLE)


def test_times_that_python_does_not_know_are_shown_in_ticks(tmp_path):
    """In a dead letter, say: beyond the year 9999, or before the first."""
    times = pa.array([2**62, -(2**62)], pa.timestamp("us"))
    dates = pa.array([10**8, -(10**8)], pa.date32())
    parquet.write_table(pa.table({"t": times, "d": dates}), tmp_path / "a.parquet")
    (batch,) = read(tmp_path / "a.parquet")
    assert json.loads(batch.record(0)) == {"t": 2**62, "d": 10**8}
    assert json.loads(batch.record(1)) == {"t": -(2**62), "d": -(10**8)}


def test_rows_before_damage_are_read_and_reading_resumes_once_it_is_repaired(path):
    sound = path.read_bytes()
    scramble(path, *group_bytes(path, 1))
    opened = source(path, block_rows=1000)
    opened.seek(None)
    before = []
    with pytest.raises(SourceError):
        drain(opened, before)
    opened.close()
    assert sum(map(len, before)) == GROUP
    path.write_bytes(sound)
    assert tables(before + read(path, through_json(before[-1].end))).equals(TABLE)
