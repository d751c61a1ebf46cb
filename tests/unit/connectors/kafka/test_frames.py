"""Frames survive whatever a pipe does to them."""

import os

import pytest
from hypothesis import given
from hypothesis import strategies as st

from streammoe_connectors.kafka.frames import Inlet, Outlet, pack


@pytest.fixture
def pipe():
    read, write = os.pipe()
    os.set_blocking(read, False)
    yield read, write
    for descriptor in (read, write):
        try:
            os.close(descriptor)
        except OSError:  # the test has closed it
            continue


FRAMES = st.lists(
    st.tuples(st.dictionaries(st.text(max_size=5), st.integers(-(2**53), 2**53), max_size=3), st.lists(st.binary())),
    max_size=5,
)


@given(FRAMES, st.data())
def test_frames_come_whole_and_in_order_however_their_bytes_arrive(frames, data):
    read, write = os.pipe()
    try:
        os.set_blocking(read, False)
        inlet, found = Inlet(read), []
        rest = b"".join(piece for header, body in frames for piece in pack(header, body))
        while rest:
            count = data.draw(st.integers(1, max(1, min(len(rest), 4000))))
            os.write(write, rest[:count])
            rest = rest[count:]
            while (frame := inlet.next()) is not None:
                found.append((frame.header, bytes(frame.body)))
        assert found == [(header, b"".join(body)) for header, body in frames]
    finally:
        os.close(read)
        os.close(write)


def test_what_does_not_fit_waits_and_comes_later(pipe):
    read, write = pipe
    inlet, outlet = Inlet(read), Outlet(write)
    big = os.urandom(1 << 20)
    outlet.send({"n": 1}, [big])
    outlet.send({"n": 2})
    assert outlet.pending
    found = []
    while len(found) < 2:
        outlet.flush()
        frame = inlet.next()
        if frame is not None:
            found.append(frame)
    assert not outlet.pending
    assert [frame.header for frame in found] == [{"n": 1}, {"n": 2}]
    assert bytes(found[0].body) == big


def test_an_earlier_frame_stays_what_it_was(pipe):
    read, write = pipe
    inlet, outlet = Inlet(read), Outlet(write)
    outlet.send({}, [b"first"])
    first = inlet.next()
    outlet.send({}, [b"other"])
    inlet.next()
    assert bytes(first.body) == b"first"


def test_the_end_of_the_writing_side_is_told(pipe):
    read, write = pipe
    os.close(write)
    with pytest.raises(EOFError):
        Inlet(read).next()


def test_the_end_of_the_reading_side_is_told(pipe):
    read, write = pipe
    outlet = Outlet(write)
    os.close(read)
    with pytest.raises(BrokenPipeError):
        outlet.send({"n": 1})


def test_what_is_no_frame_is_refused(pipe):
    read, write = pipe
    os.write(write, b"Traceback (most recent call last)")
    with pytest.raises(EOFError):
        Inlet(read).next()
