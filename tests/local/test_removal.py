"""What a remover that was killed leaves to the next one."""

from __future__ import annotations

from sandkasten.linux import idranges
from sandkasten.linux.layout import Layout
from sandkasten.linux.removal import remove
from sandkasten.model.ids import new_sandbox_id


def test_an_id_range_is_given_back_though_everything_else_is_gone_already(tmp_path):
    sandbox_id = new_sandbox_id()
    slot = idranges.lease(idranges.HOST_DIRECTORY, sandbox_id)
    try:
        remove(Layout(tmp_path), sandbox_id)
        assert idranges.slot_of(idranges.HOST_DIRECTORY, sandbox_id) is None
    finally:
        idranges.release(idranges.HOST_DIRECTORY, slot, sandbox_id)
