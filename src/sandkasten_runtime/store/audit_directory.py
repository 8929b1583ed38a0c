"""The audit log of a data directory. Implements `ports.AuditLog`.

A record is written (not synced) before `record` returns, which the death of the process does not
undo; `record_lasting` also waits for the disk, and `record_soon` for nothing: a thread writes it
with others. When another process holds the log or the disk is full, records wait in memory,
bounded, and are written in the background. The files are closed when nothing was written for a
moment, so that an idle process does not keep the disk of the data directory busy.
"""

from __future__ import annotations

import asyncio
import contextlib
import errno
import logging
from collections import deque
from typing import TYPE_CHECKING, Final

from sandkasten.errors import InternalError, QuotaExceeded, SandkastenError
from sandkasten.lazy_dataclass import dataclass
from sandkasten_runtime.store.audit_segments import (
    LOCK_S,
    SEGMENT_BYTES,
    AuditSegments,
    LockHeldError,
)

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Sequence
    from pathlib import Path

    from sandkasten.model.audit_records import AuditFilter, AuditHead, AuditReport, AuditRow
    from sandkasten.ports import AuditNote
    from sandkasten_runtime.store.audit_segments import AuditPlace

log = logging.getLogger("sandkasten.audit")
MAX_BYTES: Final = 1 << 30
# Records that wait for the lock or for space; then the oldest are dropped and counted in the log.
_MOST_WAITING: Final = 10_000
_RETRY_S: Final = 1.0
# Long enough that a burst of short commands is one write, and each of them one record.
_SOON_S: Final = 0.05
_CLOSE_AFTER_S: Final = 1.0
_FULL: Final = frozenset({errno.ENOSPC, errno.EDQUOT, errno.EFBIG})


@dataclass(slots=True)
class _Waiting:
    row: AuditRow
    done: asyncio.Future[None] | None


class AuditDirectory:
    def __init__(
        self,
        path: Path,
        *,
        max_bytes: int = MAX_BYTES,
        keep_s: float | None = None,
        segment_bytes: int = SEGMENT_BYTES,
    ) -> None:
        """`keep_s`: records older than this are removed by `prune`."""
        self.path = path
        self._keep_s = keep_s
        self._files = AuditSegments(path, max_bytes=max_bytes, segment_bytes=segment_bytes)
        self._waiting: deque[_Waiting] = deque()
        self._draining: asyncio.Task[None] | None = None
        self._notes: list[AuditNote] = []
        self._timer: asyncio.TimerHandle | None = None
        self._unwritten = 0
        self._written_at = 0.0
        self._closer: asyncio.TimerHandle | None = None

    # ---- writing

    def record(self, row: AuditRow) -> None:
        """Append a record now if that needs no waiting, and else soon. Never raises."""
        if not self._waiting and self._files.mutex.acquire(blocking=False):
            notes = self._taken()
            rows = [*(note.row() for note in notes), row]
            try:
                self._files.append(rows, wait=False)
            except (OSError, LockHeldError):
                for earlier in rows[:-1]:
                    self._put(_Waiting(earlier, None))
            else:
                self._close_later()
                return
            finally:
                self._files.mutex.release()
        self._put(_Waiting(row, None))

    def record_soon(self, note: AuditNote) -> None:
        """Append a record a little later, together with others. Never raises."""
        self._notes.append(note)
        if self._timer is None:
            self._timer = asyncio.get_running_loop().call_later(_SOON_S, self._due)

    async def record_lasting(self, row: AuditRow) -> None:
        """Append a record and wait until it is on disk. Raise QuotaExceeded on a full disk."""
        done: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._put(_Waiting(row, done))
        await asyncio.shield(done)

    async def sync(self) -> AuditHead:
        """Write what waits and sync it. Return the newest record that is on disk; seq 0 if there is
        none.
        """
        await self.flush()
        return await asyncio.to_thread(self._files.sync)

    async def flush(self) -> None:
        """Wait until no record waits, or one could not be written."""
        self._due()
        if self._draining is not None:
            await asyncio.wait([self._draining], timeout=LOCK_S)

    async def aclose(self) -> None:
        """Write what waits and close the files. Twice is fine; a later record opens them again."""
        await self.flush()
        if self._draining is not None:
            self._draining.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                await self._draining
        if self._closer is not None:
            self._closer.cancel()
            self._closer = None
        if self._waiting:
            log.error("audit.lost", extra={"sandkasten": {"records": len(self._waiting)}})
            self._waiting.clear()
        with self._files.mutex:
            self._files.close()

    def _close_later(self) -> None:
        loop = asyncio.get_running_loop()
        self._written_at = loop.time()
        if self._closer is None:
            self._closer = loop.call_later(_CLOSE_AFTER_S, self._close_idle)

    def _close_idle(self) -> None:
        loop = asyncio.get_running_loop()
        idle_at = self._written_at + _CLOSE_AFTER_S
        if loop.time() < idle_at or not self._files.mutex.acquire(blocking=False):
            # At least a little later, for a thread that writes just now.
            self._closer = loop.call_at(max(idle_at, loop.time() + _SOON_S), self._close_idle)
            return
        self._closer = None
        try:
            self._files.close()
        finally:
            self._files.mutex.release()

    def _taken(self) -> list[AuditNote]:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        notes, self._notes = self._notes, []
        for note in notes:
            note.taken = True
        return notes

    def _due(self) -> None:
        if self._notes:
            self._start()

    def _put(self, entry: _Waiting) -> None:
        self._waiting.append(entry)
        if len(self._waiting) > _MOST_WAITING:
            self._drop_oldest()
        self._start()

    def _start(self) -> None:
        if self._draining is None or self._draining.done():
            self._draining = asyncio.get_running_loop().create_task(self._drain())

    def _drop_oldest(self) -> None:
        dropped = self._waiting.popleft()
        if dropped.done is not None and not dropped.done.done():
            dropped.done.set_exception(_full())
        self._unwritten += 1
        if self._unwritten % _MOST_WAITING == 1:
            log.error("audit.lost", extra={"sandkasten": {"records": self._unwritten}})

    async def _drain(self) -> None:
        reported = False
        while self._waiting or self._notes:
            notes, batch = self._taken(), list(self._waiting)
            self._waiting.clear()
            lasting = any(entry.done is not None for entry in batch)
            rows: list[AuditRow] = []
            try:
                await asyncio.to_thread(self._write, notes, batch, rows, sync=lasting)
            except SandkastenError as exc:
                if not reported:
                    log.error(  # noqa: TRY400  (why it failed is in its code)
                        "audit.failed", extra={"sandkasten": {"why": exc.code}}
                    )
                    reported = True
                for entry in batch:
                    if entry.done is not None and not entry.done.done():
                        entry.done.set_exception(exc)
                # Those whose callers got an error are not tried again.
                again = [_Waiting(row, None) for row in rows[: len(notes)]]
                again += [entry for entry in batch if entry.done is None]
                self._waiting.extendleft(reversed(again))
                while len(self._waiting) > _MOST_WAITING:
                    self._drop_oldest()
                if self._waiting:
                    await asyncio.sleep(_RETRY_S)
                continue
            self._close_later()
            for entry in batch:
                if entry.done is not None and not entry.done.done():
                    entry.done.set_result(None)

    def _write(
        self,
        notes: Sequence[AuditNote],
        batch: Sequence[_Waiting],
        rows: list[AuditRow],
        *,
        sync: bool,
    ) -> None:
        """Append all of them; `rows` gets their records, those of the notes first."""
        rows += [note.row() for note in notes]
        rows += [entry.row for entry in batch]
        try:
            with self._files.mutex:
                self._files.append(rows, wait=True)
            if sync:
                self._files.sync()
        except OSError as exc:
            if exc.errno in _FULL:
                raise _full() from exc
            raise InternalError(
                f"the audit log cannot be written: {exc.strerror}",
                hint="check the disk and the owner of the data directory",
            ) from exc
        except LockHeldError as exc:
            raise InternalError(
                "another process holds the audit log",
                hint="look for a stopped process that uses the same data directory",
            ) from exc

    # ---- reading

    async def read(self, wanted: AuditFilter) -> Sequence[AuditRow]:
        """Return matching records, oldest first. Lines that are not records are left out."""
        await self.flush()
        return await asyncio.to_thread(self._files.read, wanted)

    async def lines(self) -> AsyncIterator[bytes]:
        """Yield the lines of the log as they are, in pieces, oldest first."""
        await self.flush()
        for number in await asyncio.to_thread(self._files.numbers):
            offset = 0
            while piece := await asyncio.to_thread(self._files.piece, number, offset):
                offset += len(piece)
                yield piece

    async def verify(self, heads: Sequence[AuditHead] = ()) -> AuditReport:
        """Check every record. `heads` are records that were seen before."""
        await self.flush()
        return await asyncio.to_thread(self._files.verify, heads)

    def place_of(self, seq: int) -> AuditPlace:
        """Return a place before the record with this number. Blocking."""
        return self._files.place_of(seq)

    def rows_after(self, place: AuditPlace) -> tuple[Sequence[AuditRow], AuditPlace]:
        """Return some records after a place, and the place after them; the same place at the end.
        Blocking.
        """
        return self._files.rows_after(place)

    async def prune(self, now: float) -> int:
        """Remove segments whose newest record is past its retention; return how many."""
        return await asyncio.to_thread(self._files.prune, now, self._keep_s)


def _full() -> QuotaExceeded:
    return QuotaExceeded(
        "the disk of the audit log is full, and the record was not written",
        hint="free space on the disk of the data directory",
        quota="disk",
    )
