"""Warnings that libraries log in the process of a command, as sentences.

The libraries log events; a daemon writes them as JSON. A person at a command line gets a sentence.
"""

from __future__ import annotations

import logging
from typing import Final

SENTENCES: Final = {
    "audit.failed": "the audit log could not be written ({why}); it will be retried",
    "audit.head_lost": "the audit log no longer has record {seq}, which was its newest",
    "audit.lost": "audit records were dropped because they could not be written: {records}",
    "audit.repaired": "an unfinished record at the end of the audit log was removed",
    "audit.truncated": "the audit log is shorter than it was",
    "audit.uncopied": "audit records could not be copied to the database ({why})",
    "audit.uncut": "old audit records could not be removed",
    "audit.unsynced": "the audit log could not be synced to the disk ({why})",
    "audit.unwritten": "an action could not be recorded in the audit log ({why})",
    "books.unpruned": "old records could not be removed ({why})",
    "files.lost": "stored files are missing on the disk: {count}, the first is {first}",
    "files.uncollected": "deleted stored files still take space ({trouble})",
    "recording.failed": "output could not be recorded ({why})",
    "store.close": "the database could not be closed properly ({trouble})",
    "store.failed": "the database failed ({trouble}); it will be retried",
    "store.forgotten": "records were dropped because the database could not be written: {rows}",
    "store.session_lost": "the connection to the database was lost; the daemon reconnects",
    "store.stale": "the database returned an older state",
}
"""For each event of the stores that is logged as a warning or an error."""


class SentenceFormatter(logging.Formatter):
    """Formats a record as `warning:` and a sentence."""

    def format(self, record: logging.LogRecord) -> str:
        message = record.getMessage()
        sentence = SENTENCES.get(message)
        if sentence is None:
            return f"warning: {message}"
        return f"warning: {sentence.format_map(_Fields(getattr(record, 'sandkasten', {})))}"


class _Fields(dict[str, object]):
    def __missing__(self, key: str) -> str:
        return "unknown"
