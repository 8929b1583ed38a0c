"""Log records as JSON, one object a line: what a daemon prints.

The event is the record's message; the fields that rode along stand beside it. What cannot be
printed is printed as text, and a line break never breaks a line.
"""

from __future__ import annotations

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


def configure(level: str) -> None:
    """For a process that is a daemon: everything to stderr, our own events from `level` on."""
    handler = logging.StreamHandler(sys.stderr)
    handler.setFormatter(JsonLines())
    logging.Formatter.converter = time.gmtime
    root = logging.getLogger()
    root.handlers[:] = [handler]
    root.setLevel(logging.WARNING)
    logging.getLogger("sandkasten").setLevel(level.upper())
    # It says what uvicorn does, and each of its lines is said better by an event of ours.
    logging.getLogger("uvicorn").setLevel(logging.WARNING)
