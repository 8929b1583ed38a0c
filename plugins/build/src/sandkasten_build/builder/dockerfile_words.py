"""Words of a Dockerfile: quotes, escapes and variables, as Docker defines them. Pure.

Not a shell: `$VAR`, `${VAR}` and `${VAR:-word}` with its relatives, and nothing else.
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from collections.abc import Mapping

_NAME: Final = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")
_MAX_DEPTH: Final = 20
# A value may contain others, and so double with each of them.
_MAX_VALUE: Final = 1 << 17


class WordError(ValueError):
    """What is wrong with a word."""


def split_words(text: str, escape: str) -> list[str]:
    """Split at spaces; quotes and escapes stay as they are."""
    words: list[str] = []
    word, quote, at = "", "", 0
    while at < len(text):
        character = text[at]
        if character == escape and quote != "'" and at + 1 < len(text):
            word += text[at : at + 2]
            at += 2
            continue
        if quote:
            quote = "" if character == quote else quote
        elif character in "'\"":
            quote = character
        elif character in " \t":
            if word:
                words.append(word)
            word, at = "", at + 1
            continue
        word += character
        at += 1
    return [*words, word] if word else words


def expand(text: str, values: Mapping[str, str], escape: str) -> str:
    """Remove quotes and escapes, and put in the values of variables. Raise WordError."""
    return _Reader(text, values, escape).read("")


class _Reader:
    def __init__(self, text: str, values: Mapping[str, str], escape: str, depth: int = 0) -> None:
        self._text = text
        self._values = values
        self._escape = escape
        self._depth = depth
        self._at = 0

    def read(self, end: str) -> str:
        """Read up to an unquoted `end`, or all."""
        out, double = "", False
        while self._at < len(self._text):
            character = self._text[self._at]
            if end and character == end and not double:
                return out
            self._at += 1
            if character == "'" and not double:
                out += self._single()
            elif character == '"':
                double = not double
            elif character == self._escape and self._at < len(self._text):
                after = self._text[self._at]
                self._at += 1
                # In double quotes, other escapes stand for themselves.
                out += after if not double or after in f'"${self._escape}' else character + after
            elif character == "$":
                out += self._variable()
                if len(out) > _MAX_VALUE:
                    raise WordError(f"its value is longer than {_MAX_VALUE} characters")
            else:
                out += character
        if double:
            raise WordError("a double quote has no end")
        if end:
            raise WordError(f"{end} is missing")
        return out

    def _single(self) -> str:
        close = self._text.find("'", self._at)
        if close < 0:
            raise WordError("a single quote has no end")
        text, self._at = self._text[self._at : close], close + 1
        return text

    def _variable(self) -> str:
        if not self._text.startswith("{", self._at):
            match = _NAME.match(self._text, self._at)
            if match is None:
                return "$"
            self._at = match.end()
            return self._values.get(match[0], "")
        match = _NAME.match(self._text, self._at + 1)
        if match is None:
            raise WordError("${ is not followed by the name of a variable")
        self._at = match.end()
        value = self._values.get(match[0])
        colon = self._text.startswith(":", self._at)
        self._at += colon
        kind = self._text[self._at : self._at + 1]
        if kind == "}" and not colon:
            self._at += 1
            return value or ""
        if kind not in ("-", "+", "?"):
            raise WordError(f"${{{match[0]}}} has an unknown modifier")
        self._at += 1
        word = self._nested()
        has = bool(value) if colon else value is not None
        if kind == "?" and not has:
            raise WordError(f"{match[0]}: {word or 'is not set'}")
        if kind == "+":
            return word if has else ""
        return value or "" if has else word

    def _nested(self) -> str:
        if self._depth >= _MAX_DEPTH:
            raise WordError("variables are nested too deep")
        inner = _Reader(self._text, self._values, self._escape, self._depth + 1)
        inner._at = self._at
        word = inner.read("}")
        self._at = inner._at + 1
        return word
