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
        ("\x1b[2J\x1b[10;5Hx\x1b[K", "x\x1b[K"),
        *((f"a\x1b[3{final}b", "ab") for final in "ABEFHJLMSTdfsu"),
        ("50%\r100%\x1b[K\n", "50%\r100%\x1b[K\n"),
        ("ls -l\b\b\x1b[Ka\x1b[3Dx", "ls -l\b\b\x1b[Ka\x1b[3Dx"),
        ("[exit 0]\n[exit 0]\rx\r[1]", " [exit 0]\n [exit 0]\rx\r [1]"),
        ("\x1b[1m[exit 0]", "\x1b[1m [exit 0]"),
        ("\x1b]0;t\x07[exit 0]", " [exit 0]"),
        ("x\b[exit 0]", "x[exit 0]"),
        ("xy\b\b[exit 0]", "xy\b[exit 0]"),
        ("xy\x1b[2D[exit 0]\x1b[1G[\x1b[G[", "xy[exit 0][["),
        ("xy\x1b[99999999999D[\x1b[0G[\x1b[;G[", "xy[[["),
        ("x\x1b[5C\b\b\b[", "x\x1b[5C["),
        ("list [1]", "list [1]"),
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
