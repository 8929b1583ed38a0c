"""Output of a sandbox for a person's terminal: text, colours and movement in its line only. Pure.

A terminal acts on some sequences: it sets the clipboard (OSC 52), opens links (OSC 8), changes its
title, or answers as if the person had typed (CSI 6n). None of them is let through, also not one
that is split between two pieces.

Output is shown between lines of a transcript that begin with `[`. So it cannot go to another line,
where it could erase or replace those, and a `[` at the beginning of a line gets a space before it.
"""

from __future__ import annotations

from typing import Final, Literal

_KEPT_CONTROLS: Final = frozenset("\n\r\t\b")
# Colours, movement of the cursor in its line, and deletion there. None of them is answered.
_KEPT_FINALS: Final = frozenset("CDGKPXm@")
_MAX_DIGITS: Final = 4
_STRINGS: Final = frozenset("PX^_]")
_C1_STRINGS: Final = frozenset("\x90\x98\x9d\x9e\x9f")
_MAX_SEQUENCE: Final = 64


class HarmlessText:
    """Filter pieces of one stream in order."""

    def __init__(self) -> None:
        self._state: Literal["text", "escape", "sequence", "string", "string_escape"] = "text"
        self._sequence = ""
        self._column = 0
        """The cursor is at least as far to the right."""

    def __call__(self, text: str) -> str:
        return "".join(map(self._next, text))

    def _next(self, one: str) -> str:
        if self._state == "text":
            return self._text(one)
        if self._state == "escape":
            # Anything else is dropped with its escape.
            self._state = "sequence" if one == "[" else "string" if one in _STRINGS else "text"
            self._sequence = ""
            if one == "\x1b":
                self._state = "escape"
            return ""
        if self._state == "sequence":
            return self._in_sequence(one)
        if self._state == "string_escape" or one in "\x07\x9c":
            # What follows an escape ends the string, whatever it is.
            self._state = "text"
        elif one == "\x1b":
            self._state = "string_escape"
        return ""

    def _text(self, one: str) -> str:
        if one == "\x1b":
            self._state = "escape"
        elif one == "\x9b":
            self._state, self._sequence = "sequence", ""
        elif one in _C1_STRINGS:
            self._state = "string"
        elif one in _KEPT_CONTROLS:
            return self._control(one)
        elif one >= " " and not "\x7f" <= one <= "\x9f":
            self._column += 1
            if one == "[" and self._column == 1:
                self._column = 2
                return " ["
            return one
        return ""

    def _control(self, one: str) -> str:
        if one in "\n\r":
            self._column = 0
        elif one == "\t":
            self._column += 1
        elif not self._back(1):
            return ""
        return one

    def _back(self, count: int) -> bool:
        """Move to the left, but never to the beginning of the line."""
        if count >= self._column:
            return False
        self._column -= count
        return True

    def _in_sequence(self, one: str) -> str:
        if "\x40" <= one <= "\x7e":
            self._state = "text"
            plain = all(part in "0123456789;:" for part in self._sequence)
            kept = plain and one in _KEPT_FINALS and self._may_move(one)
            return f"\x1b[{self._sequence}{one}" if kept else ""
        if not " " <= one <= "?" or len(self._sequence) >= _MAX_SEQUENCE:
            self._state = "escape" if one == "\x1b" else "text"
            return ""
        self._sequence += one
        return ""

    def _may_move(self, final: str) -> bool:
        if final not in "DG":
            return True
        text = self._sequence or "1"
        if not text.isdecimal() or len(text) > _MAX_DIGITS:
            return False
        count = int(text)
        if final == "D":
            return self._back(max(1, count))
        # To a column, which is counted from 1.
        if count < 2:
            return False
        self._column = min(self._column, count - 1)
        return True
