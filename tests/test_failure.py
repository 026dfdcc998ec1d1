"""What a rank tells its watch: its record, and whether it is in the midst of its MPI job."""

import os
import socket
import threading

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from doubletime import failure
from doubletime.cluster.reports import Reports
from doubletime.failure import VARIABLE, Failure

text = st.text(st.characters(exclude_categories=["Cs"]), max_size=200)
records = st.builds(
    Failure,
    rank=st.integers(0, 10_000),
    host=text,
    exit_code=st.integers(1, 255),
    text=text,
    time_s=st.floats(0, 4e9),
)


@pytest.fixture
def reports(monkeypatch):
    reports = Reports(rank=3)
    monkeypatch.setenv(VARIABLE, reports.name)
    yield reports
    reports.close()


def while_listening(reports, tell):
    """What is told is answered by the watch, here by another thread."""
    result = []
    telling = threading.Thread(target=lambda: result.append(tell()))
    telling.start()
    while telling.is_alive():
        reports.listen()
        telling.join(0.001)
    return result[0]


@given(records)
@settings(suppress_health_check=[HealthCheck.function_scoped_fixture], max_examples=30)
def test_a_record_arrives_whole_as_its_own_rank_s(reports, record):
    reports.record = None
    assert while_listening(reports, lambda: failure.write(record))
    assert reports.record is not None
    assert reports.record.rank == 3
    assert (reports.record.text, reports.record.host) == (record.text, record.host)


def test_a_long_record_arrives_too(reports):
    record = failure.now(3, 1, "x" * 1_000_000 + "\n")
    assert while_listening(reports, lambda: failure.write(record))
    assert reports.record == record


def test_a_rank_s_first_record_stands(reports):
    first, second = failure.now(3, 5, "why\n"), failure.now(3, 1, "how\n")
    assert while_listening(reports, lambda: failure.write(first))
    assert while_listening(reports, lambda: failure.write(second))
    assert reports.record == first


def test_nobody_takes_records(monkeypatch):
    for name in (None, "", "doubletime-nobody"):
        monkeypatch.delenv(VARIABLE, raising=False)
        if name is not None:
            monkeypatch.setenv(VARIABLE, name)
        assert not failure.write(failure.now(0, 1, "text\n"))


def test_entering_and_leaving(reports):
    while_listening(reports, failure.enter)
    assert reports.is_inside
    while_listening(reports, failure.leave)
    assert not reports.is_inside


def test_noise_does_no_harm(reports):
    with socket.socket(socket.AF_UNIX) as caller:
        caller.connect(failure.address(reports.name))
        caller.sendall(b"no json\n")
        reports.listen()
    assert reports.record is None


def test_the_lines_a_person_reads():
    record = Failure(2, "node7", 3, "Traceback …\nValueError: no\n", 0.0)
    assert record.show() == (
        "doubletime: rank 2 on host node7 failed:\nTraceback …\nValueError: no\n"
    )
    assert failure.now(1, 2, "").host == os.uname().nodename
