"""Removal continued after a killed removal."""

from __future__ import annotations

from sandkasten.model.ids import new_sandbox_id
from sandkasten_runtime.linux.confinement import id_ranges
from sandkasten_runtime.linux.sandbox_removal import remove
from sandkasten_runtime.linux.state_layout import Layout


def test_an_id_range_is_released_after_everything_else_is_gone(tmp_path):
    sandbox_id = new_sandbox_id()
    slot = id_ranges.lease(id_ranges.HOST_DIRECTORY, sandbox_id)
    try:
        remove(Layout(tmp_path), sandbox_id)
        assert id_ranges.slot_of(id_ranges.HOST_DIRECTORY, sandbox_id) is None
    finally:
        id_ranges.release(id_ranges.HOST_DIRECTORY, slot, sandbox_id)
