"""Output of a sandbox for a terminal: what it may do there, whole and in pieces."""

from __future__ import annotations

import pytest

from sandkasten.model.commands.terminal_text import HarmlessText

pytestmark = pytest.mark.promise("P87")


@pytest.mark.parametrize(
    ("given", "shown"),
    [
        ("plain ü\r\n\tx", "plain ü\r\n\tx"),
        ("\x1b[1;31mred\x1b[0m", "\x1b[1;31mred\x1b[0m"),
        ("\x1b[2J\x1b[10;5Hx\x1b[K", "\x1b[2J\x1b[10;5Hx\x1b[K"),
        ("a\x1b]52;c;ZXZpbA==\x07b", "ab"),
        ("a\x1b]52;c;ZXZpbA==\x1b\\b", "ab"),
        ("a\x9d52;c;ZXZpbA==\x9cb", "ab"),
        ("a\x1b]8;;http://evil\x07link\x1b]8;;\x07b", "alinkb"),
        ("a\x1b]0;title\x07b", "ab"),
        ("a\x1bP+q544e\x1b\\b", "ab"),
        ("a\x1b_apc\x1b\\b", "ab"),
        ("a\x1b[6nb\x1b[cb\x1b[21tb", "abbb"),
        ("a\x9b6nb\x9b31mb", "ab\x1b[31mb"),
        ("a\x1b[?1049hb\x1b[>0qb\x1b[!pb", "abbb"),
        ("a\x1bcb\x1b#8", "ab8"),
        ("a\x07\x0e\x00\x7f\x85b", "ab"),
        ("a\x1b[" + "1" * 500 + "mb", "a" + "1" * 435 + "mb"),
        ("a\x1b]52;never ended", "a"),
        ("a\x1b\x1b]52;c;x\x07b", "ab"),
    ],
)
def test_only_text_colours_and_movement_reach_the_terminal(given, shown):
    assert HarmlessText()(given) == shown
    harmless = HarmlessText()
    assert "".join(harmless(one) for one in given) == shown
