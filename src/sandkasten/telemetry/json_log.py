"""Log records as JSON, one object per line: the output of a daemon.

The event is the record's message; its fields stand beside it. Values that JSON does not support are
printed as strings, and a line break never breaks a line.
"""

from __future__ import annotations

import asyncio
import json
import logging
import sys
import time

_MAX_TEXT = 2000


class JsonLines(logging.Formatter):
    def format(self, record: logging.LogRecord) -> str:
        line: dict[str, object] = {
            "ts": round(record.created, 3),
            "level": record.levelname.lower(),
            "event": record.getMessage()[:_MAX_TEXT],
        }
        fields = getattr(record, "sandkasten", None)
        if isinstance(fields, dict):
            line.update((k, v) for k, v in fields.items() if k not in line)
        request_id = getattr(record, "request_id", None)
        if request_id is not None:
            line["request_id"] = request_id
        if record.exc_info:
            line["trace"] = self.formatException(record.exc_info)[-8000:]
        return json.dumps(line, default=str, ensure_ascii=True)


def _is_news(record: logging.LogRecord) -> bool:
    """Drop what the HTTP server says about requests that it cancels itself at an orderly stop.

    And about those whose own line in the log says it already (`is_logged` of the exception).
    """
    kind = record.exc_info[0] if record.exc_info else None
    if kind is None:
        return True
    return not issubclass(kind, asyncio.CancelledError) and not getattr(kind, "is_logged", False)


def configure(level: str) -> None:
    """Configure logging of a daemon process: everything to stderr, our own events from `level`
    on.
    """
    handler = logging.StreamHandler(sys.stderr)
    handler.setFormatter(JsonLines())
    logging.Formatter.converter = time.gmtime
    root = logging.getLogger()
    root.handlers[:] = [handler]
    root.setLevel(logging.WARNING)
    logging.getLogger("sandkasten").setLevel(level.upper())
    # uvicorn logs its own steps; our events already report each of them.
    logging.getLogger("uvicorn").setLevel(logging.WARNING)
    logging.getLogger("uvicorn.error").addFilter(_is_news)
