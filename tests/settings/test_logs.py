"""Engine events as log records: quiet in routine, a warning when something was lost."""

from __future__ import annotations

import logging

from sandkasten_runtime.telemetry.log_events import LogEvents


def test_routine_events_are_debug_and_problems_are_warnings(caplog):
    caplog.set_level(logging.DEBUG, "sandkasten")
    LogEvents().emit("sandbox.created", {"sandbox": "sbx_1"})
    LogEvents().emit("sandbox.lost", {"sandbox": "sbx_1", "backend": "local"})
    assert [(r.levelname, r.getMessage()) for r in caplog.records] == [
        ("DEBUG", "sandbox.created"),
        ("WARNING", "sandbox.lost"),
    ]
    assert caplog.records[1].__dict__["sandkasten"] == {"sandbox": "sbx_1", "backend": "local"}


def test_a_warm_sandbox_that_could_not_be_created_is_not_a_warning(caplog):
    caplog.set_level(logging.DEBUG, "sandkasten")
    LogEvents().emit("sandbox.spare_failed", {"backend": "local", "error": "QUOTA_EXCEEDED"})
    assert caplog.records[0].levelname == "DEBUG"


def test_a_field_cannot_forge_a_line(caplog):
    caplog.set_level(logging.DEBUG, "sandkasten")
    LogEvents().emit("sandbox.created", {"image": "x\nERROR forged %s"})
    assert caplog.records[0].getMessage() == "sandbox.created"
