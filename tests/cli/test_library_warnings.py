"""Warnings of the stores are sentences at a command line."""

from __future__ import annotations

import ast
import logging
import re

from sandkasten_server.cli.library_warnings import SENTENCES, SentenceFormatter
from tests.repo import tree

LEVELS = {"warning", "error", "exception", "critical"}
# Loggers of the stores, and the names that modules give them.
STORES = re.compile(
    r"^(\w+)(?:: Final)? = logging\.getLogger\(\"sandkasten\.(?:store|audit|recording)\"", re.M
)


def events():
    for path in tree.modules().values():
        source = path.read_text()
        calls = {f"{name}.{level}" for name in STORES.findall(source) for level in LEVELS}
        for node in ast.walk(ast.parse(source)) if calls else ():
            if isinstance(node, ast.Call) and ast.unparse(node.func) in calls:
                yield ast.literal_eval(node.args[0])


def test_every_warning_of_the_stores_has_a_sentence():
    logged = set(events())
    assert {"audit.failed", "recording.failed", "store.failed"} <= logged
    assert logged - SENTENCES.keys() == set()


def formatted(message, **fields):
    record = logging.LogRecord("sandkasten", logging.ERROR, "", 0, message, None, None)
    record.sandkasten = fields
    return SentenceFormatter().format(record)


def test_event_becomes_a_sentence_with_its_fields():
    assert formatted("audit.failed", why="QUOTA_EXCEEDED") == (
        "warning: the audit log could not be written (QUOTA_EXCEEDED); it will be retried"
    )
    assert "unknown" in formatted("audit.failed")
    assert formatted("text of {another} library") == "warning: text of {another} library"
