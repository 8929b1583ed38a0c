"""Time, and somebody who hears what happened."""

from __future__ import annotations

from typing import TYPE_CHECKING, Protocol, runtime_checkable

if TYPE_CHECKING:
    from collections.abc import Mapping


class Clock(Protocol):
    """`now` is wall time for people; `boottime` never jumps and counts TTLs."""

    def now(self) -> float: ...
    def boottime(self) -> float: ...


@runtime_checkable
class EventSink(Protocol):
    """Receives what happened (`sandbox.created`, …); must not raise and must not block."""

    def emit(self, event: str, fields: Mapping[str, str | int | float | bool | None]) -> None: ...
