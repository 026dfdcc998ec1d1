"""A benchmark's table and verdicts, without its job."""

import importlib
import json
from pathlib import Path

import pytest

BENCHMARKS = Path(__file__).resolve().parents[2] / "benchmarks"


@pytest.fixture
def record(monkeypatch):
    monkeypatch.syspath_prepend(str(BENCHMARKS))
    return importlib.import_module("record")


@pytest.fixture
def all_reduce(record):
    return importlib.import_module("all_reduce")


def report(record):
    rows = [
        record.Row("mpi", ["1 ms"], target="at most 2 ms", is_met=True),
        record.Row("gloo", ["3 ms"], target="at most 2 ms", is_met=False),
        record.Row("nobody", ["0 s"]),
    ]
    return record.Report("Title", ["by", "time"], rows, {"cpu": "C"}, "C, 2 cores", {"mpi": 1e-3})


def test_target_and_verdict_stand_beside_each_figure(record):
    lines = report(record).markdown(0.25).splitlines()
    assert lines[0] == "**Title**"
    assert "| by | time | target | met |" in lines
    assert "| mpi | 1 ms | at most 2 ms | yes |" in lines
    assert "| gloo | 3 ms | at most 2 ms | no |" in lines
    assert "| nobody | 0 s |  |  |" in lines
    assert "C, 2 cores; other programs held 25% of the cores at its start." in lines


def test_result_is_published_as_markdown_and_json(record, tmp_path, monkeypatch, capsys):
    monkeypatch.setattr(record, "RESULTS", tmp_path / "results")
    monkeypatch.setattr("sys.argv", ["benchmarks/speed.py"])
    record.publish(report(record), 0.0)
    text = (tmp_path / "results/speed.md").read_text()
    assert capsys.readouterr().out == text + "\n"
    assert "Measured by `python benchmarks/speed.py`." in text
    figures = json.loads((tmp_path / "results/speed.json").read_text())
    assert figures["figures"] == {"mpi": 1e-3}
    assert [row["is_met"] for row in figures["rows"]] == [True, False, None]


@pytest.mark.parametrize(("gloo", "holds"), [(6.1, True), (6.0, True), (5.9, False)])
def test_claim_of_a_factor_is_that_the_rival_takes_so_many_times_as_long(all_reduce, gloo, holds):
    assert all_reduce.Claim("gloo", 6).holds({"mpi": 1.0, "gloo": gloo}) is holds


def test_claims_read_as_they_hold(all_reduce):
    slack = all_reduce.Claim("raw", slack_s=20e-6)
    assert slack.show() == "at most raw + 20 µs"
    assert slack.holds({"mpi": 22.9e-6, "raw": 3e-6})
    assert not slack.holds({"mpi": 23.1e-6, "raw": 3e-6})
    assert all_reduce.Claim("gloo", 2.7).show() == "at most gloo / 2.7"
