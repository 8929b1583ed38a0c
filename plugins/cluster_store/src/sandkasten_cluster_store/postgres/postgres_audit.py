"""The audit log of several daemons, in PostgreSQL. Implements `ports.AuditLog`.

A record is first written to the files of its daemon (`store.audit_directory`), as without a
database: no command waits for the others, and a record survives while the database is unavailable.
A moment later it is copied to one chain in the database, once, with the name of its node. The
position of a node is committed together with its records. Reading and checking copy what waits
first. The newest hash is also kept in a file of each daemon, which a change in the database does
not reach.
"""

from __future__ import annotations

import asyncio
import logging
from contextlib import suppress
from dataclasses import replace
from typing import TYPE_CHECKING, Any, Final

from sandkasten.disk.atomic_file import write_file
from sandkasten.disk.os_errors import translated
from sandkasten.errors import SandkastenError
from sandkasten.model.audit_chain import CUT, ChainCheck, record_line, row_of_line
from sandkasten.model.audit_records import AuditHead, AuditRow
from sandkasten_cluster_store.postgres.postgres_database import text_of

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Sequence

    from sandkasten.model.audit_records import AuditFilter, AuditReport
    from sandkasten.ports import AuditNote
    from sandkasten_cluster_store.postgres.postgres_database import PostgresDatabase
    from sandkasten_runtime.store.audit_directory import AuditDirectory
    from sandkasten_runtime.store.audit_segments import AuditPlace

log = logging.getLogger("sandkasten.audit")
# A little longer than the files wait for further records.
_COPY_AFTER_S: Final = 0.1
_RETRY_S: Final = 5.0
_LINES: Final = 1000
_CUT_AT_ONCE: Final = 50_000
_KEPT: Final = "shared-head"
_COLUMNS: Final = (
    *("seq", "at", "tenant", "kind", "action", "target", "session_id", "key_id"),
    "line",
)
_HEAD = """
SELECT seq, hash, size_bytes,
       (SELECT value FROM state WHERE node = $1 AND name = 'audit_copied') AS copied
FROM audit_head FOR UPDATE
"""
_NEW_HEAD = """
WITH position AS (
    INSERT INTO state (node, name, value) VALUES ($1, 'audit_copied', $2)
    ON CONFLICT (node, name) DO UPDATE SET value = excluded.value
)
UPDATE audit_head SET seq = $3, hash = $4, size_bytes = size_bytes + $5
"""
_READ = """
SELECT line FROM audit WHERE seq > $1 AND ($2::double precision IS NULL OR at >= $2)
AND ($3::text IS NULL OR tenant = $3) AND ($4::text IS NULL OR kind = $4)
AND ($5::text IS NULL OR action = $5) AND ($6::text IS NULL OR target = $6)
AND ($7::text IS NULL OR session_id = $7) AND ($8::text IS NULL OR key_id = $8)
ORDER BY seq {} LIMIT $9
"""
# The last of the oldest records that are all past their age, or more than the size allows. The
# newest record always stays: the next one follows it.
_LAST_TO_CUT = """
SELECT coalesce(min(seq) FILTER (WHERE at >= $3 AND before >= $4) - 1, max(seq))
FROM (SELECT seq, at, sum(octet_length(line)) OVER (ORDER BY seq) - octet_length(line) AS before
      FROM audit WHERE seq < $1 ORDER BY seq LIMIT $2) AS oldest
"""


class PostgresAudit:
    def __init__(
        self,
        database: PostgresDatabase,
        node: str,
        files: AuditDirectory,
        *,
        max_bytes: int,
        keep_s: float,
    ) -> None:
        """`files`: the log of this daemon, from which records are copied."""
        self._database = database
        self._node = node
        self._files = files
        self._max_bytes = max_bytes
        self._keep_s = keep_s
        self._place: AuditPlace | None = None
        self._head: AuditHead | None = None
        self._kept_head: AuditHead | None = None
        self._turn = asyncio.Lock()
        self._timer: asyncio.TimerHandle | None = None
        self._copying: asyncio.Task[None] | None = None

    # ---- writing

    def record(self, row: AuditRow) -> None:
        self._files.record(row)
        self._copy_later(_COPY_AFTER_S)

    def record_soon(self, note: AuditNote) -> None:
        self._files.record_soon(note)
        self._copy_later(_COPY_AFTER_S)

    async def record_lasting(self, row: AuditRow) -> None:
        await self._files.record_lasting(row)
        self._copy_later(_COPY_AFTER_S)

    async def sync(self) -> AuditHead:
        """Sync the files and copy their records. Return the newest record that this daemon has
        copied, or found at its start, and keep it in a file. Without new records, the database is
        not asked.
        """
        await self._files.sync()
        await self._copy()
        head = self._head
        if head is None:
            self._head = head = await self._newest()
        if head.seq and head != self._kept_head:
            await asyncio.to_thread(self._keep, head)
            self._kept_head = head
        return head

    async def _newest(self) -> AuditHead:
        row = await self._database.fetch_one("SELECT seq, hash FROM audit_head")
        assert row is not None
        return AuditHead(row["seq"], row["hash"])

    async def aclose(self) -> None:
        """Write and copy what waits. What cannot be copied now is copied after the next start."""
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        if self._copying is not None:
            self._copying.cancel()
            await asyncio.wait([self._copying])
        await self._files.flush()
        with suppress(SandkastenError):
            await self._copy()
        await self._files.aclose()

    def _copy_later(self, after_s: float) -> None:
        if self._timer is None and (self._copying is None or self._copying.done()):
            self._timer = asyncio.get_running_loop().call_later(after_s, self._start)

    def _start(self) -> None:
        self._timer = None
        self._copying = asyncio.get_running_loop().create_task(self._copy_quietly())

    async def _copy_quietly(self) -> None:
        try:
            await self._copy()
        except (SandkastenError, OSError) as exc:
            log.warning("audit.uncopied", extra={"sandkasten": {"why": repr(exc)}})
            self._copying = None
            self._copy_later(_RETRY_S)

    async def _copy(self) -> None:
        """Copy the records of this daemon that are not in the database yet."""
        await self._files.flush()
        async with self._turn:
            if self._place is None:
                self._place = await self._found_place()
            while True:
                rows, place = await asyncio.to_thread(self._files.rows_after, self._place)
                if place == self._place:
                    return
                if rows:
                    await self._append(rows)
                self._place = place

    async def _found_place(self) -> AuditPlace:
        sql = "SELECT value FROM state WHERE node = $1 AND name = 'audit_copied'"
        row = await self._database.fetch_one(sql, self._node)
        copied = 0 if row is None else int(row["value"])
        return await asyncio.to_thread(self._files.place_of, copied + 1)

    async def _append(self, rows: Sequence[AuditRow]) -> None:
        async with self._database.transaction() as connection:
            newest = await connection.fetchrow(_HEAD, self._node)
            # After an answer that was lost, they may be there.
            new = [row for row in rows if row.seq > int(newest["copied"] or 0)]
            if new:
                named = [replace(row, detail={**row.detail, "node": self._node}) for row in new]
                head = AuditHead(newest["seq"], newest["hash"])
                head = await _write(connection, named, head, self._node, new[-1].seq)
        if new:
            self._head = head

    # ---- reading

    async def read(self, wanted: AuditFilter) -> Sequence[AuditRow]:
        """Return matching records of all daemons, oldest first."""
        await self._copy()
        names = (wanted.tenant, wanted.kind, wanted.action, wanted.target)
        records = await self._database.fetch(
            _READ.format("DESC" if wanted.newest else ""),
            wanted.since_seq,
            wanted.since,
            *(name and text_of(name) for name in (*names, wanted.session_id, wanted.key_id)),
            wanted.limit,
        )
        rows = []
        for record in records:
            with suppress(ValueError):
                rows.append(row_of_line(bytes(record["line"])))
        rows = [row for row in rows if wanted.matches(row)]
        return rows[::-1] if wanted.newest else rows

    async def lines(self) -> AsyncIterator[bytes]:
        await self._copy()
        async for lines in self._pages():
            yield b"".join(lines)

    async def verify(self, heads: Sequence[AuditHead] = ()) -> AuditReport:
        """Check every record of all daemons, and the files of this one."""
        await self._copy()
        local_report = await self._files.verify()
        stored_heads = await asyncio.to_thread(self._kept)
        end = await self._newest()
        check = ChainCheck([*heads, *stored_heads, end])
        async for lines in self._pages(end.seq):
            for line in lines:
                if not check.add(line):
                    return check.report()
        report = check.report()
        if report.ok and local_report.flaw is not None:
            message = f"in the files of this daemon: {local_report.flaw.message}"
            return replace(report, ok=False, flaw=replace(local_report.flaw, message=message))
        return report

    async def _pages(self, last: int = (1 << 63) - 1) -> AsyncIterator[Sequence[bytes]]:
        sql = "SELECT seq, line FROM audit WHERE seq > $1 AND seq <= $2 ORDER BY seq LIMIT $3"
        after = -(1 << 63)
        while rows := await self._database.fetch(sql, after, last, _LINES):
            after = rows[-1]["seq"]
            yield [bytes(row["line"]) for row in rows]

    # ---- upkeep

    async def prune(self, now: float) -> int:
        """Remove records past their retention; return how many segments of files were removed."""
        removed = await self._files.prune(now)
        async with self._database.transaction() as connection:
            newest = await connection.fetchrow(_HEAD, self._node)
            excess = newest["size_bytes"] - self._max_bytes
            last = await connection.fetchval(
                _LAST_TO_CUT, newest["seq"], _CUT_AT_ONCE, now - self._keep_s, max(0, excess)
            )
            line = await connection.fetchval("SELECT line FROM audit WHERE seq = $1", last)
            if line is None:
                return removed
            try:
                hashed = row_of_line(bytes(line)).hash
            except ValueError:
                # It was changed: what `verify` reports is not removed.
                log.warning("audit.uncut", extra={"sandkasten": {"seq": last}})
                return removed
            why = "size" if excess > 0 else "age"
            detail = {"through_seq": str(last), "hash": hashed, "why": why}
            row = AuditRow(0, now, "", None, CUT, "audit", "ok", detail=detail, kind="audit")
            head = AuditHead(newest["seq"], newest["hash"])
            await _write(connection, [row], head, self._node, int(newest["copied"] or 0))
            await connection.execute(
                "WITH gone AS (DELETE FROM audit WHERE seq <= $1 RETURNING octet_length(line) AS n)"
                " UPDATE audit_head SET size_bytes = size_bytes - (SELECT sum(n) FROM gone)",
                last,
            )
        log.info("audit.cut", extra={"sandkasten": detail})
        return removed

    def _keep(self, head: AuditHead) -> None:
        with translated("keep the newest hash of the audit log"):
            self._files.path.mkdir(mode=0o700, parents=True, exist_ok=True)
            write_file(self._files.path / _KEPT, f"{head.seq} {head.hash}\n".encode())

    def _kept(self) -> Sequence[AuditHead]:
        try:
            seq, _, hashed = (self._files.path / _KEPT).read_text("ascii").strip().partition(" ")
            return [AuditHead(int(seq), hashed)]
        except (OSError, ValueError):
            return ()


async def _write(
    connection: Any, rows: Sequence[AuditRow], head: AuditHead, node: str, copied: int
) -> AuditHead:
    """Append rows; return the new head. The caller has locked it."""
    records, size = [], 0
    for row in rows:
        line, head = record_line(row, head)
        size += len(line)
        texts = (row.tenant, row.kind, row.action, row.target, row.session_id, row.key_id)
        records.append((head.seq, row.at, *(text and text_of(text) for text in texts), line))
    await connection.copy_records_to_table("audit", records=records, columns=_COLUMNS)
    await connection.execute(_NEW_HEAD, node, str(copied), head.seq, head.hash, size)
    return head
