"""A failed rank's record: whole or not at all, the earliest first."""

import json

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from doubletime import failure
from doubletime.failure import FOLDER_VARIABLE, Failure

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
def folder(tmp_path, monkeypatch):
    monkeypatch.setenv(FOLDER_VARIABLE, str(tmp_path))
    return tmp_path


@given(st.lists(records, max_size=6, unique_by=lambda record: record.rank))
@settings(suppress_health_check=[HealthCheck.function_scoped_fixture])
def test_what_is_written_is_read_earliest_first(folder, found):
    for record in folder.iterdir():
        record.unlink()
    assert all(failure.write(record) for record in found)
    assert failure.read(folder) == sorted(failure.read(folder), key=lambda record: record.time_s)
    assert {record.rank: record for record in failure.read(folder)} == {
        record.rank: record for record in found
    }


def test_a_rank_s_first_record_stands(folder):
    first, second = failure.now(3, 5, "why\n"), failure.now(3, 1, "how\n")
    assert failure.write(first)
    assert failure.write(second)
    assert failure.read(folder) == [first]


def test_nobody_asks_for_records(monkeypatch, tmp_path):
    monkeypatch.delenv(FOLDER_VARIABLE, raising=False)
    assert not failure.write(failure.now(0, 1, "text\n"))
    monkeypatch.setenv(FOLDER_VARIABLE, "")
    assert not failure.write(failure.now(0, 1, "text\n"))


def test_a_folder_that_is_gone_is_told(monkeypatch, tmp_path):
    monkeypatch.setenv(FOLDER_VARIABLE, str(tmp_path / "gone"))
    assert not failure.write(failure.now(0, 1, "text\n"))


def test_a_half_written_record_is_not_read(folder):
    failure.write(failure.now(3, 1, "text\n"))
    (folder / "rank-4.partial").write_text('{"rank": 4, "ho')
    assert [record.rank for record in failure.read(folder)] == [3]
    assert [path.name for path in folder.glob("rank-3*")] == ["rank-3.json"]


def test_the_lines_a_person_reads():
    record = Failure(2, "node7", 3, "Traceback …\nValueError: no\n", 0.0)
    assert record.show() == (
        "doubletime: rank 2 on host node7 failed:\nTraceback …\nValueError: no\n"
    )


def test_the_record_is_plain_json(folder):
    failure.write(failure.now(1, 134, "ended by signal\n"))
    stored = json.loads((folder / "rank-1.json").read_text())
    assert stored.keys() == {"rank", "host", "exit_code", "text", "time_s"}
