"""Durations as people write them."""

from __future__ import annotations

import math

import pytest

from sandkasten.model.durations import MAX_NUMBER, seconds


@pytest.mark.parametrize(
    ("value", "found"),
    [
        (0, 0.0), (5, 5.0), (0.5, 0.5), (1e-7, 1e-7), (MAX_NUMBER, float(MAX_NUMBER)),
        ("5", 5.0), ("500ms", 0.5), ("2 m", 120.0), ("1h", 3600.0), ("1.5min", 90.0),
    ],
)  # fmt: skip
def test_numbers_and_units_are_seconds(value, found):
    assert seconds(value) == found


@pytest.mark.parametrize(
    "value",
    [
        -1,
        MAX_NUMBER + 1,
        math.inf,
        math.nan,
        True,
        None,
        [],
        "",
        "h",
        "1d",
        "-1s",
        "1e3",
        "٣",
        "5\n",
    ],
)
def test_anything_else_is_not_a_duration(value):
    assert seconds(value) is None
