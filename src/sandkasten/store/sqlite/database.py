"""One SQLite connection, owned by one thread; everybody else hands it work and awaits the answer.

Writers that wait at the same time share one transaction (group commit); what of it fails takes
nobody else along. An answer means committed. The file is opened once and never twice: SQLite
before 3.51.3 can damage a WAL that several connections write, so the connection holds the file
exclusively (which also spares the shared-memory file), a second one in this process is refused,
and the daemon's lock keeps other processes of ours away before it comes to that.

How lasting a commit is: a WAL is written before COMMIT returns, so the death of the process loses
nothing at any setting. `synchronous=NORMAL` does without the fsync, and a power cut may then lose
the last commits, never the file's integrity. That is right for sessions and commands, none of
which outlives the machine. Keys, audit rows and stored files do, so their batch is committed with
`synchronous=FULL`; a batch pays one fsync for everybody in it.

Failures: QuotaExceeded when the disk is full (the row is not there, and the next try may
succeed), StoreUnusable when the file cannot be used, InternalError for the rest.
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
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final, TypeVar

from sandkasten.errors import InternalError, QuotaExceeded, SandkastenError, StoreUnusable
from sandkasten.store.sqlite.schema import migrate, version_of

if TYPE_CHECKING:
    from pathlib import Path

T = TypeVar("T")
Work = Callable[[sqlite3.Connection], T]

log = logging.getLogger("sandkasten.store")
# More than wait at once in practice; bounds how long the first of them waits.
_MOST_IN_ONE: Final = 256
# Locked only while another process that should not be there reads the file.
_BUSY_MS: Final = 5000
# After a burst the WAL is cut back to this at the next checkpoint.
_WAL_BYTES: Final = 64 << 20

_open_here: Final[set[str]] = set()
_open_lock: Final = threading.Lock()
# SQLite tells a full disk by its own code only where write(2) said so; a quota or a file that
# could not grow is an I/O error, so then we look how much room there is.
_NO_ROOM_BYTES: Final = 1 << 20
_DAMAGED: Final = frozenset({sqlite3.SQLITE_CORRUPT, sqlite3.SQLITE_NOTADB})
_HELD: Final = frozenset({sqlite3.SQLITE_BUSY, sqlite3.SQLITE_LOCKED})


@dataclass(slots=True)
class _Job:
    work: Work[Any]
    future: asyncio.Future[Any]
    writes: bool
    lasting: bool
    result: Any = None
    error: BaseException | None = None


class Database:
    """Made by `open`. `read` and `write` may be called from any task of one event loop."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self._jobs: queue.SimpleQueue[_Job | None] = queue.SimpleQueue()
        self._thread = threading.Thread(target=self._serve, name=f"sqlite {path.name}", daemon=True)
        self._loop = asyncio.get_running_loop()
        self._opened: asyncio.Future[None] = self._loop.create_future()
        self._closed = False
        self._connection: sqlite3.Connection
        self._full = False
        self._marked = False

    @classmethod
    async def open(cls, path: Path) -> Database:
        """The caller holds the lock of the data directory. Migrates; checks after a crash."""
        one = cls(path)
        one._thread.start()
        await asyncio.shield(one._opened)
        return one

    def submit(self, work: Work[T], *, lasting: bool = False) -> asyncio.Future[T]:
        """Hand in a write without waiting for it. Work is done in the order it came.

        `work` may be run again when its batch failed, so it changes nothing but rows.
        """
        return self._hand_in(work, writes=True, lasting=lasting)

    async def write(self, work: Work[T], *, lasting: bool = False) -> T:
        """What `work` answered, committed. Whoever is cancelled here does not undo it."""
        return await self.submit(work, lasting=lasting)

    async def read(self, work: Work[T]) -> T:
        """Sees every write that was handed in before."""
        return await self._hand_in(work, writes=False, lasting=False)

    async def aclose(self) -> None:
        """After everything handed in is done. Twice is fine."""
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
            self._jobs.put(_Job(work, future, writes, lasting))
        return future

    # ---- the thread

    def _serve(self) -> None:
        try:
            self._open()
        except BaseException as exc:  # noqa: BLE001  (told to whoever opens)
            self._tell(self._refuse, exc)
            return
        self._tell(self._opened.set_result, None)
        while self._round():
            pass
        self._close()

    def _round(self) -> bool:
        """One batch; whether there will be another."""
        batch: list[_Job] = []
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

    def _do(self, batch: list[_Job]) -> None:
        writers: list[_Job] = []
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

    def _commit(self, jobs: list[_Job]) -> None:
        """All of them in one transaction; when the disk refuses, each in one of its own."""
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

    def _inside(self, job: _Job) -> None:
        """A job that fails by itself undoes its own rows and lets the others go on."""
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
            # The next open then takes the time to check the file; nothing is lost.
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
        # A loop that is closed has nobody left who could hear it.
        with contextlib.suppress(RuntimeError):
            self._loop.call_soon_threadsafe(function, value)


def _settle(batch: list[_Job]) -> None:
    for job in batch:
        if job.future.done():  # Cancelled: whoever asked has left.
            continue
        if job.error is not None:
            job.future.set_exception(job.error)
        else:
            job.future.set_result(job.result)


def _connect(path: Path) -> sqlite3.Connection:
    if not path.exists():
        # Not by SQLite, which would let others read it.
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
    found = connection.execute("PRAGMA integrity_check(5)").fetchall()
    if found != [("ok",)]:
        raise damaged(path, "; ".join(str(row[0]) for row in found)[:300])


def _forget(name: str) -> None:
    with _open_lock:
        _open_here.discard(name)


def ends_the_batch(exc: BaseException) -> bool:
    """Whether it says something of the disk or the file, and not of the one statement."""
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
        found = os.statvfs(path.parent)
    except OSError:
        return False
    return found.f_bavail * found.f_frsize < _NO_ROOM_BYTES
