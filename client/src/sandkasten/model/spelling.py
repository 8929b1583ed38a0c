"""Names as people write them: the nearest known spelling for hints, and wildcards. Strings of other
programs as messages repeat them.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterable


# A shorter beginning of a name is likely to be the beginning of several.
_MIN_PREFIX = 3


def did_you_mean(name: str, candidates: Iterable[str]) -> str:
    """Return a hint: the nearest known name, or all of them when none is near."""
    names = sorted(candidates)
    near = nearest(name, names)
    return f"did you mean {near}?" if near is not None else f"known: {', '.join(names)}"


def nearest(name: str, candidates: Iterable[str]) -> str | None:
    """Return the known name that is most like this one; None if none is near."""
    import difflib

    # A hostile name of megabytes would make the comparison slow; no known name is that long.
    names = sorted(candidates)
    near = difflib.get_close_matches(name[:64], names, n=1, cutoff=0.6)
    if near or len(name) < _MIN_PREFIX:
        return near[0] if near else None
    return next((other for other in names if other.startswith(name)), None)


def shown(text: str, limit: int = 80) -> str:
    """Return a caller's string for a message: short, printable, unambiguous."""
    cut = text if len(text) <= limit else text[:limit] + "…"
    return repr(cut)


def one_line(text: str, limit: int = 300) -> str:
    """Return the beginning of another program's string as one line without control characters."""
    # Twice what is shown, because spaces are joined; the rest need not be looked at.
    words = "".join(char if char.isprintable() else " " for char in text[: 2 * limit]).split()
    return " ".join(words)[:limit]


def wildcard_match(pattern: str, text: str) -> bool:
    """Return whether the pattern, in which `*` is any characters, is the whole text."""
    first, *rest = pattern.split("*")
    if not rest:
        return text == pattern
    if not text.startswith(first):
        return False
    at = len(first)
    *middle, last = rest
    for part in middle:
        index = text.find(part, at)
        if index < 0:
            return False
        at = index + len(part)
    return len(text) - at >= len(last) and text.endswith(last)
