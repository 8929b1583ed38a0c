"""Strings of other programs, as messages repeat them."""

from __future__ import annotations

import pytest

from sandkasten.model.spelling import one_line


@pytest.mark.parametrize(
    ("said", "shown"),
    [
        ("", ""),
        ("no space left", "no space left"),
        (" two\r\nlines\tand\x00more \n", "two lines and more"),
        ("\x1b[31mred\u202e", "[31mred"),
        ("a\ud800b", "a b"),
    ],
)
def test_control_characters_and_line_ends_become_one_space(said, shown):
    assert one_line(said) == shown


def test_long_string_is_cut_and_only_its_beginning_is_looked_at():
    assert one_line("x" * 10_000_000, 64) == "x" * 64
    assert one_line("x \n " * 100, 10) == "x x x x x"
    assert one_line("\n" * 200 + "late", 100) == ""
