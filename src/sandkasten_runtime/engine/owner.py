"""The process that created a sandbox."""

from __future__ import annotations

from typing import TYPE_CHECKING

from sandkasten.disk.process_identity import ProcessIdentity, is_gone

if TYPE_CHECKING:
    from sandkasten.model.sandbox.ledger_record import Record


def owner_gone(record: Record) -> bool:
    """Return True only if it is certain that the process that created the sandbox has ended."""
    return is_gone(ProcessIdentity(record.owner_pid, record.owner_start, record.boot_id))
