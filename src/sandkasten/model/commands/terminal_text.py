"""Output of a sandbox for a person's terminal: text, colours and cursor movement only. Pure.

A terminal acts on some sequences: it sets the clipboard (OSC 52), opens links (OSC 8), changes its
title, or answers as if the person had typed (CSI 6n). None of them is let through, also not one
that is split between two pieces.
"""

from __future__ import annotations

from typing import Final, Literal

_KEPT_CONTROLS: Final = frozenset("\n\r\t\b")
# Colours, movement of the cursor, and deletion of what is on the screen. None of them is answered.
_KEPT_FINALS: Final = frozenset("ABCDEFGHJKLMPSTXdfm@")
_STRINGS: Final = frozenset("PX^_]")
_C1_STRINGS: Final = frozenset("\x90\x98\x9d\x9e\x9f")
_MAX_SEQUENCE: Final = 64


class HarmlessText:
    """Filter pieces of one stream in order."""

    def __init__(self) -> None:
        self._state: Literal["text", "escape", "sequence", "string", "string_escape"] = "text"
        self._sequence = ""

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
        elif one >= " " and not "\x7f" <= one <= "\x9f" or one in _KEPT_CONTROLS:
            return one
        return ""

    def _in_sequence(self, one: str) -> str:
        if "\x40" <= one <= "\x7e":
            self._state = "text"
            plain = all(part in "0123456789;:" for part in self._sequence)
            return f"\x1b[{self._sequence}{one}" if plain and one in _KEPT_FINALS else ""
        if not " " <= one <= "?" or len(self._sequence) >= _MAX_SEQUENCE:
            self._state = "escape" if one == "\x1b" else "text"
            return ""
        self._sequence += one
        return ""
