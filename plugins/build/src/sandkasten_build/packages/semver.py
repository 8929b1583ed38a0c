"""Versions and ranges as npm means them, by the library `nodesemver`. Pure.

Registries are untrusted, and the library takes seconds for a range of megabytes: long strings are
refused here. A string that is not a version or a range is None, never a guess.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

import nodesemver

if TYPE_CHECKING:
    from collections.abc import Iterable

_MOST_TEXT: Final = 256


class Version:
    """Ordered as npm does: a pre-release before its release, numbers before names."""

    __slots__ = ("parsed", "text")

    def __init__(self, text: str, parsed: Any) -> None:
        self.text = text
        self.parsed = parsed

    def __lt__(self, other: Version) -> bool:
        return bool(self.parsed.compare(other.parsed) < 0)


class Range:
    """`parse` returns None for a string that is not a range, such as a tag or an address."""

    def __init__(self, parsed: Any) -> None:
        self._parsed = parsed

    @classmethod
    def parse(cls, text: str) -> Range | None:
        if len(text) > _MOST_TEXT:
            return None
        try:
            return cls(nodesemver.make_range(text, loose=False))
        except ValueError:
            return None

    def holds(self, version: Version) -> bool:
        return bool(self._parsed.test(version.parsed))

    def best(self, versions: Iterable[Version]) -> Version | None:
        """Return the newest of those that it holds."""
        best: Version | None = None
        for version in versions:
            if self.holds(version) and (best is None or best < version):
                best = version
        return best


def parse_version(text: str) -> Version | None:
    text = text.strip()
    if len(text) > _MOST_TEXT:
        return None
    try:
        return Version(text, nodesemver.semver(text, loose=False))
    except ValueError:
        return None
