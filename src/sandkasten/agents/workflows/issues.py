"""What is wrong with a workflow's file: said with a code, a place, a sentence and a way out."""

from __future__ import annotations

import difflib
from dataclasses import asdict, dataclass, field
from typing import TYPE_CHECKING, Any, Literal

if TYPE_CHECKING:
    from collections.abc import Collection

Level = Literal["error", "warning"]


@dataclass(frozen=True, slots=True)
class Issue:
    code: str
    path: str
    """Where in the file: `steps[2].transitions[0].next`; empty: the file as a whole."""
    message: str
    hint: str = ""
    level: Level = "error"

    def as_json(self) -> dict[str, Any]:
        return asdict(self)

    def told(self) -> str:
        """Its place, what is wrong there, and the way out."""
        where = f"{self.path}: " if self.path else ""
        return f"{where}{self.message} ({self.hint})" if self.hint else f"{where}{self.message}"

    def __str__(self) -> str:
        return f"{self.code} {self.told()}"


@dataclass(frozen=True, slots=True)
class Near:
    """A hint that is looked for only when somebody will read it: it takes milliseconds."""

    word: str
    known: Collection[str]

    def __str__(self) -> str:
        words = sorted({word[:64] for word in self.known})
        close = difflib.get_close_matches(self.word[:64], words, n=1, cutoff=0.6)
        if close:
            return f'did you mean "{close[0]}"?'
        return f"known here: {', '.join(words[:20])}" if words else ""


@dataclass(slots=True)
class Findings:
    """Collects them; at most so many of each level, since a hostile file could have a million."""

    most: int = 100
    most_near: int = 20
    errors: list[Issue] = field(default_factory=list)
    warnings: list[Issue] = field(default_factory=list)

    def error(self, code: str, path: str, message: str, hint: str | Near = "") -> None:
        if len(self.errors) < self.most:
            self.errors.append(Issue(code, path, message, self._read(hint)))

    def warning(self, code: str, path: str, message: str, hint: str | Near = "") -> None:
        if len(self.warnings) < self.most:
            self.warnings.append(Issue(code, path, message, self._read(hint), "warning"))

    def _read(self, hint: str | Near) -> str:
        if isinstance(hint, str):
            return hint
        self.most_near -= 1
        return str(hint) if self.most_near >= 0 else ""
