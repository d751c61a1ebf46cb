"""A value goes through its pipe whatever else waits, and is false once the other side is gone."""

import os

import pytest

from streammoe_connectors.kafka.flag import FlagReader, FlagWriter


@pytest.fixture
def pipe():
    read, write = os.pipe()
    reader = FlagReader(read)
    yield reader, FlagWriter(write), write
    reader.close()


def test_the_latest_value_is_read_again_and_again_and_none_is_false(pipe):
    reader, writer, write = pipe
    assert not reader.value
    for values in ([True], [False], [True, False], [False, True], [True]):
        for value in values:
            writer.show(value)
        assert [reader.value, reader.value] == [values[-1]] * 2
    os.close(write)
    assert not reader.value
    assert not reader.value
    reader.close()
    assert not reader.value


def test_a_full_pipe_is_not_waited_for_and_the_value_follows(pipe):
    reader, writer, write = pipe
    value = True
    for _ in range((1 << 16) + 2):
        writer.show(value)
        value = not value
    assert reader.value in {True, False}  # and there is room again
    writer.show(True)
    assert reader.value
    os.close(write)


def test_a_writer_learns_that_nobody_reads(pipe):
    reader, writer, write = pipe
    reader.close()
    with pytest.raises(BrokenPipeError):
        writer.show(True)
    os.close(write)
