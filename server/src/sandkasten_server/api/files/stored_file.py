"""Stored files in responses, shared by the file store and by sessions."""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING

from sandkasten.errors import UnsupportedByBackend
from sandkasten.model.json_codec import to_json
from sandkasten_server.api.route import Answer

if TYPE_CHECKING:
    from sandkasten.model.journal_rows import StoredFile
    from sandkasten.ports import FileStore, MaxStoredBytes
    from sandkasten_server.api.request.http_call import Call


class File(Answer):
    key: str
    file_key: str
    size: int
    size_bytes: int
    content_type: str
    checksum: str
    created_at: str
    expires_at: str | None
    created_at_unix: float
    expires_at_unix: float | None
    metadata: dict[str, str]


def file_fields(row: StoredFile) -> dict[str, object]:
    fields = to_json(row)
    del fields["tenant"]
    return {**fields, "file_key": row.key, "size": row.size_bytes}


def max_stored_bytes(call: Call) -> MaxStoredBytes:
    """Return what the quota of the key leaves for the tenant's stored files."""
    return partial(call.engine.max_stored_bytes, call.principal.tenant, call.principal.quota)


def expiry_of(call: Call, ttl_s: float | None) -> float | None:
    return None if ttl_s is None else call.server.clock.now() + ttl_s


def store_of(call: Call) -> FileStore:
    if call.server.stores.files is None:
        raise UnsupportedByBackend(
            "this daemon has no file store", hint="use a daemon with a database"
        )
    return call.server.stores.files
