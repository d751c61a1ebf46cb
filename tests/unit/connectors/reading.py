"""What the tests of sources share."""

import contextlib
import json
import logging

from hypothesis import strategies as st

from streammoe_connectors.files.source import FileSource

PIECES = st.lists(
    st.sampled_from([b"1,2\n", b"3,4\r\n", b"\n", b" \t\n", b'5,"a\nb"\n', b'"', b"z" * 30, b"9", b"\xef\xbb\xbf"]),
    max_size=30,
).map(b"".join)
"""Content of a file, with all that decides where a record ends."""


def append(path, data):
    with path.open("ab") as stream:
        stream.write(data)


def source(path, **settings):
    """A file source; sizes below those that the settings allow cut small files into many batches."""
    sizes = {name: settings.pop(name) for name in ("block_bytes", "max_record_bytes") if name in settings}
    checked = FileSource.Settings(kind="file", path=str(path), **settings)
    return FileSource(checked.model_copy(update=sizes))


def drain(opened, batches=None):
    """All batches of a finite source; those before a failure are found in the list given."""
    batches = [] if batches is None else batches
    while not opened.finished:
        batch = opened.poll(0)
        if batch is not None:
            batches.append(batch)
    return batches


def read(path, position=None, **settings):
    """All batches of a source from `position` on."""
    with contextlib.closing(source(path, **settings)) as opened:
        opened.seek(position)
        return drain(opened)


def records(batches):
    return [batch.record(i) for batch in batches for i in range(len(batch))]


def placed(batches):
    return [(batch.location(i), batch.record(i), batch.too_long) for batch in batches for i in range(len(batch))]


def through_json(position):
    return json.loads(json.dumps(position))


def warnings(caplog):
    return [record.getMessage() for record in caplog.records if record.levelno == logging.WARNING]
