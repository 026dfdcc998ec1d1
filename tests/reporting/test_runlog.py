"""A run's record: whole lines as they happen, its configuration, its result read back."""

import json

import pytest

from doubletime.errors import DataError, TrainingError
from doubletime.reporting.runlog import RunLog, new_folder, read_events, read_result
from doubletime.training.loop import EpochDone, RunDone, RunStarted, StepDone

STARTED = RunStarted("toy", "1 process", 1, 1, 10, 0, 5, 1, 2, 3, 7, "samples")
DONE = RunDone("toy", 1, 1, "samples", 1, 0.5, {"accuracy": 0.9}, 100.0, None, 0.1, 0.2)


def test_events_come_back_as_they_were(tmp_path):
    folder = tmp_path / "runs" / "first"
    with RunLog(folder) as log:
        log(STARTED)
        log(StepDone(1, 1, 2.5, 5))
        lines = [line["event"] for line in read_events(folder)]  # readable while it runs
        log(EpochDone(1, 0.5, {"accuracy": 0.9}, 100.0, None, 0.1, 0.0))
        log(DONE)
    assert lines == ["RunStarted", "StepDone"]
    events = read_events(folder)
    assert [event["event"] for event in events] == [*lines, "EpochDone", "RunDone"]
    assert events[1]["loss"] == 2.5
    assert [event["time_s"] for event in events] == sorted(event["time_s"] for event in events)
    assert read_result(folder) == DONE
    config = json.loads((folder / "config.json").read_text())
    assert config["seed"] == 7
    assert set(config["versions"]) == {"python", "doubletime", "torch", "mpi4py", "numpy"}
    assert isinstance(config["command"], list)


def test_a_run_is_never_written_over(tmp_path):
    with RunLog(tmp_path / "a") as log:
        log(STARTED)
    with pytest.raises(TrainingError, match="holds a run already"):
        RunLog(tmp_path / "a")


def test_a_folder_that_cannot_be_made_is_an_error_with_its_reason(tmp_path):
    (tmp_path / "file").write_text("")
    with pytest.raises(TrainingError, match="cannot be written: Not a directory"):
        RunLog(tmp_path / "file" / "run")


def test_a_full_disk_is_an_error_with_its_reason(tmp_path):
    (tmp_path / "config.json").symlink_to("/dev/full")
    with (
        pytest.raises(TrainingError, match="cannot be written: No space left on device"),
        RunLog(tmp_path) as log,
    ):
        log(STARTED)


def test_an_unfinished_or_absent_run_has_no_result(tmp_path):
    with RunLog(tmp_path / "a") as log:
        log(STARTED)
    with pytest.raises(DataError, match="did not come to its end"):
        read_result(tmp_path / "a")
    with pytest.raises(DataError, match="there is no run in"):
        read_result(tmp_path / "b")


def test_new_folders_do_not_collide(tmp_path):
    first = new_folder(tmp_path, "toy")
    first.mkdir()
    second = new_folder(tmp_path, "toy")
    assert first != second
    assert {first.parent, second.parent} == {tmp_path}
