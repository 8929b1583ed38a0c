"""Issues of a workflow's file: code, path, message and hint."""

from __future__ import annotations

import difflib
from dataclasses import asdict, field
from typing import TYPE_CHECKING, Any, Literal

from sandkasten.lazy_dataclass import dataclass

if TYPE_CHECKING:
    from collections.abc import Collection

Level = Literal["error", "warning"]


@dataclass(frozen=True, slots=True)
class Issue:
    code: str
    path: str
    """Path in the file, such as `steps[2].transitions[0].next`; empty: the file as a whole."""
    message: str
    hint: str = ""
    level: Level = "error"

    def as_json(self) -> dict[str, Any]:
        return asdict(self)

    def describe(self) -> str:
        """Return path, message and hint as one line."""
        where = f"{self.path}: " if self.path else ""
        return f"{where}{self.message} ({self.hint})" if self.hint else f"{where}{self.message}"

    def __str__(self) -> str:
        return f"{self.code} {self.describe()}"


@dataclass(frozen=True, slots=True)
class SpellingHint:
    """Hint that is computed only when it is read, because the search takes milliseconds."""

    word: str
    known: Collection[str]

    def __str__(self) -> str:
        words = sorted({word[:64] for word in self.known})
        close = difflib.get_close_matches(self.word[:64], words, n=1, cutoff=0.6)
        if close:
            return f'did you mean "{close[0]}"?'
        return f"known here: {', '.join(words[:20])}" if words else ""


@dataclass(slots=True)
class IssueCollector:
    """Collector of issues, bounded per level, since a hostile file could have a million."""

    most: int = 100
    most_near: int = 20
    errors: list[Issue] = field(default_factory=list)
    warnings: list[Issue] = field(default_factory=list)

    def error(self, code: str, path: str, message: str, hint: str | SpellingHint = "") -> None:
        if len(self.errors) < self.most:
            self.errors.append(Issue(code, path, message, self._read(hint)))

    def warning(self, code: str, path: str, message: str, hint: str | SpellingHint = "") -> None:
        if len(self.warnings) < self.most:
            self.warnings.append(Issue(code, path, message, self._read(hint), "warning"))

    def _read(self, hint: str | SpellingHint) -> str:
        if isinstance(hint, str):
            return hint
        self.most_near -= 1
        return str(hint) if self.most_near >= 0 else ""
