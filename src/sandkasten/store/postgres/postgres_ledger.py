"""The ledger in PostgreSQL. Implements `ports.Store`.

Sandboxes belong to the machine that runs them, so a daemon sees the rows of its own node; names
are locked across all of them. `list` asks for the versions of the rows and reads only those that
have changed. A row that cannot be decoded is reported by `corrupt` and otherwise treated as
missing.
"""

from __future__ import annotations

import hashlib
from typing import TYPE_CHECKING, TypeAlias

from sandkasten.model.ids import SandboxId
from sandkasten.store.ledger_rows import decode_row, encode_row

if TYPE_CHECKING:
    from collections.abc import Sequence
    from contextlib import AbstractAsyncContextManager

    from sandkasten.model.sandbox.ledger_record import Record
    from sandkasten.store.postgres.postgres_database import PostgresDatabase

Ids: TypeAlias = "Sequence[SandboxId]"
_PUT = """
INSERT INTO ledger (id, node, key_hash, created_at, row) VALUES ($1, $2, $3, $4, $5)
ON CONFLICT (id) DO UPDATE SET key_hash = excluded.key_hash, row = excluded.row
WHERE ledger.node = excluded.node
"""
# The transaction that wrote a row last is its version.
_VERSIONS = "SELECT id, xmin::text AS version FROM ledger WHERE node = $1 ORDER BY created_at, id"
_SOME = "SELECT id, xmin::text AS version, row FROM ledger WHERE node = $1 AND id = ANY($2)"
_BY_KEY = """
SELECT id, row FROM ledger WHERE node = $1 AND key_hash = $2 ORDER BY created_at DESC, id DESC
"""


class PostgresLedger:
    def __init__(
        self, database: PostgresDatabase, node: str, *, owns_database: bool = False
    ) -> None:
        """`owns_database`: whether closing the ledger closes the database."""
        self._database = database
        self._node = node
        self._owns_database = owns_database
        self._known: dict[str, tuple[str, Record | None]] = {}
        self._listed: Sequence[Record] = ()

    async def put(self, record: Record) -> None:
        await self._database.execute(
            _PUT,
            record.id,
            self._node,
            None if record.session_key is None else _hash(record.session_key),
            record.created_at,
            encode_row(record).decode(),
        )

    async def get(self, sandbox_id: SandboxId) -> Record | None:
        found = await self._database.fetch_one(
            "SELECT id, row FROM ledger WHERE node = $1 AND id = $2", self._node, sandbox_id
        )
        return None if found is None else _decoded(found["id"], found["row"])

    async def find_key(self, session_key: str) -> Record | None:
        for found in await self._database.fetch(_BY_KEY, self._node, _hash(session_key)):
            record = _decoded(found["id"], found["row"])
            if record is not None and record.session_key == session_key:
                return record
        return None

    async def list(self) -> Sequence[Record]:
        await self._refresh()
        return self._listed

    async def drop(self, sandbox_id: SandboxId, record: Record | None = None) -> None:
        await self._database.execute(
            "DELETE FROM ledger WHERE node = $1 AND id = $2", self._node, sandbox_id
        )

    async def corrupt(self) -> Ids:
        await self._refresh()
        return [SandboxId(one) for one, (_, record) in self._known.items() if record is None]

    def lock(self, name: str, *, wait_s: float = 30.0) -> AbstractAsyncContextManager[None]:
        return self._database.locks.hold(name, wait_s)

    async def aclose(self) -> None:
        if self._owns_database:
            await self._database.aclose()

    async def _refresh(self) -> None:
        versions = await self._database.fetch(_VERSIONS, self._node)
        before = self._known
        wanted = {
            row["id"] for row in versions if before.get(row["id"], ("",))[0] != row["version"]
        }
        if not wanted and len(versions) == len(before):
            return
        read = {}
        if wanted:
            found = await self._database.fetch(_SOME, self._node, [*wanted])
            read = {row["id"]: (row["version"], _decoded(row["id"], row["row"])) for row in found}
        # A row that was dropped after its version was read is left out.
        now = {**before, **dict.fromkeys(wanted), **read}
        pairs = ((row["id"], now.get(row["id"])) for row in versions)
        self._known = known = {the_id: one for the_id, one in pairs if one is not None}
        self._listed = tuple(record for _, record in known.values() if record is not None)


def _decoded(the_id: str, text: str) -> Record | None:
    try:
        record = decode_row(text.encode())
    except ValueError:
        return None
    return record if record.id == the_id else None


def _hash(session_key: str) -> bytes:
    return hashlib.sha256(session_key.encode("utf-8", "surrogatepass")).digest()
