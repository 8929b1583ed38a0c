"""Runs of agents and workflows in PostgreSQL, shared by all daemons. Implements `ports.Runs`.

A call that returns is committed. A claim is a lock of the database's session, and ends with the
process that holds it. `changed` is woken by notices, and also checks every second, because a notice
may be lost.
"""

from __future__ import annotations

import asyncio
import json
import time
from contextlib import AbstractAsyncContextManager, suppress
from typing import TYPE_CHECKING, Any, Final, TypeAlias
from weakref import WeakValueDictionary

from sandkasten.errors import Busy, Conflict, RunNotFound
from sandkasten.model.runs.run_values import RunEvent, RunRow
from sandkasten_runtime.store.run_rows import (
    PAGE_BYTES,
    RUN_ID,
    checked_run_id,
    decode_run,
    encode_run,
    plain_json,
)

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence
    from types import TracebackType

    from sandkasten.model.runs.run_values import RunKind
    from sandkasten_cluster_store.postgres.advisory_locks import AdvisoryHolder
    from sandkasten_cluster_store.postgres.postgres_database import PostgresDatabase

Rows: TypeAlias = "Sequence[RunRow]"
_TOPIC: Final = "run"
_LOOK_EVERY_S: Final = 1.0

_BEGIN = """
INSERT INTO runs (id, tenant, kind, status, created_at, ended_at, row)
VALUES ($1, $2, $3, $4, $5, $6, $7) ON CONFLICT (id) DO NOTHING RETURNING id
"""
_SAVE = """
UPDATE runs SET tenant = $2, kind = $3, status = $4, created_at = $5, ended_at = $6, row = $7
WHERE id = $1 RETURNING pg_notify($8, $9)
"""
_LIST = """
SELECT id, octet_length(row) AS size FROM runs
WHERE ($1::text IS NULL OR tenant = $1) AND ($2::text IS NULL OR kind = $2)
AND ($3::text IS NULL OR status = $3)
AND ($4::text IS NULL OR (created_at, id) < (SELECT last.created_at, last.id FROM runs last
WHERE last.id = $4 AND ($1::text IS NULL OR last.tenant = $1)))
ORDER BY created_at DESC, id DESC LIMIT $5
"""
# The row of the run gives each event its number, and makes writers wait for each other.
_NOTE = """
WITH run AS (UPDATE runs SET last_seq = last_seq + 1 WHERE id = $1 RETURNING last_seq)
INSERT INTO run_events (run_id, seq, at, type, data) SELECT $1, last_seq, $2, $3, $4 FROM run
RETURNING seq, pg_notify($5, $6)
"""


class PostgresRuns:
    def __init__(self, database: PostgresDatabase) -> None:
        self._database = database
        # Only those that a call waits for.
        self._changes: WeakValueDictionary[str, asyncio.Event] = WeakValueDictionary()
        database.subscribe(_TOPIC, self._heard)

    async def begin(self, row: RunRow) -> None:
        checked_run_id(row.id)
        if not await self._database.write(_BEGIN, *_values(row)):
            raise Conflict(f"run {row.id} already exists", hint="ask again")

    async def save(self, row: RunRow) -> None:
        checked_run_id(row.id)
        notice = self._database.notice(_TOPIC, row.id)
        if not await self._database.write(_SAVE, *_values(row), *notice):
            raise _no_run(row.id)

    async def get(self, run_id: str) -> RunRow | None:
        if not RUN_ID.match(run_id):
            return None
        row = await self._database.fetch_one("SELECT row FROM runs WHERE id = $1", run_id)
        return None if row is None else _decoded(run_id, row["row"])

    async def list(
        self,
        tenant: str | None,
        *,
        kind: RunKind | None = None,
        status: str | None = None,
        limit: int = 100,
        before: str | None = None,
    ) -> Rows:
        if before is not None and not RUN_ID.match(before):
            return ()
        ids: list[str] = []
        size = 0
        for entry in await self._database.fetch(_LIST, tenant, kind, status, before, limit):
            size += entry["size"]
            if ids and size > PAGE_BYTES:
                break
            ids.append(entry["id"])
        fetched = await self._database.fetch("SELECT id, row FROM runs WHERE id = ANY($1)", ids)
        rows = {row["id"]: _decoded(row["id"], row["row"]) for row in fetched}
        return [row for row in map(rows.get, ids) if row is not None]

    async def note(self, run_id: str, type: str, data: Mapping[str, Any]) -> RunEvent:
        checked_run_id(run_id)
        at = time.time()
        written = json.dumps(data, default=plain_json)
        notice = self._database.notice(_TOPIC, run_id)
        rows = await self._database.write(_NOTE, run_id, at, type, written, *notice)
        if not rows:
            raise _no_run(run_id)
        return RunEvent(rows[0]["seq"], at, type, data)

    async def events(
        self, run_id: str, *, since_seq: int = 0, limit: int = 1000
    ) -> Sequence[RunEvent]:
        if not RUN_ID.match(run_id):
            return ()
        rows = await self._database.fetch(
            "SELECT seq, at, type, data FROM run_events WHERE run_id = $1 AND seq > $2"
            " ORDER BY seq LIMIT $3",
            run_id,
            since_seq,
            limit,
        )
        return [
            RunEvent(row["seq"], row["at"], row["type"], json.loads(row["data"])) for row in rows
        ]

    async def changed(self, run_id: str, since_seq: int, timeout_s: float) -> bool:
        if not RUN_ID.match(run_id):
            return False
        deadline = time.monotonic() + timeout_s
        while True:
            # Created before the check, so that no change after it is missed.
            change = self._changes.setdefault(run_id, asyncio.Event())
            if await self._has_news(run_id, since_seq):
                return True
            left_s = deadline - time.monotonic()
            if left_s <= 0:
                return False
            with suppress(TimeoutError):
                async with asyncio.timeout(min(left_s, _LOOK_EVERY_S)):
                    await change.wait()

    def claim(self, run_id: str) -> _RunClaim:
        return _RunClaim(self._database, checked_run_id(run_id))

    async def prune(self, before: float) -> int:
        rows = await self._database.fetch("SELECT id FROM runs WHERE ended_at < $1", before)
        removed = 0
        for row in rows:
            async with self.claim(row["id"]) as is_claimed:
                if is_claimed:
                    removed += await self._database.execute(
                        "DELETE FROM runs WHERE id = $1", row["id"]
                    )
        return removed

    async def _has_news(self, run_id: str, since_seq: int) -> bool:
        row = await self._database.fetch_one(
            "SELECT last_seq > $2 OR ended_at IS NOT NULL AS news FROM runs WHERE id = $1",
            run_id,
            since_seq,
        )
        return row is None or bool(row["news"])

    def _heard(self, run_id: str) -> None:
        """Wake the waiters of a run, or all with an empty id; each wait has a new event."""
        names = [run_id] if run_id else [*self._changes]
        for name in names:
            waiting = self._changes.pop(name, None)
            if waiting is not None:
                waiting.set()


class _RunClaim(AbstractAsyncContextManager[bool]):
    """Implements `ports.RunClaim`."""

    def __init__(self, database: PostgresDatabase, run_id: str) -> None:
        self._database = database
        self._run_id = run_id
        self._held: AdvisoryHolder | None = None

    @property
    def is_lost(self) -> bool:
        return self._held is not None and self._held.is_lost

    async def __aenter__(self) -> bool:
        lock = self._database.locks.hold(f"run:{self._run_id}", 0)
        try:
            await lock.__aenter__()
        except Busy:
            return False
        self._held = lock
        sql = "SELECT 1 FROM runs WHERE id = $1"
        try:
            there = await self._database.fetch_one(sql, self._run_id) is not None
        except BaseException:
            await self.__aexit__(None, None, None)
            raise
        if not there:
            await self.__aexit__(None, None, None)
        return there

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        lock, self._held = self._held, None
        if lock is not None:
            await lock.__aexit__(kind, error, trace)


def _values(row: RunRow) -> tuple[Any, ...]:
    ended_at = (row.ended_at or row.created_at) if row.ended else None
    text = encode_run(row).decode()
    return row.id, row.tenant, row.kind, row.status, row.created_at, ended_at, text


def _decoded(run_id: str, text: str) -> RunRow | None:
    try:
        row = decode_run(text.encode())
    except (ValueError, TypeError, KeyError, RecursionError):
        return None
    return row if row.id == run_id else None


def _no_run(run_id: str) -> RunNotFound:
    return RunNotFound(
        f"there is no run {run_id}", hint="it may have been removed after its retention time"
    )
