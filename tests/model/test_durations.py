"""Durations as people write them."""

from __future__ import annotations

import math
import re

import pytest

from sandkasten.errors import SandkastenError
from sandkasten.model.durations import DURATION, MAX_NUMBER, seconds
from sandkasten.settings import setting_parsers
from sandkasten_server.cli import quantities


@pytest.mark.parametrize(
    ("value", "found"),
    [
        (0, 0.0), (5, 5.0), (0.5, 0.5), (1e-7, 1e-7), (MAX_NUMBER, float(MAX_NUMBER)),
        ("5", 5.0), ("500ms", 0.5), ("2 m", 120.0), ("1h", 3600.0), ("1.5min", 90.0),
        (".5", 0.5), ("30 sec", 30.0), ("1d", 86_400.0), ("1h30m", 5400.0), ("1h 30 min", 5400.0),
        ("1d2h3m4s5ms", 93_784.005), ("1m.5s", 60.5), ("999999999d", 999_999_999 * 86_400.0),
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
        "1w",
        "1H",
        "-1s",
        "1h30",
        "1 2",
        "1hh",
        "1h,30m",
        " 1h",
        "1h ",
        ".",
        "1.",
        "1234567890",
        "1h" * 9,
        "1e3",
        "٣",
        "5\n",
    ],
)
def test_anything_else_is_not_a_duration(value):
    assert seconds(value) is None
    assert not isinstance(value, str) or not re.fullmatch(DURATION, value)


@pytest.mark.parametrize("text", ["90", "500ms", "5s", "5sec", "2m", "2min", "1h", "7d", "1h30m"])
def test_requests_settings_and_the_command_line_take_the_same_units(text):
    assert re.fullmatch(DURATION, text)
    assert seconds(text) == quantities.seconds(text) == setting_parsers.seconds("x", text)


@pytest.mark.parametrize("text", ["1w", "1h30", "1 2", "1234567890s", "1h" * 9])
def test_requests_settings_and_the_command_line_refuse_the_same(text):
    assert seconds(text) is None
    with pytest.raises(SandkastenError, match="duration"):
        quantities.seconds(text)
    with pytest.raises(SandkastenError, match="duration"):
        setting_parsers.seconds("x", text)
