"""Names of parts and sets of ranks."""

import pytest

from doubletime.collectives import labels


@pytest.mark.parametrize(
    ("ranges", "count", "name"),
    [
        (((0, 1),), 4, "A"),
        (((0, 2),), 4, "A,B"),
        (((0, 4),), 4, "A-D"),
        (((0, 1), (2, 5)), 8, "A,C-E"),
        (((25, 26),), 26, "Z"),
        (((3, 8), (9, 10)), 27, "#3-7,9"),
    ],
)
def test_columns(ranges, count, name):
    assert labels.columns(ranges, count) == name
    if len(ranges) == 1 and ranges[0][1] - ranges[0][0] == 1:
        assert labels.column(ranges[0][0], count) == name


@pytest.mark.parametrize(
    ("mask", "count", "name"),
    [
        (0b1011, 4, "01·3"),
        (0, 4, "····"),
        (0, 16, "·"),
        (0xFFFF, 16, "0-15"),
        (0b1000_0000_0001, 16, "0,11"),
        (0x55555555, 64, "16 of 64"),
    ],
)
def test_ranks(mask, count, name):
    assert labels.ranks(mask, count) == name
