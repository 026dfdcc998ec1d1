"""docs/reduction.md shows every algorithm, as it is: its commands run, its quotations are current."""

import re
import shlex
import subprocess
import sys

import pytest
from typer.testing import CliRunner

from doubletime.cli.verbs import app
from doubletime.collectives.catalogue import ALGORITHMS
from ranks import ROOT

PAGE = ROOT / "docs" / "reduction.md"
COMMANDS = re.findall(r"^    doubletime (explain .*)$", PAGE.read_text(), re.M)


@pytest.mark.parametrize("command", COMMANDS)
def test_commands_run(command, tmp_path, monkeypatch):
    (tmp_path / "docs" / "figures").mkdir(parents=True)
    monkeypatch.chdir(tmp_path)
    result = CliRunner().invoke(app, shlex.split(command), catch_exceptions=False)
    assert result.exit_code == 0, result.output
    drawn = re.search(r"--draw (\S+)", command)
    if drawn:
        assert (tmp_path / drawn[1]).exists()
        assert (ROOT / drawn[1]).exists(), "run `python scripts/draw_figures.py`"
        assert f"]({drawn[1].removeprefix('docs/')})" in PAGE.read_text()


@pytest.mark.parametrize("name", ALGORITHMS)
def test_every_algorithm_has_a_section_with_its_drawing(name):
    sections = re.split(r"^### ", PAGE.read_text(), flags=re.M)
    (section,) = (part for part in sections if part.startswith(f"`{name}`"))
    assert f"](figures/{name}.svg)" in section
    assert "**When it wins**" in section
    assert re.search(r"^Sources?: ", section, re.M)


def test_what_it_quotes_is_what_the_commands_print():
    command = [sys.executable, ROOT / "scripts" / "draw_figures.py", "--show"]
    expected = subprocess.run(
        command, check=True, capture_output=True, text=True, timeout=110
    ).stdout
    assert PAGE.read_text() == expected, "run `python scripts/draw_figures.py`"


def test_the_predicted_times_of_every_algorithm_stand_there():
    quoted = PAGE.read_text().split("<!-- predicted -->")[1].split("<!-- end -->")[0]
    for name in ALGORITHMS:
        assert len(re.findall(rf"^\| `{name}` \|.*\d", quoted, re.M)) == 3, name


def test_every_drawing_is_there():
    for drawing in re.findall(r"\]\((figures/\S+)\)", PAGE.read_text()):
        assert (PAGE.parent / drawing).stat().st_size > 1000, drawing
