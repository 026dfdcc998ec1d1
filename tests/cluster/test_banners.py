"""What a launcher prints is told apart from what the ranks print."""

import itertools
import time

import pytest
from hypothesis import given
from hypothesis import strategies as st

from doubletime.cluster.banners import BannerFilter, signal_in

EQUALS, DASHES = b"=" * 83 + b"\n", b"-" * 74 + b"\n"
BANNERS = {
    "MPICH": EQUALS
    + b"=   BAD TERMINATION OF ONE OF YOUR APPLICATION PROCESSES\n"
    + b"=   PID 5124 RUNNING AT vm\n=   EXIT CODE: 9\n=   CLEANING UP REMAINING PROCESSES\n"
    + b"=   YOU CAN IGNORE THE BELOW CLEANUP MESSAGES\n"
    + EQUALS
    + b"YOUR APPLICATION TERMINATED WITH THE EXIT STRING: Killed (signal 9)\n"
    + b"This typically refers to a problem with your application.\n"
    + b"Please see the FAQ page for debugging suggestions\n",
    "Intel MPI": EQUALS
    + b"=   BAD TERMINATION OF ONE OF YOUR APPLICATION PROCESSES\n"
    + b"=   RANK 0 PID 5500 RUNNING AT vm\n=   KILLED BY SIGNAL: 9 (Killed)\n"
    + EQUALS,
    "Open MPI": DASHES
    + b"prterun noticed that process rank 1 with PID 5327 on node vm exited on\n"
    + b"signal 9 (Killed).\n"
    + DASHES,
}
TOLD_TWICE = b"Abort is in progress...hit ctrl-c again within 5 seconds to forcibly terminate\n\n"
NO_BANNER = b"[mpiexec@vm] Sending Ctrl-C to processes as requested\n"

# Texts that come near to banners: rules, words, unfinished lines, progress bars.
PIECES = st.sampled_from(
    [b"\n", b"\r", b"x", b"=" * 60, EQUALS, b"-" * 74, DASHES, b"= 1", b"[mp",
     b"epoch 1 |###  | 40 %\r", b"Traceback (most recent call last):\n", b"Please\n",
     b"\xff\xfe", b"prtex\n"]
)  # fmt: skip
TEXTS = st.lists(PIECES, max_size=30).map(b"".join)


def filtered(text, cuts=()):
    edges = [0, *sorted(cut for cut in cuts if cut < len(text)), len(text)]
    banner_filter = BannerFilter()
    out = b"".join(banner_filter.feed(text[start:end]) for start, end in itertools.pairwise(edges))
    return out + banner_filter.flush(), banner_filter.said


CUTS = st.lists(st.integers(0, 1500), max_size=40)


@given(text=TEXTS, cuts=CUTS)
def test_nothing_of_the_ranks_is_lost_or_changed(text, cuts):
    assert filtered(text, cuts) == (text, b"")


@given(
    before=TEXTS, after=TEXTS.filter(lambda t: not t.startswith(b"Please")), cuts=CUTS,
    banner=st.sampled_from([*BANNERS.values(), TOLD_TWICE]),
)  # fmt: skip
def test_a_banner_is_taken_out_wherever_the_stream_is_cut(before, after, cuts, banner):
    if before and not before.endswith(b"\n"):
        before += b"\n"
    after = after.replace(b"Please\n", b"")
    out, said = filtered(before + banner + after, cuts)
    assert (out, said) == (before + after, banner)


@pytest.mark.parametrize("text", [b"40 %|####   |", b"prompt> ", b"\r 3/9", b"a=" * 50])
def test_an_unfinished_line_is_not_held_back(text):
    assert BannerFilter().feed(text) == text


def test_a_rule_waits_only_until_it_is_asked_for():
    banner_filter = BannerFilter()
    assert banner_filter.feed(EQUALS) == b""
    assert banner_filter.is_holding
    assert banner_filter.flush() == EQUALS
    assert not banner_filter.is_holding


def test_single_lines_of_a_launcher_are_its_own():
    assert filtered(b"a\n" + NO_BANNER + b"b\n") == (b"a\nb\n", NO_BANNER)


@pytest.mark.parametrize("name", sorted(BANNERS))
def test_reads_the_signal(name):
    assert signal_in(BANNERS[name]) == 9


def test_large_output_passes_quickly():
    text = (b"x" * 79 + b"\n") * 800
    banner_filter = BannerFilter()
    started = time.perf_counter()
    for _ in range(200):
        assert banner_filter.feed(text) is not None
    assert time.perf_counter() - started < 5
