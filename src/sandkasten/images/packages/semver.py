"""Versions and ranges as npm means them. Pure; what is neither is None, never a guess."""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from collections.abc import Iterable

_MOST_TEXT: Final = 256
_NUMBER: Final = r"0|[1-9]\d{0,15}"
_PART: Final = rf"(?:{_NUMBER}|[xX*])"
_TAIL: Final = r"(?:-(?P<pre>[0-9A-Za-z.-]+))?(?:\+[0-9A-Za-z.-]+)?"
_VERSION: Final = re.compile(rf"[v=\s]*({_NUMBER})\.({_NUMBER})\.({_NUMBER}){_TAIL}\Z")
_PARTIAL: Final = re.compile(
    rf"[v=\s]*(?P<major>{_PART})(?:\.(?P<minor>{_PART})(?:\.(?P<patch>{_PART}){_TAIL})?)?\Z"
)
_COMPARATOR: Final = re.compile(r"(\^|~>?|>=|<=|>|<|=)?\s*(\S+)")
_HYPHEN: Final = re.compile(r"\s*(\S+)\s+-\s+(\S+)\s*\Z")

_Key = tuple[int, int, int, tuple[tuple[int, int, str], ...]]


@dataclass(frozen=True, slots=True)
class Version:
    text: str
    release: tuple[int, int, int]
    pre: tuple[str, ...] = ()

    @property
    def key(self) -> _Key:
        """Orders as npm does: a pre-release before its release, numbers before names."""
        if not self.pre:
            return (*self.release, ((2, 0, ""),))
        parts = tuple((0, int(p), "") if p.isdigit() else (1, 0, p) for p in self.pre)
        return (*self.release, parts)


@dataclass(frozen=True, slots=True)
class _Bound:
    operator: str
    version: Version

    def holds(self, key: _Key) -> bool:
        mine = self.version.key
        return {
            ">=": key >= mine, ">": key > mine, "<": key < mine, "<=": key <= mine, "=": key == mine
        }[self.operator]  # fmt: skip


class Range:
    """`parse` answers None for what is no range, such as a tag or an address."""

    def __init__(self, sets: tuple[tuple[_Bound, ...], ...]) -> None:
        self._sets = sets

    @classmethod
    def parse(cls, text: str) -> Range | None:
        if len(text) > _MOST_TEXT:
            return None
        sets = []
        for part in text.split("||"):
            bounds = _bounds(part)
            if bounds is None:
                return None
            sets.append(bounds)
        return cls(tuple(sets))

    def holds(self, version: Version) -> bool:
        key = version.key
        return any(
            all(bound.holds(key) for bound in bounds) and _may_be_early(version, bounds)
            for bounds in self._sets
        )

    def best(self, versions: Iterable[Version]) -> Version | None:
        """The newest of those that it holds."""
        return max((one for one in versions if self.holds(one)), key=lambda v: v.key, default=None)


def parse_version(text: str) -> Version | None:
    found = _VERSION.match(text.strip()) if len(text) <= _MOST_TEXT else None
    if found is None:
        return None
    release = (int(found[1]), int(found[2]), int(found[3]))
    return Version(text.strip(), release, tuple(found["pre"].split(".")) if found["pre"] else ())


def _may_be_early(version: Version, bounds: tuple[_Bound, ...]) -> bool:
    """A pre-release only where the range names one of the very same release."""
    if not version.pre:
        return True
    return any(b.version.pre and b.version.release == version.release for b in bounds)


def _bounds(text: str) -> tuple[_Bound, ...] | None:
    hyphen = _HYPHEN.match(text)
    if hyphen is not None:
        low, high = _partial(hyphen[1]), _partial(hyphen[2])
        if low is None or high is None:
            return None
        return (*_at_least(low), *_at_most(high))
    found: list[_Bound] = []
    rest = text.strip()
    if rest in ("", "*", "x", "X"):
        return ()
    at = 0
    while at < len(rest):
        match = _COMPARATOR.match(rest, at)
        partial = _partial(match[2]) if match is not None else None
        if match is None or partial is None:
            return None
        found += _expand(match[1] or "", partial)
        at = match.end()
        while at < len(rest) and rest[at].isspace():
            at += 1
    return tuple(found)


@dataclass(frozen=True, slots=True)
class _Partial:
    """A version of which the end may be left out."""

    numbers: tuple[int, ...]
    pre: tuple[str, ...] = ()

    @property
    def low(self) -> Version:
        filled = (*self.numbers, 0, 0, 0)
        return Version("", (filled[0], filled[1], filled[2]), self.pre)

    def after(self, place: int) -> Version:
        """The first release with a higher number at that place; even its pre-releases are over."""
        kept = [*self.numbers[:place], self.numbers[place] + 1, 0, 0]
        return Version("", (kept[0], kept[1], kept[2]), ("0",))


def _partial(text: str) -> _Partial | None:
    found = _PARTIAL.match(text)
    if found is None:
        return None
    numbers: list[int] = []
    for name in ("major", "minor", "patch"):
        part = found[name]
        if part is None or part in "xX*":
            break
        numbers.append(int(part))
    pre = tuple(found["pre"].split(".")) if found["pre"] and len(numbers) == 3 else ()
    return _Partial(tuple(numbers), pre)


def _expand(operator: str, wanted: _Partial) -> tuple[_Bound, ...]:
    known = len(wanted.numbers)
    if known == 0:
        # `<*` can hold nothing; everything else with a star holds everything.
        return (_Bound("<", Version("", (0, 0, 0), ("0",))),) if operator in ("<", ">") else ()
    if operator == "^":
        return (*_at_least(wanted), _Bound("<", wanted.after(_caret_place(wanted))))
    if operator in ("~", "~>"):
        return (*_at_least(wanted), _Bound("<", wanted.after(min(known - 1, 1))))
    if operator == ">=":
        return _at_least(wanted)
    if operator == "<=":
        return _at_most(wanted)
    if operator == "<":
        low = wanted.low if known == 3 else Version("", wanted.low.release, ("0",))
        return (_Bound("<", low),)
    if operator == ">":
        if known < 3:
            after = wanted.after(known - 1)
            return (_Bound(">=", Version("", after.release)),)
        return (_Bound(">", wanted.low),)
    if known == 3:
        return (_Bound("=", wanted.low),)
    return (*_at_least(wanted), _Bound("<", wanted.after(known - 1)))


def _caret_place(wanted: _Partial) -> int:
    """Which number must stay: the first that is not zero, of those that were said."""
    for place, number in enumerate(wanted.numbers):
        if number != 0:
            return place
    return len(wanted.numbers) - 1


def _at_least(wanted: _Partial) -> tuple[_Bound, ...]:
    return (_Bound(">=", wanted.low),) if wanted.numbers else ()


def _at_most(wanted: _Partial) -> tuple[_Bound, ...]:
    known = len(wanted.numbers)
    if known == 0:
        return ()
    return (_Bound("<=", wanted.low),) if known == 3 else (_Bound("<", wanted.after(known - 1)),)
