"""Durations and what is said of them. Pure but for the clock."""

from __future__ import annotations

import time
from collections import defaultdict
from contextlib import contextmanager
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


class Samples:
    """Milliseconds by operation and peer."""

    def __init__(self) -> None:
        self._values: dict[str, dict[str, list[float]]] = defaultdict(lambda: defaultdict(list))

    def add(self, operation: str, peer: str, ms: float) -> None:
        self._values[operation][peer].append(ms)

    @contextmanager
    def timed(self, operation: str, peer: str) -> Iterator[None]:
        """Counts only what came to its end: a failure is no duration."""
        began = time.perf_counter()
        yield
        self.add(operation, peer, (time.perf_counter() - began) * 1000)

    def operations(self) -> list[str]:
        return list(self._values)

    def peers(self, operation: str) -> list[str]:
        return list(self._values[operation]) if operation in self._values else []

    def count(self, operation: str, peer: str) -> int:
        return len(self._values[operation][peer])

    def p50(self, operation: str, peer: str) -> float | None:
        return self._at(operation, peer, 0.5)

    def p95(self, operation: str, peer: str) -> float | None:
        return self._at(operation, peer, 0.95)

    def _at(self, operation: str, peer: str, share: float) -> float | None:
        values = self._values.get(operation, {}).get(peer)
        return percentile(values, share) if values else None
