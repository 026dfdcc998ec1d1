"""Rank and host before each line, whatever pieces the lines come in."""

import itertools
import os
import subprocess
import sys

from hypothesis import given
from hypothesis import strategies as st

from doubletime.cluster.output import Tagger

lines = st.lists(st.text("ab\t", max_size=5).map(str.encode), max_size=8)


def tagged(*chunks):
    tagger = Tagger(b"[1 n] ")
    return b"".join([*(tagger.feed(each) for each in chunks), tagger.flush()])


@given(lines, st.lists(st.integers(0, 60)), st.sampled_from([b"\n", b"\r\n", b"\r"]))
def test_pieces_do_not_matter(found, cuts, end):
    data = b"".join(line + end for line in found)
    bounds = sorted({0, len(data), *(cut for cut in cuts if cut < len(data))})
    chunks = [data[a:b] for a, b in itertools.pairwise(bounds)]
    expected = b"".join((b"[1 n] " + line if line else b"") + end for line in found)
    if end == b"\r":  # the last may wait for its newline, and then gets one
        assert tagged(*chunks).rstrip(b"\r\n") == expected.rstrip(b"\r\n")
    else:
        assert tagged(*chunks) == expected


def test_a_line_that_nothing_ends_gets_an_end():
    assert tagged(b"one\ntwo") == b"[1 n] one\n[1 n] two\n"


def test_a_progress_bar_is_tagged_at_each_return():
    assert tagged(b"\r 10%\r 20%\r 30%", b"\r100%\n") == (
        b"\r[1 n]  10%\r[1 n]  20%\r[1 n]  30%\r[1 n] 100%\n"
    )


def test_a_line_without_end_is_cut():
    out = tagged(b"x" * 200_000)
    assert out.count(b"x") == 200_000
    assert out.startswith(b"[1 n] x")


_JOB = """
import os, sys
from doubletime.cluster import implementations, launch, supervise
plan = supervise.plan_local([sys.executable, sys.argv[1]], 2, implementations.find())
from pathlib import Path
ended = supervise.supervise(plan, implementations.find(), tag_output=True, log_folder=Path(sys.argv[2]))
sys.exit(ended.exit_code)
"""
_RANK = """
import os, sys
rank = os.environ["PMI_RANK"]
for index in range(2000):
    print("line", index, "of", rank)
print("said", rank, file=sys.stderr)
print("no end", end="")
"""


def test_a_job_s_lines_are_whole_and_complete(tmp_path):
    (tmp_path / "job.py").write_text(_JOB)
    (tmp_path / "rank.py").write_text(_RANK)
    logs = tmp_path / "logs"
    done = subprocess.run(
        [sys.executable, tmp_path / "job.py", tmp_path / "rank.py", logs],
        capture_output=True, timeout=60, stdin=subprocess.DEVNULL,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    host = os.uname().nodename.partition(".")[0]
    out = done.stdout.decode().splitlines()
    for rank in "01":
        mine = [line for line in out if line.startswith(f"[{rank} {host}] ")]
        assert mine == [
            *(f"[{rank} {host}] line {index} of {rank}" for index in range(2000)),
            f"[{rank} {host}] no end",
        ]
        log = (logs / f"rank-{rank}.log").read_text()
        assert log.count("\n") == 2001
        assert f"said {rank}\n" in log
    assert sorted(done.stderr.decode().splitlines()) == [f"[{r} {host}] said {r}" for r in "01"]
