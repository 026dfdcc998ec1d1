"""Frames come out of a stream as they went in, however it is cut."""

import itertools

from hypothesis import given
from hypothesis import strategies as st

from doubletime.cluster import frames
from doubletime.cluster.frames import Decoder, Frame

_FRAMES = st.builds(
    Frame,
    st.sampled_from([frames.STDOUT, frames.STDERR, frames.EXIT, frames.BEAT]),
    st.integers(0, 2**32 - 1),
    st.binary(max_size=40),
)


@given(
    st.binary(max_size=30).filter(lambda noise: b"\0" not in noise),
    st.lists(_FRAMES, max_size=6),
    st.lists(st.integers(0, 300), max_size=5),
)
def test_frames_are_whole_whatever_comes_before_and_wherever_the_stream_is_cut(noise, sent, cuts):
    stream = noise + frames.MAGIC + b"".join(frame.encode() for frame in sent)
    decoder = Decoder()
    found = []
    bounds = [0, *sorted(cut for cut in cuts if cut < len(stream)), len(stream)]
    for start, end in itertools.pairwise(bounds):
        found += decoder.feed(stream[start:end])
    assert found == sent
    assert decoder.has_begun
    assert decoder.noise == noise


def test_endless_noise_is_not_kept():
    decoder = Decoder()
    for _ in range(50):
        assert decoder.feed(b"x" * 10_000) == []
    assert len(decoder.noise) <= 1 << 16
    assert decoder.feed(frames.MAGIC + Frame(frames.BEAT).encode()) == [Frame(frames.BEAT)]
