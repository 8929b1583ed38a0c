"""Typed access to the fields of one mapping in a workflow's file.

A field of the wrong type is reported as BAD_FIELD and treated as absent, so that one pass finds all
errors. A field that was never read is a misspelling, reported by `leftovers`.
"""

from __future__ import annotations

from dataclasses import field
from typing import TYPE_CHECKING, Any, Final

from sandkasten.lazy_dataclass import dataclass
from sandkasten.model.durations import seconds
from sandkasten_agents.workflows.issues import SpellingHint

if TYPE_CHECKING:
    from collections.abc import Mapping

    from sandkasten_agents.workflows.issues import IssueCollector

_SHOWN: Final = 60


@dataclass(slots=True)
class WorkflowFields:
    raw: Mapping[str, Any]
    path: str
    findings: IssueCollector
    asked: set[str] = field(default_factory=set)

    def value(self, *names: str) -> Any:
        """Return the value of the first spelling that is present; None if there is none."""
        self.asked.update(names)
        return next((self.raw[name] for name in names if self.raw.get(name) is not None), None)

    def has(self, *names: str) -> bool:
        self.asked.update(names)
        return any(self.raw.get(name) is not None for name in names)

    def at(self, *names: str) -> str:
        """Return the path of the spelling in use."""
        name = next((name for name in names if self.raw.get(name) is not None), names[0])
        return f"{self.path}.{name}" if self.path else name

    def bad(self, message: str, *names: str, hint: str = "") -> None:
        self.findings.error("BAD_FIELD", self.at(*names), message, hint)

    def text(self, *names: str) -> str | None:
        value = self.value(*names)
        if isinstance(value, str) or value is None:
            return value
        if isinstance(value, bool):
            return "true" if value else "false"
        if isinstance(value, int | float):
            return str(value)
        self.bad(f"must be a string, got {kind(value)}", *names)
        return None

    def whole(self, *names: str, least: int, most: int) -> int | None:
        value = self.value(*names)
        if value is None:
            return None
        if isinstance(value, bool) or not isinstance(value, int) or not least <= value <= most:
            shown = str(value)[:_SHOWN]
            self.bad(f"must be an integer from {least} to {most}, got {shown}", *names)
            return None
        return value

    def truth(self, *names: str) -> bool:
        value = self.value(*names)
        if isinstance(value, bool) or value is None:
            return bool(value)
        self.bad(f"must be true or false, got {kind(value)}", *names)
        return False

    def duration_s(self, *names: str, most_s: float) -> float | None:
        value = self.value(*names)
        if value is None:
            return None
        duration_s = seconds(value)
        if duration_s is None or duration_s > most_s:
            hint = 'write seconds, or "500ms", "30s", "5m", "1h30m"'
            shown = str(value)[:_SHOWN]
            self.bad(f"must be a duration of at most {most_s:g} s, got {shown}", *names, hint=hint)
            return None
        return duration_s

    def list(self, *names: str) -> list[Any] | None:
        value = self.value(*names)
        if isinstance(value, list) or value is None:
            return value
        self.bad(f"must be a list, got {kind(value)}", *names)
        return None

    def mapping(self, *names: str) -> dict[str, Any] | None:
        value = self.value(*names)
        if value is None or (isinstance(value, dict) and all(isinstance(k, str) for k in value)):
            return value
        self.bad(f"must be a mapping with strings as keys, got {kind(value)}", *names)
        return None

    def texts(self, *names: str) -> tuple[str, ...]:
        value = self.value(*names)
        if isinstance(value, str):
            return (value,)
        if value is None or (isinstance(value, list) and all(isinstance(v, str) for v in value)):
            return tuple(value or ())
        self.bad("must be a list of strings", *names)
        return ()

    def report_unknown(self) -> None:
        """Return a warning for each field that was never read."""
        for name in self.raw:
            if name not in self.asked:
                shown = str(name)[:_SHOWN]
                self.findings.warning(
                    "UNKNOWN_FIELD",
                    f"{self.path}.{shown}" if self.path else shown,
                    "is not a known field",
                    SpellingHint(shown, self.asked),
                )


def kind(value: Any) -> str:
    """Return the type of a value in plain words."""
    names = {dict: "a mapping", list: "a list", str: "a string", bool: "true or false"}
    return names.get(type(value), "nothing" if value is None else "a number")
