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

    def _next(self, char: str) -> str:
        if self._state == "text":
            return self._text(char)
        if self._state == "escape":
            # Anything else is dropped with its escape.
            self._state = "sequence" if char == "[" else "string" if char in _STRINGS else "text"
            self._sequence = ""
            if char == "\x1b":
                self._state = "escape"
            return ""
        if self._state == "sequence":
            return self._in_sequence(char)
        if self._state == "string_escape" or char in "\x07\x9c":
            # What follows an escape ends the string, whatever it is.
            self._state = "text"
        elif char == "\x1b":
            self._state = "string_escape"
        return ""

    def _text(self, char: str) -> str:
        if char == "\x1b":
            self._state = "escape"
        elif char == "\x9b":
            self._state, self._sequence = "sequence", ""
        elif char in _C1_STRINGS:
            self._state = "string"
        elif char in _KEPT_CONTROLS:
            return self._control(char)
        elif char >= " " and not "\x7f" <= char <= "\x9f":
            self._column += 1
            if char == "[" and self._column == 1:
                self._column = 2
                return " ["
            return char
        return ""

    def _control(self, char: str) -> str:
        if char in "\n\r":
            self._column = 0
        elif char == "\t":
            self._column += 1
        elif not self._back(1):
            return ""
        return char

    def _back(self, count: int) -> bool:
        """Move to the left, but never to the beginning of the line."""
        if count >= self._column:
            return False
        self._column -= count
        return True

    def _in_sequence(self, char: str) -> str:
        if "\x40" <= char <= "\x7e":
            self._state = "text"
            plain = all(part in "0123456789;:" for part in self._sequence)
            allowed = plain and char in _KEPT_FINALS and self._may_move(char)
            return f"\x1b[{self._sequence}{char}" if allowed else ""
        if not " " <= char <= "?" or len(self._sequence) >= _MAX_SEQUENCE:
            self._state = "escape" if char == "\x1b" else "text"
            return ""
        self._sequence += char
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
