"""One SQLite connection, owned by one thread; other threads submit work and await the result.

Writers that wait at the same time share one transaction (group commit); a failing job does not
affect the others. A result means committed. The file is opened exactly once: SQLite before 3.51.3
can damage a WAL that several connections write. So the connection locks the file exclusively (which
also avoids the shared-memory file), a second one in this process is refused, and the daemon's lock
excludes our other processes before that.

Durability: a WAL is written before COMMIT returns, so the death of the process loses nothing at any
setting. `synchronous=NORMAL` omits the fsync, and a power failure may then lose the last commits
but never the file's integrity. That is enough for sessions and commands, none of which survives the
machine. Keys, audit rows and stored files do, so their batch is committed with `synchronous=FULL`;
a batch costs one fsync for all its writers.

Raises QuotaExceeded when the disk is full (the row is not written, and a retry may succeed),
StoreUnusable when the file cannot be used, InternalError otherwise.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import os
import queue
import sqlite3
import threading
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, Final, TypeVar

from sandkasten.errors import InternalError, QuotaExceeded, SandkastenError, StoreUnusable
from sandkasten.lazy_dataclass import dataclass
from sandkasten_server.records.sqlite.schema import migrate, version_of

if TYPE_CHECKING:
    from pathlib import Path

T = TypeVar("T")
Work = Callable[[sqlite3.Connection], T]

log = logging.getLogger("sandkasten.store")
# More than wait at once in practice; limits how long the first of them waits.
_MOST_IN_ONE: Final = 256
# The file is locked only while another process reads it, which should not happen.
_BUSY_MS: Final = 5000
# After a burst the WAL is truncated to this size at the next checkpoint.
_WAL_BYTES: Final = 64 << 20

_open_here: Final[set[str]] = set()
_open_lock: Final = threading.Lock()
# SQLite reports a full disk by its own code only if write(2) did; a quota or a file that could not
# grow is an I/O error, so then we check the free space.
_NO_ROOM_BYTES: Final = 1 << 20
_DAMAGED: Final = frozenset({sqlite3.SQLITE_CORRUPT, sqlite3.SQLITE_NOTADB})
_HELD: Final = frozenset({sqlite3.SQLITE_BUSY, sqlite3.SQLITE_LOCKED})


@dataclass(slots=True)
class _DatabaseJob:
    work: Work[Any]
    future: asyncio.Future[Any]
    writes: bool
    lasting: bool
    result: Any = None
    error: BaseException | None = None


class Database:
    """Create with `open`. `read` and `write` may be called from any task of one event loop."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self._jobs: queue.SimpleQueue[_DatabaseJob | None] = queue.SimpleQueue()
        self._thread = threading.Thread(target=self._serve, name=f"sqlite {path.name}", daemon=True)
        self._loop = asyncio.get_running_loop()
        self._opened: asyncio.Future[None] = self._loop.create_future()
        self._closed = False
        self._connection: sqlite3.Connection
        self._full = False
        self._marked = False

    @classmethod
    async def open(cls, path: Path) -> Database:
        """Open the file, migrate it, and check it after a crash. The caller holds the lock of
        the data directory.
        """
        database = cls(path)
        database._thread.start()
        await asyncio.shield(database._opened)
        return database

    def submit(self, work: Work[T], *, lasting: bool = False) -> asyncio.Future[T]:
        """Submit a write without waiting for it. Work is done in order.

        `work` may run again if its batch failed, so it must change nothing but rows.
        """
        return self._hand_in(work, writes=True, lasting=lasting)

    async def write(self, work: Work[T], *, lasting: bool = False) -> T:
        """Return the result of `work`, committed. Cancelling the caller does not undo the write."""
        return await self.submit(work, lasting=lasting)

    async def read(self, work: Work[T]) -> T:
        """Return the result of `work`, which sees every write submitted before."""
        return await self._hand_in(work, writes=False, lasting=False)

    async def aclose(self) -> None:
        """Close after all submitted work is done. Twice is fine."""
        if not self._closed:
            self._closed = True
            self._jobs.put(None)
        await asyncio.to_thread(self._thread.join)

    def _hand_in(self, work: Work[T], *, writes: bool, lasting: bool) -> asyncio.Future[T]:
        future: asyncio.Future[T] = self._loop.create_future()
        if self._closed:
            future.set_exception(
                InternalError("the database is closed", hint="the daemon is stopping; try again")
            )
        else:
            self._jobs.put(_DatabaseJob(work, future, writes, lasting))
        return future

    # ---- the thread

    def _serve(self) -> None:
        try:
            self._open()
        except BaseException as exc:  # noqa: BLE001  (raised to the opener)
            self._tell(self._refuse, exc)
            return
        self._tell(self._opened.set_result, None)
        while self._round():
            pass
        self._close()

    def _round(self) -> bool:
        """Run one batch. Return whether there will be another."""
        batch: list[_DatabaseJob] = []
        going_on = True
        job = self._jobs.get()
        while True:
            if job is None:
                going_on = False
                break
            batch.append(job)
            if len(batch) == _MOST_IN_ONE:
                break
            try:
                job = self._jobs.get_nowait()
            except queue.Empty:
                break
        self._do(batch)
        if batch:
            self._tell(_settle, batch)
        return going_on

    def _do(self, batch: list[_DatabaseJob]) -> None:
        writers: list[_DatabaseJob] = []
        for job in batch:
            if job.writes:
                writers.append(job)
                continue
            self._commit(writers)
            writers = []
            try:
                job.result = job.work(self._connection)
            except BaseException as exc:  # noqa: BLE001  (raised where it is awaited)
                job.error = self._translated(exc)
        self._commit(writers)

    def _commit(self, jobs: list[_DatabaseJob]) -> None:
        """Commit all jobs in one transaction; if the disk refuses, each in a separate one."""
        if not jobs:
            return
        connection = self._connection
        try:
            self._synchronous(full=any(job.lasting for job in jobs))
            connection.execute("BEGIN IMMEDIATE")
            if not self._marked:
                connection.execute("UPDATE state SET value = 'no' WHERE name = 'clean'")
            for job in jobs:
                self._inside(job)
            connection.execute("COMMIT")
            self._marked = True
        except BaseException as exc:  # noqa: BLE001  (raised where it is awaited)
            with contextlib.suppress(sqlite3.Error):
                if connection.in_transaction:
                    connection.execute("ROLLBACK")
            if len(jobs) == 1:
                jobs[0].result, jobs[0].error = None, self._translated(exc)
                return
            for job in jobs:
                job.result = job.error = None
                self._commit([job])

    def _inside(self, job: _DatabaseJob) -> None:
        """Run a job. If it fails by itself, undo only its own rows."""
        connection = self._connection
        connection.execute("SAVEPOINT job")
        try:
            job.result = job.work(connection)
        except BaseException as exc:
            if ends_the_batch(exc) or not connection.in_transaction:
                raise
            connection.execute("ROLLBACK TO job")
            job.error = self._translated(exc)
        connection.execute("RELEASE job")

    def _synchronous(self, *, full: bool) -> None:
        if full is not self._full:
            self._connection.execute(f"PRAGMA synchronous = {'FULL' if full else 'NORMAL'}")
            self._full = full

    def _open(self) -> None:
        name = os.path.realpath(self.path)
        with _open_lock:
            if name in _open_here:
                raise held(self.path)
            _open_here.add(name)
        try:
            self._connection = _connect(self.path)
        except sqlite3.Error as exc:
            _forget(name)
            raise translated(exc, self.path) from exc
        except OSError as exc:
            _forget(name)
            raise InternalError(
                f"the database {self.path} cannot be opened: {exc.strerror}",
                hint="check that the data directory is there and belongs to this user",
            ) from exc
        except BaseException:
            _forget(name)
            raise

    def _close(self) -> None:
        connection = self._connection
        try:
            if self._marked:
                self._synchronous(full=True)
                connection.execute("UPDATE state SET value = 'yes' WHERE name = 'clean'")
        except sqlite3.Error as exc:
            # Otherwise the next open takes the time to check the file; nothing is lost.
            log.warning("store.close", extra={"sandkasten": {"trouble": repr(exc)}})
        finally:
            connection.close()
            _forget(os.path.realpath(self.path))

    def _translated(self, exc: BaseException) -> BaseException:
        if not isinstance(exc, sqlite3.Error):
            return exc
        error = translated(exc, self.path)
        error.__cause__ = exc
        if not isinstance(error, QuotaExceeded):
            log.error("store.failed", extra={"sandkasten": {"trouble": repr(exc)}})
        return error

    def _refuse(self, exc: BaseException) -> None:
        self._closed = True
        self._opened.set_exception(exc)

    def _tell(self, function: Callable[[Any], None], value: object) -> None:
        # A closed loop has no task left that waits for the result.
        with contextlib.suppress(RuntimeError):
            self._loop.call_soon_threadsafe(function, value)


def _settle(batch: list[_DatabaseJob]) -> None:
    for job in batch:
        if job.future.done():  # Cancelled: the caller has left.
            continue
        if job.error is not None:
            job.future.set_exception(job.error)
        else:
            job.future.set_result(job.result)


def _connect(path: Path) -> sqlite3.Connection:
    if not path.exists():
        # Created here and not by SQLite, which would let other users read it.
        os.close(os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW, 0o600))
    connection = sqlite3.connect(path, isolation_level=None, timeout=_BUSY_MS / 1000)
    try:
        for pragma in (
            "locking_mode = EXCLUSIVE",
            f"busy_timeout = {_BUSY_MS}",
            "journal_mode = WAL",
            "synchronous = NORMAL",
            f"journal_size_limit = {_WAL_BYTES}",
            "foreign_keys = ON",
            "trusted_schema = OFF",
            "temp_store = MEMORY",
        ):
            connection.execute(f"PRAGMA {pragma}").fetchall()
        if version_of(connection) > 0:
            _check_after_crash(connection, path)
        migrate(connection)
    except BaseException:
        connection.close()
        raise
    return connection


def _check_after_crash(connection: sqlite3.Connection, path: Path) -> None:
    clean = connection.execute("SELECT value FROM state WHERE name = 'clean'").fetchone()
    if clean == ("yes",):
        return
    problems = connection.execute("PRAGMA integrity_check(5)").fetchall()
    if problems != [("ok",)]:
        raise damaged(path, "; ".join(str(row[0]) for row in problems)[:300])


def _forget(name: str) -> None:
    with _open_lock:
        _open_here.discard(name)


def ends_the_batch(exc: BaseException) -> bool:
    """Return whether the error concerns the disk or the file and not only the one statement."""
    return isinstance(exc, sqlite3.Error) and not isinstance(
        exc, sqlite3.IntegrityError | sqlite3.ProgrammingError | sqlite3.DataError
    )


def translated(exc: sqlite3.Error, path: Path) -> SandkastenError:
    primary = getattr(exc, "sqlite_errorcode", 0) & 0xFF
    name = getattr(exc, "sqlite_errorname", type(exc).__name__)
    if primary == sqlite3.SQLITE_FULL or (primary == sqlite3.SQLITE_IOERR and _is_full(path)):
        return QuotaExceeded(
            "the disk of the daemon's database is full, and nothing was written",
            hint="free space on the disk of db_path and retry; no restart is needed",
            quota="disk",
        )
    if primary in _DAMAGED:
        return damaged(path, name)
    if primary in _HELD:
        return held(path)
    return InternalError(
        f"the daemon's database failed ({name})",
        hint="check the disk of db_path, and the kernel log",
    )


def damaged(path: Path, what: str) -> StoreUnusable:
    return StoreUnusable(
        f"the database {path} is damaged: {what}",
        hint="move it away or recover it with sqlite3; without it sandboxes continue, "
        "but keys must be created again",
        reason="damaged",
    )


def held(path: Path) -> StoreUnusable:
    return StoreUnusable(
        f"another process has the database {path} open",
        hint="stop it: only one process may open the database",
        reason="held",
    )


def _is_full(path: Path) -> bool:
    try:
        status = os.statvfs(path.parent)
    except OSError:
        return False
    return status.f_bavail * status.f_frsize < _NO_ROOM_BYTES
