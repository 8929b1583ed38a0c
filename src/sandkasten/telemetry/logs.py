"""Engine events as standard-library log records: the event is the message, its fields ride along.

Configures nothing: an embedding program decides whether and where they show.
"""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Mapping

logger = logging.getLogger("sandkasten")

_TROUBLE = ("failed", "lost", "silent", "corrupt")


class LogEvents:
    """Implements `ports.EventSink`. Routine events are DEBUG here: an embedded engine is quiet."""

    def emit(self, event: str, fields: Mapping[str, str | int | float | bool | None]) -> None:
        level = logging.WARNING if event.endswith(_TROUBLE) else logging.DEBUG
        if logger.isEnabledFor(level):
            logger.log(level, "%s", event, extra={"sandkasten": dict(fields)})
