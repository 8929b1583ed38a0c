"""One event told to several sinks."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Mapping

    from sandkasten.ports import EventSink


class FanOut:
    """Implements `ports.EventSink`."""

    def __init__(self, *sinks: EventSink) -> None:
        self._sinks = sinks

    def emit(self, event: str, fields: Mapping[str, str | int | float | bool | None]) -> None:
        for sink in self._sinks:
            sink.emit(event, fields)
