"""Drawings as files."""

import xml.etree.ElementTree as ET

import pytest
from PIL import Image

from doubletime.collectives.catalogue import ALGORITHMS
from doubletime.collectives.topology import Topology
from doubletime.errors import ScheduleError
from doubletime.reporting.schedule_plot import draw_schedule, title


def schedule(name, topology):
    algorithm = ALGORITHMS[name]
    return algorithm.schedule(algorithm.problem("all_reduce", topology))


def test_the_same_schedule_gives_the_same_svg(tmp_path):
    asked = schedule("two_level", Topology.even(2, 2))
    for name in ("one.svg", "other.svg"):
        draw_schedule(asked, tmp_path / name)
    assert (tmp_path / "one.svg").read_bytes() == (tmp_path / "other.svg").read_bytes()
    assert ET.parse(tmp_path / "one.svg").getroot().tag.endswith("svg")


def test_a_png_shows_all_its_colours(tmp_path):
    draw_schedule(schedule("ring", Topology.flat(3)), tmp_path / "ring.png")
    with Image.open(tmp_path / "ring.png") as image:
        colours = {colour for _, colour in image.convert("RGB").getcolors(1 << 20)}
    green, added, copied = (46, 158, 91), (213, 94, 0), (0, 114, 178)
    assert {green, added, copied, (68, 119, 170), (238, 102, 119), (204, 187, 68)} <= colours


def test_more_than_eight_ranks_are_drawn_as_levels(tmp_path):
    draw_schedule(schedule("recursive_doubling", Topology.flat(9)), tmp_path / "drawn.pdf")
    assert (tmp_path / "drawn.pdf").read_bytes().startswith(b"%PDF")


def test_a_file_that_cannot_be_written_is_an_error(tmp_path):
    (tmp_path / "taken.svg").mkdir()
    with pytest.raises(ScheduleError, match=r"taken\.svg cannot be written"):
        draw_schedule(schedule("ring", Topology.flat(2)), tmp_path / "taken.svg")


def test_the_title_says_what_it_is():
    assert title(schedule("ring", Topology.flat(4))) == (
        "ring: all_reduce over 4 ranks, each on a host of its own, 6 rounds"
    )
