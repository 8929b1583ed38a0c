"""Log records of a daemon: JSON, one object per line, or readable lines at a terminal.

The event is the record's message; its fields stand beside it. Values that JSON does not support are
printed as strings, and a line break never breaks a line.
"""

from __future__ import annotations

import asyncio
import json
import logging
import sys
import time

from sandkasten.ports.spans import current_trace_id, request_id

_MAX_TEXT = 2000
_IDS = ("request_id", "trace_id")


class JsonLines(logging.Formatter):
    def format(self, record: logging.LogRecord) -> str:
        line: dict[str, object] = {
            "ts": round(record.created, 3),
            "level": record.levelname.lower(),
            "event": record.getMessage()[:_MAX_TEXT],
        }
        line.update((k, v) for k, v in _fields(record).items() if k not in line)
        if record.exc_info:
            line["trace"] = self.formatException(record.exc_info)[-8000:]
        return json.dumps(line, default=str, ensure_ascii=True)


class ReadableLines(logging.Formatter):
    """For a person at a terminal; characters that control it are escaped."""

    def format(self, record: logging.LogRecord) -> str:
        at = time.strftime("%H:%M:%S", time.localtime(record.created))
        fields = [f"{k}={_word(v)}" for k, v in _fields(record).items() if v is not None]
        event = _escaped(record.getMessage()[:_MAX_TEXT])
        line = " ".join([at, f"{record.levelname.lower():7}", event, *fields])
        if record.exc_info:
            trace = self.formatException(record.exc_info)[-8000:]
            line += "".join(f"\n  {_escaped(text)}" for text in trace.splitlines())
        return line


def _fields(record: logging.LogRecord) -> dict[str, object]:
    """Return the fields of a record, with the ids of what it belongs to."""
    fields: dict[str, object] = {}
    extra = getattr(record, "sandkasten", None)
    if isinstance(extra, dict):
        fields.update(extra)
    fields.setdefault("request_id", getattr(record, "request_id", None) or request_id.get())
    fields.setdefault("trace_id", current_trace_id())
    return {k: v for k, v in fields.items() if v is not None or k not in _IDS}


def _word(value: object) -> str:
    text = _escaped(str(value)[:_MAX_TEXT])
    return json.dumps(text, ensure_ascii=False) if " " in text or not text else text


def _escaped(text: str) -> str:
    return "".join(c if c.isprintable() else c.encode("unicode_escape").decode() for c in text)


def _is_news(record: logging.LogRecord) -> bool:
    """Drop what the HTTP server logs about requests that it cancels itself at an orderly stop.

    And about those whose own line in the log has it already (`is_logged` of the exception).
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
    handler.setFormatter(ReadableLines() if sys.stderr.isatty() else JsonLines())
    logging.Formatter.converter = time.gmtime
    root = logging.getLogger()
    root.handlers[:] = [handler]
    root.setLevel(logging.WARNING)
    logging.getLogger("sandkasten").setLevel(level.upper())
    # uvicorn logs its own steps; our events already report each of them.
    logging.getLogger("uvicorn").setLevel(logging.WARNING)
    logging.getLogger("uvicorn.error").addFilter(_is_news)
