"""Frames survive whatever a pipe does to them."""

import contextlib
import os

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from streammoe_connectors.kafka.frames import Inlet, Outlet, pack


@contextlib.contextmanager
def piped():
    """Both ends of a pipe whose reader does not wait, and which the block may close."""
    read, write = os.pipe()
    os.set_blocking(read, False)
    try:
        yield read, write
    finally:
        for descriptor in (read, write):
            with contextlib.suppress(OSError):
                os.close(descriptor)


FRAMES = st.lists(
    st.tuples(st.dictionaries(st.text(max_size=5), st.integers(-(2**53), 2**53), max_size=3), st.lists(st.binary())),
    max_size=5,
)


@settings(max_examples=40)
@given(FRAMES, st.data())
def test_frames_come_whole_and_in_order_however_their_bytes_arrive(frames, data):
    with piped() as (read, write):
        inlet, found = Inlet(read), []
        rest = b"".join(piece for header, body in frames for piece in pack(header, body))
        while rest:
            count = data.draw(st.integers(1, max(1, min(len(rest), 4000))))
            os.write(write, rest[:count])
            rest = rest[count:]
            while (frame := inlet.next()) is not None:
                found.append(frame)  # earlier ones stay what they were
        assert [(frame.header, bytes(frame.body)) for frame in found] == [(h, b"".join(body)) for h, body in frames]


def test_the_end_of_either_side_and_what_is_no_frame_are_errors():
    with piped() as (read, write):
        os.write(write, b"Traceback (most recent call last)")
        with pytest.raises(EOFError):
            Inlet(read).next()
    with piped() as (read, write):
        os.close(write)
        with pytest.raises(EOFError):
            Inlet(read).next()
    with piped() as (read, write):
        os.close(read)
        with pytest.raises(BrokenPipeError):
            Outlet(write).send({"n": 1})
