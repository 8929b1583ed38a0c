"""Lines of a daemon's log."""

from __future__ import annotations

import json
import logging
import re

import pytest

from sandkasten.ports.spans import UNTRACED, request_id
from sandkasten_runtime.telemetry.json_log import JsonLines, ReadableLines
from tests.repo import tree


def _record(event, **fields):
    record = logging.makeLogRecord({"msg": event, "levelname": "INFO"})
    record.sandkasten = fields
    return record


def test_a_line_has_the_ids_of_its_request_and_its_trace():
    trace = "0af7651916cd43dd8448eb211c80319c"
    token = request_id.set("req_1")
    try:
        with UNTRACED.request("GET /", {"traceparent": f"00-{trace}-b7ad6b7169203331-01"}):
            line = json.loads(JsonLines().format(_record("sandbox.created", sandbox="sbx_1")))
    finally:
        request_id.reset(token)
    assert (line["request_id"], line["trace_id"]) == ("req_1", trace)
    assert (line["event"], line["sandbox"]) == ("sandbox.created", "sbx_1")
    outside = json.loads(JsonLines().format(_record("sandbox.created")))
    assert not {"request_id", "trace_id"} & set(outside)


@pytest.mark.parametrize("kind", [JsonLines, ReadableLines])
def test_nothing_in_a_field_can_control_a_terminal_or_begin_a_line(kind):
    line = kind().format(_record("a\nb", name="x\x1b[2J\r\n\x9b1m\u202e", empty=""))
    assert line.isprintable()


def test_lines_for_a_terminal_are_readable():
    line = ReadableLines().format(_record("exec.finished", status="completed", why="two words"))
    assert line.endswith('info    exec.finished status=completed why="two words"')


def test_every_logger_is_below_the_one_whose_level_the_settings_set():
    """A logger with the name of another distribution would lose its events below WARNING."""
    named = {
        (module, name)
        for module, path in tree.modules().items()
        for name in re.findall(r"getLogger\(\"?([\w.]+)", path.read_text())
    }
    resolved = {(module, module if name == "__name__" else name) for module, name in named}
    assert len(resolved) > 20
    assert {
        (module, name)
        for module, name in resolved
        if not f"{name}.".startswith(("sandkasten.", "uvicorn."))
    } == set()
