"""Warnings of the stores are sentences at a command line."""

from __future__ import annotations

import ast
import logging
from pathlib import Path

import sandkasten
from sandkasten.cli.library_warnings import SENTENCES, SentenceFormatter

SOURCES = Path(sandkasten.__file__).parent
LEVELS = {"warning", "error", "exception", "critical"}


def events():
    for path in (SOURCES / "store").rglob("*.py"):
        for node in ast.walk(ast.parse(path.read_text())):
            if isinstance(node, ast.Call) and ast.unparse(node.func) in {
                f"log.{level}" for level in LEVELS
            }:
                yield ast.literal_eval(node.args[0])


def test_every_warning_of_the_stores_has_a_sentence():
    assert set(events()) - SENTENCES.keys() == set()


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
