"""Engine events as standard-library log records: the event is the message, with its fields.

Configures nothing: the embedding program decides whether and where they are shown.
"""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Mapping

    from sandkasten.ports import EventSink

logger = logging.getLogger("sandkasten")

_TROUBLE = ("failed", "lost", "crashed", "silent", "corrupt")
# After the first, the next run creates its own sandbox; the second is an error for the caller.
_NO_TROUBLE = frozenset({"sandbox.spare_failed", "packages.install_failed"})


class LogEvents:
    """Implements `ports.EventSink`. Routine events are DEBUG: an embedded engine is quiet."""

    def __init__(self, routine: int = logging.DEBUG) -> None:
        self._routine = routine

    def emit(self, event: str, fields: Mapping[str, str | int | float | bool | None]) -> None:
        trouble = event.endswith(_TROUBLE) and event not in _NO_TROUBLE
        level = logging.WARNING if trouble else self._routine
        if logger.isEnabledFor(level):
            logger.log(level, "%s", event, extra={"sandkasten": dict(fields)})


class FanOut:
    """Sends each event to several sinks. Implements `ports.EventSink`."""

    def __init__(self, *sinks: EventSink) -> None:
        self._sinks = sinks

    def emit(self, event: str, fields: Mapping[str, str | int | float | bool | None]) -> None:
        for sink in self._sinks:
            sink.emit(event, fields)
