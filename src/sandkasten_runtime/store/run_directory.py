"""Runs of agents and workflows as files, shared by every process of one data directory.

`<run>/row.json` is replaced by rename, so a reader sees either the old row or the new one.
`events.jsonl` beside it only grows; a last line that a crash cut off is removed when the next one
is written. `claim` is locked by the process that works on the run, and the kernel releases the lock
when that process ends. A call that returns is on the disk. Raises QuotaExceeded for a full disk and
RunNotFound for a missing run; a file that cannot be read counts as missing. Everything that blocks
runs in threads.
"""

from __future__ import annotations

import asyncio
import errno
import json
import os
import shutil
import time
from contextlib import AbstractAsyncContextManager, suppress
from typing import TYPE_CHECKING, Any, Final, TypeAlias

from sandkasten.disk.atomic_file import sync_directory, write_file
from sandkasten.disk.file_lock import try_lock_path, wait_for_lock
from sandkasten.disk.os_errors import translated
from sandkasten.errors import Conflict, RunNotFound
from sandkasten.lazy_dataclass import dataclass
from sandkasten.model.runs.run_values import RunEvent, RunRow
from sandkasten_runtime.store.run_rows import (
    MAX_ROW_BYTES,
    PAGE_BYTES,
    RUN_ID,
    checked_run_id,
    decode_run,
    encode_run,
    plain_json,
)

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence
    from pathlib import Path

    from sandkasten.model.runs.run_values import RunKind

# Interval for watching a run of another process; runs of this process are signalled at once.
LOOK_EVERY_S: Final = 0.2
# Per follower of a run, for this many followers and this many runs.
_MARKS: Final = 16
_MARKED_RUNS: Final = 1000
# A younger directory without a row is still being created.
_MADE_WITHIN_S: Final = 300.0

_PASSING: Final = frozenset(
    {errno.EMFILE, errno.ENFILE, errno.ENOMEM, errno.EIO, errno.EAGAIN, errno.EINTR}
)

Rows: TypeAlias = "Sequence[RunRow]"


@dataclass(frozen=True, slots=True)
class _FileIdentity:
    """Identity of the file that was read: a replaced file has another inode."""

    inode: int
    changed_ns: int
    size: int


@dataclass(frozen=True, slots=True)
class _RunSummary:
    """The fields by which runs are listed and filtered, so that a list does not read every row."""

    stamp: _FileIdentity
    created_at: float
    tenant: str
    kind: str
    status: str
    ended_at: float | None


@dataclass(frozen=True, slots=True)
class _EventFileEnd:
    """End of an event file after our last write, and the last sequence number in it."""

    size: int
    seq: int


class RunDirectory:
    """Implements `ports.Runs` below `root`, which is created with mode 0700 when first needed."""

    def __init__(self, root: Path) -> None:
        self._root = root
        self._briefs: dict[str, _RunSummary] = {}
        self._tails: dict[str, _EventFileEnd] = {}
        self._changes: dict[str, asyncio.Event] = {}
        self._marks: dict[str, dict[int, int]] = {}
        """File offsets of the events after a sequence number, so that a follower need not read
        it all.
        """

    async def begin(self, row: RunRow) -> None:
        checked_run_id(row.id)
        await asyncio.to_thread(self._begin, row)

    async def save(self, row: RunRow) -> None:
        checked_run_id(row.id)
        await asyncio.to_thread(self._save, row)
        self._tell(row.id)

    async def get(self, run_id: str) -> RunRow | None:
        if not RUN_ID.match(run_id):
            return None
        return await asyncio.to_thread(self._read, run_id)

    async def list(
        self,
        tenant: str | None,
        *,
        kind: RunKind | None = None,
        status: str | None = None,
        limit: int = 100,
        before: str | None = None,
    ) -> Rows:
        return await asyncio.to_thread(self._list, tenant, kind, status, limit, before)

    async def note(self, run_id: str, type: str, data: Mapping[str, Any]) -> RunEvent:
        checked_run_id(run_id)
        event = await asyncio.to_thread(self._note, run_id, type, data)
        self._tell(run_id)
        return event

    async def events(
        self, run_id: str, *, since_seq: int = 0, limit: int = 1000
    ) -> Sequence[RunEvent]:
        if not RUN_ID.match(run_id):
            return ()
        return await asyncio.to_thread(self._events, run_id, since_seq, limit)

    async def changed(self, run_id: str, since_seq: int, timeout_s: float) -> bool:
        if not RUN_ID.match(run_id):
            return False
        deadline = time.monotonic() + timeout_s
        last_stamps: object = None
        while True:
            # Before the check, so that no change in between is missed.
            event = self._changes.setdefault(run_id, asyncio.Event())
            stamps = await asyncio.to_thread(self._stamps, run_id)
            if stamps != last_stamps:
                last_stamps = stamps
                if await asyncio.to_thread(self._has_news, run_id, since_seq):
                    return True
            left_s = deadline - time.monotonic()
            if left_s <= 0:
                return False
            with suppress(TimeoutError):
                async with asyncio.timeout(min(left_s, LOOK_EVERY_S)):
                    await event.wait()

    def claim(self, run_id: str) -> _Claim:
        return _Claim(self._root / checked_run_id(run_id) / "claim")

    async def prune(self, before: float) -> int:
        return await asyncio.to_thread(self._prune, before)

    # ---- in threads

    def _begin(self, row: RunRow) -> None:
        place = self._root / row.id
        with translated(f"begin run {row.id}"):
            self._root.mkdir(mode=0o700, parents=True, exist_ok=True)
            try:
                place.mkdir(mode=0o700)
            except FileExistsError as exc:
                raise Conflict(f"run {row.id} already exists", hint="ask again") from exc
            write_file(place / "row.json", encode_run(row))
            sync_directory(self._root)

    def _save(self, row: RunRow) -> None:
        place = self._root / row.id
        if not place.is_dir():
            raise RunNotFound(
                f"there is no run {row.id}",
                hint="it may have been removed after its retention time",
            )
        with translated(f"record run {row.id}"):
            write_file(place / "row.json", encode_run(row))

    def _read(self, run_id: str) -> RunRow | None:
        try:
            with (self._root / run_id / "row.json").open("rb") as file:
                status = os.fstat(file.fileno())
                row = decode_run(file.read(MAX_ROW_BYTES + 1))
        except OSError as exc:
            # A run that cannot be read right now still exists: for a missing run, its sandboxes and
            # files would be removed.
            if exc.errno in _PASSING:
                with translated(f"read run {run_id}"):
                    raise
            return None
        except (ValueError, TypeError, KeyError, RecursionError):
            return None
        if row.id != run_id:
            return None
        self._briefs[run_id] = _brief(row, status)
        return row

    def _known(self, run_id: str) -> _RunSummary | None:
        try:
            status = os.stat(self._root / run_id / "row.json")
        except OSError:
            self._briefs.pop(run_id, None)
            return None
        brief = self._briefs.get(run_id)
        if brief is not None and brief.stamp == _stamp(status):
            return brief
        return self._briefs.get(run_id) if self._read(run_id) is not None else None

    def _ids(self) -> Sequence[str]:
        with translated("list the runs"):
            try:
                return [name for name in os.listdir(self._root) if RUN_ID.match(name)]
            except FileNotFoundError:
                return ()

    def _list(
        self,
        tenant: str | None,
        kind: str | None,
        status: str | None,
        limit: int,
        before: str | None,
    ) -> Rows:
        runs: list[tuple[float, str]] = []
        for run_id in self._ids():
            brief = self._known(run_id)
            if brief is None or (tenant is not None and brief.tenant != tenant):
                continue
            if kind in (None, brief.kind) and status in (None, brief.status):
                runs.append((brief.created_at, run_id))
        runs.sort(reverse=True)
        if before is not None:
            last = self._known(before) if RUN_ID.match(before) else None
            if last is None or (tenant is not None and last.tenant != tenant):
                return ()
            runs = [run for run in runs if run < (last.created_at, before)]
        rows: list[RunRow] = []
        size = 0
        for _, run_id in runs:
            brief = self._briefs.get(run_id)
            size += 0 if brief is None else brief.stamp.size
            if len(rows) >= limit or (rows and size > PAGE_BYTES):
                break
            row = self._read(run_id)
            if row is not None:
                rows.append(row)
        return rows

    def _note(self, run_id: str, type: str, data: Mapping[str, Any]) -> RunEvent:
        path = self._root / run_id / "events.jsonl"
        with translated(f"write down what run {run_id} does"):
            try:
                fd = os.open(path, os.O_RDWR | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC, 0o600)
            except FileNotFoundError as exc:
                raise RunNotFound(
                    f"there is no run {run_id}",
                    hint="it may have been removed after its retention time",
                ) from exc
            with os.fdopen(fd, "r+b", buffering=0) as file:
                wait_for_lock(fd)
                size = os.fstat(fd).st_size
                tail = self._tails.get(run_id)
                if tail is None or tail.size != size:
                    tail = _end_of(file.read())
                    if tail.size != size:
                        os.ftruncate(fd, tail.size)
                event = RunEvent(tail.seq + 1, time.time(), type, data)
                line = _line(event)
                written = 0
                try:
                    while written < len(line):
                        written += os.write(fd, line[written:])
                    os.fsync(fd)
                except OSError:
                    # The next writer would cut a partial line anyway; sooner is better.
                    with suppress(OSError):
                        os.ftruncate(fd, tail.size)
                    raise
                self._tails[run_id] = _EventFileEnd(tail.size + len(line), event.seq)
        return event

    def _events(self, run_id: str, since_seq: int, limit: int) -> Sequence[RunEvent]:
        events: list[RunEvent] = []
        marks = self._marks.get(run_id, {})
        at = marks.get(max((seq for seq in list(marks) if seq <= since_seq), default=0), 0)
        with suppress(FileNotFoundError), (self._root / run_id / "events.jsonl").open("rb") as file:
            # Complete lines stay where they are; only a partial last line is ever cut.
            file.seek(at)
            for line in file:
                event = _event(line)
                if event is None:
                    break
                at += len(line)
                if event.seq > since_seq:
                    events.append(event)
                    if len(events) >= limit:
                        break
            if events:
                self._mark(run_id, events[-1].seq, at)
        return events

    def _mark(self, run_id: str, seq: int, at: int) -> None:
        marks = {**self._marks.get(run_id, {}), seq: at}
        while len(marks) > _MARKS:
            del marks[next(iter(marks))]
        if run_id not in self._marks and len(self._marks) >= _MARKED_RUNS:
            self._marks.clear()
        self._marks[run_id] = marks

    def _stamps(self, run_id: str) -> tuple[_FileIdentity | None, ...]:
        stamps: list[_FileIdentity | None] = []
        for name in ("row.json", "events.jsonl"):
            try:
                stamps.append(_stamp(os.stat(self._root / run_id / name)))
            except OSError:
                stamps.append(None)
        return tuple(stamps)

    def _has_news(self, run_id: str, since_seq: int) -> bool:
        if self._events(run_id, since_seq, 1):
            return True
        brief = self._known(run_id)
        return brief is None or brief.ended_at is not None

    def _prune(self, before: float) -> int:
        count = 0
        for run_id in self._ids():
            brief = self._known(run_id)
            if brief is None:
                count += self._unmade(run_id)
            elif brief.ended_at is not None and brief.ended_at < before:
                count += self._forget(run_id)
        return count

    def _unmade(self, run_id: str) -> int:
        """Return whether the run was never completely created, or its row cannot be read."""
        try:
            age_s = time.time() - os.stat(self._root / run_id).st_mtime
        except OSError:
            return 0
        return self._forget(run_id) if age_s > _MADE_WITHIN_S else 0

    def _forget(self, run_id: str) -> int:
        fd = _lock(self._root / run_id / "claim")
        if fd is None:
            return 0
        try:
            shutil.rmtree(self._root / run_id, ignore_errors=True)
        finally:
            os.close(fd)
        for cache in (self._briefs, self._tails, self._changes, self._marks):
            cache.pop(run_id, None)
        return 1

    def _tell(self, run_id: str) -> None:
        """Wake the waiters of this process; each wait starts with a new event."""
        waiting = self._changes.pop(run_id, None)
        if waiting is not None:
            waiting.set()


class _Claim(AbstractAsyncContextManager[bool]):
    """Implements `ports.RunClaim`. The kernel never releases a lock of a living process."""

    is_lost = False

    def __init__(self, path: Path) -> None:
        self._path = path
        self._fd: int | None = None

    async def __aenter__(self) -> bool:
        # One open and one flock that never blocks: cheaper than a thread.
        self._fd = _lock(self._path)
        return self._fd is not None

    async def __aexit__(self, *_: object) -> None:
        if self._fd is not None:
            os.close(self._fd)
            self._fd = None


def _lock(path: Path) -> int | None:
    with translated("claim a run"):
        try:
            return try_lock_path(path)
        except FileNotFoundError:
            return None


def _line(event: RunEvent) -> bytes:
    plain = {"seq": event.seq, "at": event.at, "type": event.type, "data": event.data}
    text = json.dumps(plain, ensure_ascii=False, default=plain_json)
    return text.encode("utf-8", "replace") + b"\n"


def _event(line: bytes) -> RunEvent | None:
    """Decode one event. Return None for a line that a crash left incomplete."""
    if not line.endswith(b"\n"):
        return None
    try:
        raw = json.loads(line)
        return RunEvent(int(raw["seq"]), float(raw["at"]), str(raw["type"]), dict(raw["data"]))
    except (ValueError, TypeError, KeyError, RecursionError):
        return None


def _end_of(raw: bytes) -> _EventFileEnd:
    """Return the length of the complete part. JSON has no raw line break, so lines are events."""
    size = seq = 0
    while (end := raw.find(b"\n", size)) >= 0:
        event = _event(raw[size : end + 1])
        if event is None:
            break
        size, seq = end + 1, event.seq
    return _EventFileEnd(size, seq)


def _stamp(status: os.stat_result) -> _FileIdentity:
    return _FileIdentity(status.st_ino, status.st_mtime_ns, status.st_size)


def _brief(row: RunRow, status: os.stat_result) -> _RunSummary:
    ended_at = (row.ended_at or row.created_at) if row.ended else None
    return _RunSummary(_stamp(status), row.created_at, row.tenant, row.kind, row.status, ended_at)
