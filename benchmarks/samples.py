"""Measured values and what is said of them. Pure but for the clock."""

from __future__ import annotations

import time
from collections import defaultdict
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterator


def percentile(values: list[float], share: float) -> float:
    """Linear between the two nearest ranks; a single value is all its percentiles."""
    if not values:
        raise ValueError("no values, no percentile")
    ordered = sorted(values)
    position = (len(ordered) - 1) * share
    below = int(position)
    above = min(below + 1, len(ordered) - 1)
    return ordered[below] + (ordered[above] - ordered[below]) * (position - below)


@dataclass(frozen=True, slots=True)
class Summary:
    """What is kept of one operation of one peer. Without values, all of them failed."""

    n: int
    p50: float | None
    p95: float | None
    p99: float | None
    failed: int = 0
    reason: str = ""
    """Of the first failure."""

    @property
    def success(self) -> float:
        return self.n / (self.n + self.failed)


Measured = dict[str, dict[str, Summary]]
"""By operation and peer."""


class Samples:
    """Values by operation and peer, in the unit of the operation's row."""

    def __init__(self) -> None:
        self._values: dict[str, dict[str, list[float]]] = defaultdict(lambda: defaultdict(list))
        self._failures: dict[str, dict[str, list[str]]] = defaultdict(lambda: defaultdict(list))

    def add(self, operation: str, peer: str, value: float) -> None:
        self._values[operation][peer].append(value)

    def fail(self, operation: str, peer: str, reason: str) -> None:
        self._failures[operation][peer].append(reason)

    @contextmanager
    def timed(self, operation: str, peer: str) -> Iterator[None]:
        """Count milliseconds of what came to its end: a failure has no duration."""
        began = time.perf_counter()
        yield
        self.add(operation, peer, (time.perf_counter() - began) * 1000)

    def count(self, operation: str, peer: str) -> int:
        return len(self._values[operation][peer])

    def summaries(self) -> Measured:
        operations = list(dict.fromkeys([*self._values, *self._failures]))
        return {
            operation: {
                peer: self._summary(operation, peer)
                for peer in dict.fromkeys([*self._values[operation], *self._failures[operation]])
            }
            for operation in operations
        }

    def _summary(self, operation: str, peer: str) -> Summary:
        values = self._values[operation][peer]
        failures = self._failures[operation][peer]
        p50, p95, p99 = (
            percentile(values, share) if values else None for share in (0.5, 0.95, 0.99)
        )
        reason = failures[0] if failures else ""
        return Summary(len(values), p50, p95, p99, len(failures), reason)
