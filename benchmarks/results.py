"""The results of a run as a value, and as JSON. A part that is measured again replaces itself."""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass, field
from typing import TYPE_CHECKING, Any

from benchmarks.samples import Measured, Summary

if TYPE_CHECKING:
    from pathlib import Path

FORMAT = 1


@dataclass(frozen=True, slots=True)
class Part:
    """One section of a run. How busy the machine was is part of what was measured."""

    began_at: str
    revision: str
    seconds: float
    load_before: float
    """The load average of the last minute, before the section and after it."""
    load_after: float
    quick: bool
    measured: Measured
    failed: str = ""
    """Why it could not be measured."""
    stolen: float = 0.0
    """The share of the processors' time that the host of a virtual machine gave to others."""


@dataclass(frozen=True, slots=True)
class Entrant:
    """A contestant as it came to the run."""

    what: str
    version: str = ""
    absent: str = ""
    """Why it could not take part; empty if it did."""


@dataclass(slots=True)
class Results:
    machine: dict[str, Any] = field(default_factory=dict)
    entrants: dict[str, Entrant] = field(default_factory=dict)
    parts: dict[str, Part] = field(default_factory=dict)

    @property
    def measured(self) -> Measured:
        return {
            operation: peers
            for part in self.parts.values()
            for operation, peers in part.measured.items()
        }


def dumped(results: Results, verdicts: list[dict[str, Any]]) -> str:
    """Return the JSON document; the verdicts are derived, and there for other programs."""
    document = {"format": FORMAT, **asdict(results), "verdicts": verdicts}
    return json.dumps(_rounded(document), indent=1) + "\n"


def _rounded(value: Any) -> Any:
    if isinstance(value, float):
        return float(f"{value:.5g}")
    if isinstance(value, dict):
        return {key: _rounded(item) for key, item in value.items()}
    if isinstance(value, list):
        return [_rounded(item) for item in value]
    return value


def loaded(path: Path) -> Results:
    """Return what a file holds; empty if there is none or its format is another."""
    try:
        document = json.loads(path.read_text())
    except FileNotFoundError:
        return Results()
    if document.get("format") != FORMAT:
        return Results()
    return Results(
        document["machine"],
        {name: Entrant(**fields) for name, fields in document["entrants"].items()},
        {
            name: Part(**{**part, "measured": _measured(part["measured"])})
            for name, part in document["parts"].items()
        },
    )


def _measured(document: dict[str, dict[str, dict[str, Any]]]) -> Measured:
    return {
        operation: {peer: Summary(**summary) for peer, summary in peers.items()}
        for operation, peers in document.items()
    }
