"""The ledger in PostgreSQL. Implements `ports.Store`.

Most sandboxes belong to the machine that runs them, so a daemon sees the rows of its own node;
names are locked across all of them. Rows of the backends in `shared` are seen by every daemon that
shares them too. Such a row is converted for its reader: ages count on the reader's clock since its
boot, and the process that creates a sandbox lives as long as its node is seen. The daemons divide
the upkeep of these sandboxes by leases (`shard_leases`).

`list` asks for the versions of the rows and reads only those that have changed. A row that cannot
be decoded is reported by `corrupt` and otherwise treated as missing.
"""

from __future__ import annotations

import hashlib
import time
from contextlib import nullcontext
from dataclasses import replace
from typing import TYPE_CHECKING, TypeAlias

from sandkasten.disk.process_identity import boot_id, this_process
from sandkasten.errors import Busy
from sandkasten.model.access.tenancy import TenantTally
from sandkasten.model.ids import SandboxId
from sandkasten_cluster_store.postgres.database_requirements import database_requirements
from sandkasten_cluster_store.postgres.postgres_database import ALIVE
from sandkasten_cluster_store.postgres.shard_leases import current_fence
from sandkasten_runtime.store.ledger_rows import decode_row, encode_row

if TYPE_CHECKING:
    from collections.abc import Sequence
    from contextlib import AbstractAsyncContextManager, AbstractContextManager

    from sandkasten.model.sandbox.ledger_record import Record
    from sandkasten.model.sandbox.readiness import Requirement
    from sandkasten_cluster_store.bucket.bucket_options import BucketOptions
    from sandkasten_cluster_store.postgres.postgres_database import PostgresDatabase, Row
    from sandkasten_cluster_store.postgres.shard_leases import ShardLeases

Ids: TypeAlias = "Sequence[SandboxId]"
Requirements: TypeAlias = "Sequence[Requirement]"
_PUT = """
INSERT INTO ledger (id, node, key_hash, created_at, row, shared) SELECT $1, $2, $3::bytea,
    $4::double precision, $5, $6::boolean
WHERE {held}
ON CONFLICT (id) DO UPDATE
SET node = excluded.node, key_hash = excluded.key_hash, row = excluded.row
WHERE ledger.node = excluded.node OR ledger.shared AND excluded.shared
"""
_VISIBLE = "(ledger.node = $1 OR ledger.shared AND $2)"
# The transaction that wrote a row last is its version, together with what decides about its owner.
_VERSION = f"ledger.xmin::text || {ALIVE.format(node='ledger.node')}::text AS version"
_VERSIONS = f"SELECT id, {_VERSION} FROM ledger WHERE {_VISIBLE} ORDER BY created_at, id"  # noqa: S608
_ROWS = f"""
SELECT id, node, row, {_VERSION}, {ALIVE.format(node="ledger.node")} AS alive
FROM ledger WHERE {_VISIBLE}
"""  # noqa: S608
_TALLY = f"""
SELECT count(*), coalesce(sum(memory_bytes), 0), coalesce(sum(disk_bytes), 0)
FROM ledger WHERE {_VISIBLE} AND counts_for = $3
"""  # noqa: S608
# Decoding a row takes 0.15 ms, in which the process does nothing else.
_READ_AT_ONCE = 500
# The wall clock was set if it moved by more than this against the boot time.
_CLOCK_STEP_S = 1.0
_DROP = f"DELETE FROM ledger WHERE {_VISIBLE} AND id = $3 AND {{held}}"  # noqa: S608
# Locks the lease, so that no other daemon takes it before the write is committed.
_LEASE = "(SELECT 1 FROM shards WHERE id = {} AND fence = {} AND until > now() FOR SHARE)"


class PostgresLedger:
    def __init__(
        self,
        database: PostgresDatabase,
        node: str,
        *,
        shared: frozenset[str] = frozenset(),
        leases: ShardLeases | None = None,
        owns_database: bool = False,
        bucket: BucketOptions | None = None,
    ) -> None:
        """`shared`: backends whose sandboxes every daemon can reach. `leases`: which of those this
        process looks after, none without it. `owns_database`: whether closing the ledger closes
        the database. `bucket`: that of stored files, for `extras`.
        """
        self._bucket = bucket
        self._database = database
        self._node = node
        self._shared = shared
        self._leases = leases
        self._mine = (node, bool(shared))
        self._booted_at = _booted_at()
        self._owns_database = owns_database
        self._known: dict[str, tuple[str, Record | None]] = {}
        self._listed: Sequence[Record] = ()
        self._refreshes = 0
        self._newest = 0
        """Which refresh the list is of: an older one that is late must not replace it."""

    async def put(self, record: Record) -> None:
        await self._write(
            _PUT,
            record.id,
            self._node,
            None if record.session_key is None else _hash(record.session_key),
            record.created_at,
            encode_row(record).decode(),
            record.backend in self._shared,
        )

    async def get(self, sandbox_id: SandboxId) -> Record | None:
        row = await self._database.fetch_one(_ROWS + "AND id = $3", *self._mine, sandbox_id)
        return None if row is None else self._decoded(row)

    async def find_key(self, session_key: str) -> Record | None:
        sql = _ROWS + "AND key_hash = $3 ORDER BY created_at DESC, id DESC"
        for row in await self._database.fetch(sql, *self._mine, _hash(session_key)):
            record = self._decoded(row)
            if record is not None and record.session_key == session_key:
                return record
        return None

    async def list(self) -> Sequence[Record]:
        await self._refresh()
        return self._listed

    async def drop(self, sandbox_id: SandboxId, record: Record | None = None) -> None:
        await self._write(_DROP, *self._mine, sandbox_id)

    async def _write(self, sql: str, *values: object) -> None:
        """Run a statement. Raise Busy if it is for a lease that this process has lost."""
        lease = current_fence()
        if lease is None:
            await self._database.execute(sql.format(held="true"), *values)
            return
        count = len(values)
        condition = "EXISTS " + _LEASE.format(f"${count + 1}", f"${count + 2}")
        fence = (lease.shard, lease.fence)
        if await self._database.execute(sql.format(held=condition), *values, *fence):
            return
        if not await self._database.fetch(_LEASE.format("$1", "$2"), *fence):
            raise Busy(
                "another daemon looks after this sandbox now", hint="it finishes what was begun"
            )

    async def tally(self, tenant: str) -> TenantTally:
        """Implement `ports.TalliesTenants`."""
        (counts,) = await self._database.fetch(_TALLY, *self._mine, tenant)
        return TenantTally(*map(int, counts))

    async def corrupt(self) -> Ids:
        await self._refresh()
        return [SandboxId(the_id) for the_id, (_, record) in self._known.items() if record is None]

    def lock(self, name: str, *, wait_s: float = 30.0) -> AbstractAsyncContextManager[None]:
        return self._database.locks.hold(name, wait_s)

    def shares(self, backend: str) -> bool:
        return backend in self._shared

    def tends(self, sandbox_id: str) -> bool:
        return self._leases is not None and self._leases.lease(sandbox_id) is not None

    def fenced(self, sandbox_id: str) -> AbstractContextManager[None]:
        return nullcontext() if self._leases is None else self._leases.fenced(sandbox_id)

    async def requirements(self) -> Requirements:
        return await database_requirements(self._database)

    async def extras(self) -> Requirements:
        if self._bucket is None:
            return ()
        from sandkasten_cluster_store.bucket.bucket_requirements import bucket_requirements

        return await bucket_requirements(self._bucket)

    async def aclose(self) -> None:
        if self._owns_database:
            await self._database.aclose()

    async def _refresh(self) -> None:
        # Rows that were converted by a clock that was wrong are read again.
        by = f" {self._boot_time()}"
        self._refreshes += 1
        number = self._refreshes
        versions = await self._database.fetch(_VERSIONS, *self._mine)
        before = self._known
        wanted = {
            row["id"] for row in versions if before.get(row["id"], ("",))[0] != row["version"] + by
        }
        if not wanted and len(versions) == len(before):
            return
        read: dict[str, tuple[str, Record | None]] = {}
        ids = [row["id"] for row in versions if row["id"] in wanted]
        for first in range(0, len(ids), _READ_AT_ONCE):
            some = ids[first : first + _READ_AT_ONCE]
            rows = await self._database.fetch(_ROWS + "AND id = ANY($3)", *self._mine, some)
            read |= {row["id"]: (row["version"] + by, self._decoded(row)) for row in rows}
        if number < self._newest:
            return
        self._newest = number
        # A row that was dropped after its version was read is left out.
        now = {**before, **dict.fromkeys(wanted), **read}
        pairs = ((row["id"], now.get(row["id"])) for row in versions)
        self._known = entries = {the_id: entry for the_id, entry in pairs if entry is not None}
        self._listed = tuple(record for _, record in entries.values() if record is not None)

    def _decoded(self, row: Row) -> Record | None:
        try:
            record = decode_row(row["row"].encode())
        except ValueError:
            return None
        if record.id != row["id"]:
            return None
        if record.backend not in self._shared:
            return record
        return self.converted(record, row["node"], alive=row["alive"])

    def _boot_time(self) -> float:
        """Return when this machine was started, by the wall clock. The same each time, or a row
        would have another age each time; unless the clock was set.
        """
        now = _booted_at()
        if abs(now - self._booted_at) > _CLOCK_STEP_S:
            self._booted_at = now
        return self._booted_at

    def converted(self, record: Record, node: str, *, alive: bool) -> Record:
        """Return a row of a node as if this machine had written it."""
        rebooted = record.boot_id != boot_id()
        if node != self._node:
            # Its processes cannot be looked up here. A live node stands for them.
            owner = this_process()
            pid, start = (owner.pid, owner.start) if alive else (0, 0)
            record = replace(record, owner_pid=pid, owner_start=start)
        elif rebooted:
            record = replace(record, owner_pid=0, owner_start=0)
        if not rebooted:
            return record
        since_boot_s = record.created_at - self._boot_time()
        return replace(record, boot_id=boot_id(), created_boottime=since_boot_s)


def _booted_at() -> float:
    return time.time() - time.clock_gettime(time.CLOCK_BOOTTIME)


def _hash(session_key: str) -> bytes:
    return hashlib.sha256(session_key.encode("utf-8", "surrogatepass")).digest()
