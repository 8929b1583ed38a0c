"""The place of a sandbox on a platform that has several: see `ports.Places`."""

from __future__ import annotations

from typing import TYPE_CHECKING

from sandkasten.ports import Places

if TYPE_CHECKING:
    from sandkasten.model.sandbox.ledger_record import Record
    from sandkasten.ports import Backend


def tenant_place(backend: Backend, tenant: str) -> str:
    """Return the place of a tenant's new sandboxes; empty if there is only one."""
    return backend.place(tenant) if isinstance(backend, Places) else ""


def located(backend: Backend, record: Record) -> Backend:
    """Return the backend, which now knows where the sandbox of this row is."""
    if record.place and isinstance(backend, Places):
        backend.note_place(record.id, record.place)
    return backend
