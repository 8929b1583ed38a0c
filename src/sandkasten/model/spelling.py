"""The nearest known spelling of an unknown name, for hints."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterable


def did_you_mean(name: str, known: Iterable[str]) -> str:
    """Return a hint: the nearest known name, or all of them when none is near."""
    names = sorted(known)
    near = nearest(name, names)
    return f"did you mean {near}?" if near is not None else f"known: {', '.join(names)}"


def nearest(name: str, known: Iterable[str]) -> str | None:
    """Return the known name that is most like this one; None if none is near."""
    import difflib

    # A hostile name of megabytes would make the comparison slow; no known name is that long.
    near = difflib.get_close_matches(name[:64], sorted(known), n=1, cutoff=0.6)
    return near[0] if near else None


def shown(text: str, limit: int = 80) -> str:
    """Return a caller's string for a message: short, printable, unambiguous."""
    cut = text if len(text) <= limit else text[:limit] + "…"
    return repr(cut)
