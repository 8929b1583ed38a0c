"""Typed access to the fields of a mapping in an agent's file.

A field of the wrong type raises InvalidAgent with the full path of the field. An unknown key is a
warning with the nearest known spelling, because a file may be newer than this program.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from sandkasten.errors import InvalidAgent, InvalidRequest
from sandkasten.model.numbers import number, whole
from sandkasten.model.spelling import did_you_mean, shown

if TYPE_CHECKING:
    from collections.abc import Collection, Mapping

# Bound names and number of warnings, so that a file cannot flood the log.
_MOST_WARNINGS = 50


class DefinitionFields:
    """One mapping and its path in the file. None means that a field is absent or empty."""

    def __init__(self, values: Mapping[str, Any], path: str = "") -> None:
        self.values = values
        self._path = path

    def path(self, name: str) -> str:
        return f"{self._path}.{name}" if self._path else name

    def unknown(self, allowed: Collection[str]) -> list[str]:
        """Return a warning for each key that is not in `allowed`."""
        strange = [name for name in self.values if name not in allowed]
        warnings = [
            f"{self._at()} has no field {shown(name)} ({did_you_mean(name, allowed)})"
            for name in strange[:_MOST_WARNINGS]
        ]
        if len(strange) > _MOST_WARNINGS:
            warnings.append(f"{self._at()} has {len(strange)} unknown fields in all")
        return warnings

    def text(self, name: str, *, longest: int = 1000) -> str | None:
        value = self.values.get(name)
        if value is None:
            return None
        if not isinstance(value, str):
            raise self.wrong(name, "a string", value)
        if not value.strip() or len(value) > longest:
            raise InvalidAgent(
                f"{self.path(name)} must have 1 to {longest} characters",
                hint="omit the field if it is not needed",
                field=self.path(name),
            )
        return value

    def choice(self, name: str, allowed: Collection[str]) -> str | None:
        value = self.text(name)
        if value is not None and value not in allowed:
            raise InvalidAgent(
                f"{self.path(name)} is not valid: {shown(value)}",
                hint=did_you_mean(value, allowed),
                field=self.path(name),
            )
        return value

    def flag(self, name: str) -> bool | None:
        value = self.values.get(name)
        if value is not None and not isinstance(value, bool):
            raise self.wrong(name, "true or false", value)
        return value

    def number(self, name: str, *, low: float, high: float) -> float | None:
        value = self.values.get(name)
        if value is None:
            return None
        try:
            return number(self.path(name), value, low=low, high=high)
        except InvalidRequest as exc:
            raise _as_agent(exc) from exc

    def whole(self, name: str, *, low: int, high: int) -> int | None:
        value = self.values.get(name)
        if value is None:
            return None
        try:
            return whole(self.path(name), value, low=low, high=high)
        except InvalidRequest as exc:
            raise _as_agent(exc) from exc

    def texts(self, name: str, *, most: int = 100, longest: int = 200) -> tuple[str, ...] | None:
        """Return a list of non-empty strings."""
        value = self.values.get(name)
        if value is None:
            return None
        if not isinstance(value, list):
            raise self.wrong(name, "a list of strings", value)
        if len(value) > most:
            raise InvalidAgent(
                f"{self.path(name)} has {len(value)} entries, but at most {most} are allowed",
                hint="write fewer",
                field=self.path(name),
            )
        for at, item in enumerate(value):
            if not isinstance(item, str) or not item or len(item) > longest:
                raise self.wrong(f"{name}[{at}]", f"a string of 1 to {longest} characters", item)
        return tuple(value)

    def mapping(self, name: str) -> DefinitionFields | None:
        value = self.values.get(name)
        if value is None:
            return None
        if not isinstance(value, dict):
            raise self.wrong(name, "a mapping", value)
        return DefinitionFields(value, self.path(name))

    def wrong(self, name: str, wanted: str, value: object) -> InvalidAgent:
        return InvalidAgent(
            f"{self.path(name)} must be {wanted}, got {_described(value)}",
            hint="yes, no, on and off are strings in YAML; write true or false"
            if wanted == "true or false"
            else "correct the field, or omit it",
            field=self.path(name),
        )

    def _at(self) -> str:
        return self._path or "the frontmatter"


def _as_agent(exc: InvalidRequest) -> InvalidAgent:
    """Convert an error into InvalidAgent."""
    return InvalidAgent(exc.message, hint=exc.hint, **exc.details)


def _described(value: object) -> str:
    if isinstance(value, dict):
        return "a mapping"
    if isinstance(value, list):
        return "a list"
    return shown(value) if isinstance(value, str) else f"{value!r:.40}"
