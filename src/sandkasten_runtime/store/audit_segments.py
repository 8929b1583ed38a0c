"""The files of the audit log: segments of chained lines, and the head. Blocking.

`head` names the newest record and is the lock of the directory, so that several processes can write
one chain. A process that dies between a line and the head leaves lines that the next writer adopts;
half a line is removed. Lines that are missing although the head names them stay missing: `verify`
reports them. Retention removes whole segments, after a record (`audit.cut`) that names the last one
removed and its hash. So the check still knows where the chain begins. Raises OSError and
LockHeldError.
"""

from __future__ import annotations

import contextlib
import errno
import fcntl
import io
import logging
import os
import threading
import time
from typing import TYPE_CHECKING, Final

from sandkasten.lazy_dataclass import dataclass
from sandkasten.model import lazy_pattern
from sandkasten.model.audit_chain import (
    CUT,
    GENESIS,
    LINE_BEGIN,
    MAX_LINE_BYTES,
    ChainCheck,
    record_line,
    row_of_line,
)
from sandkasten.model.audit_records import AuditHead, AuditRow

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

    from sandkasten.model.audit_records import AuditFilter, AuditReport

log = logging.getLogger("sandkasten.audit")
SEGMENT_BYTES: Final = 16 << 20
# Another process holds the lock for microseconds, unless it was stopped meanwhile.
LOCK_S: Final = 30.0
_LOCK_POLL_S: Final = 0.005
_NAME = lazy_pattern.compile(r"[0-9]{10}\.jsonl\Z")
_HEAD = lazy_pattern.compile(rb"([0-9]{20}) ([0-9a-f]{64}) ([0-9]{10}) ([0-9]{20})\n\Z")
# More than a process writes at once.
_MOST_REST_BYTES: Final = 64 << 20
_READ_BYTES: Final = 1 << 20
_TRIES: Final = 3


class LockHeldError(Exception):
    """Another process has the lock."""


@dataclass(frozen=True, slots=True)
class AuditPlace:
    """A place between two records: a segment, and an offset in it."""

    segment: int
    offset: int


@dataclass(slots=True)
class _Writer:
    """The open files, and the state that they had when this process last wrote."""

    head_fd: int
    segment_fd: int
    segment: int
    size: int
    head: AuditHead
    raw: bytes


class AuditSegments:
    """May be used by several threads; `mutex` is held while a record is written."""

    def __init__(self, path: Path, *, max_bytes: int, segment_bytes: int = SEGMENT_BYTES) -> None:
        self.path = path
        self.mutex = threading.Lock()
        self._max_bytes = max_bytes
        # Several, so that cutting the oldest leaves most of the rest.
        self._segment_bytes = max(4096, min(segment_bytes, max_bytes // 8))
        self._writer: _Writer | None = None
        self._dirty: set[int] = set()

    def append(self, rows: Sequence[AuditRow], *, wait: bool) -> None:
        """Append lines under the lock of all processes, all of them or none. The caller holds
        `mutex`.
        """
        writer = self._writer or self._open()
        _lock(writer.head_fd, wait=wait)
        try:
            writer = self._adopted(writer)
            if writer.size >= self._segment_bytes:
                writer = self._next_segment(writer)
            self._write_lines(writer, rows)
        finally:
            fcntl.flock(writer.head_fd, fcntl.LOCK_UN)

    def _write_lines(self, writer: _Writer, rows: Sequence[AuditRow]) -> None:
        head, lines = writer.head, []
        for row in rows:
            line, head = record_line(row, head)
            lines.append(line)
        data = b"".join(lines)
        try:
            if os.write(writer.segment_fd, data) != len(data):
                raise OSError(errno.ENOSPC, "the disk is full")
            raw = _head_text(head, writer.segment, writer.size + len(data))
            os.pwrite(writer.head_fd, raw, 0)
        except OSError:
            # Nothing of it was acknowledged.
            os.ftruncate(writer.segment_fd, writer.size)
            raise
        writer.head, writer.raw = head, raw
        writer.size += len(data)
        self._dirty.add(writer.segment)

    def _open(self) -> _Writer:
        self.path.mkdir(mode=0o700, parents=True, exist_ok=True)
        head_fd = _opened(self.path / "head", os.O_RDWR)
        self._writer = writer = _Writer(head_fd, -1, 0, 0, AuditHead(0, GENESIS), b"?")
        return writer

    def _adopted(self, writer: _Writer) -> _Writer:
        """Return the writer with what other processes have written since, or left unfinished."""
        raw = os.pread(writer.head_fd, 256, 0)
        if raw != writer.raw or writer.segment_fd < 0:
            match = _HEAD.match(raw)
            if match is not None:
                number, size = int(match[3]), int(match[4])
                head = AuditHead(int(match[1]), match[2].decode())
            else:
                # New, or removed: then the last line of the last segment is the head.
                number, size, head = self._last_line()
                if raw or head.seq:
                    log.error("audit.head_lost", extra={"sandkasten": {"seq": head.seq}})
            if writer.segment_fd < 0 or writer.segment != number:
                if writer.segment_fd >= 0:
                    os.close(writer.segment_fd)
                    writer.segment_fd = -1
                writer.segment_fd = _opened(self._segment(number), os.O_RDWR | os.O_APPEND)
            writer.segment, writer.size, writer.head, writer.raw = number, size, head, raw
        there = os.fstat(writer.segment_fd).st_size
        if there > writer.size:
            self._take_rest(writer, there)
        elif there < writer.size:
            details = {"segment": writer.segment, "missing_bytes": writer.size - there}
            log.error("audit.truncated", extra={"sandkasten": details})
            writer.size = there
        return writer

    def _take_rest(self, writer: _Writer, there: int) -> None:
        """Adopt the lines of a process that died before it wrote the head; remove half a line."""
        rest = os.pread(writer.segment_fd, min(there - writer.size, _MOST_REST_BYTES), writer.size)
        for line in rest.splitlines(keepends=True):
            try:
                row = row_of_line(line)
            except ValueError:
                break
            if row.prev != writer.head.hash or row.seq != writer.head.seq + 1:
                break
            writer.head = AuditHead(row.seq, row.hash)
            writer.size += len(line)
        if writer.size < there:
            log.warning(
                "audit.repaired", extra={"sandkasten": {"removed_bytes": there - writer.size}}
            )
            os.ftruncate(writer.segment_fd, writer.size)
        writer.raw = _head_text(writer.head, writer.segment, writer.size)
        os.pwrite(writer.head_fd, writer.raw, 0)
        self._dirty.add(writer.segment)

    def _next_segment(self, writer: _Writer) -> _Writer:
        number = writer.segment + 1
        fd = _opened(self._segment(number), os.O_RDWR | os.O_APPEND)
        os.close(writer.segment_fd)
        writer.segment_fd, writer.segment, writer.size = fd, number, 0
        if there := os.fstat(fd).st_size:
            # The file of a process that died before it wrote the head.
            self._take_rest(writer, there)
        details = {"seq": writer.head.seq, "hash": writer.head.hash}
        # In the log of the daemon too, which is often kept on another machine.
        log.info("audit.segment", extra={"sandkasten": details})
        self._cut(writer, time.time(), None)
        return writer

    def _cut(self, writer: _Writer, now: float, keep_s: float | None) -> int:
        """Remove the oldest segments that are too old, or more than the directory may take."""
        numbers = self.numbers()[:-1]
        sizes = {number: self._segment(number).stat().st_size for number in numbers}
        total = sum(sizes.values()) + writer.size
        removed = 0
        for number in numbers:
            path = self._segment(number)
            too_old = keep_s is not None and path.stat().st_mtime < now - keep_s
            if not too_old and total + self._segment_bytes <= self._max_bytes:
                break
            after = _first_row(self._segment(number + 1))
            if after is None:
                # The chain could not begin there.
                log.error("audit.uncut", extra={"sandkasten": {"segment": number + 1}})
                break
            detail = {"through_seq": str(after.seq - 1), "hash": after.prev}
            why = "age" if too_old else "size"
            row = AuditRow(
                0, now, "", None, CUT, path.name, "ok", detail={**detail, "why": why}, kind="audit"
            )
            self._write_lines(writer, [row])
            os.fdatasync(writer.segment_fd)
            path.unlink()
            total -= sizes[number]
            removed += 1
            level = logging.INFO if too_old else logging.WARNING
            log.log(level, "audit.cut", extra={"sandkasten": {**detail, "why": why}})
        return removed

    def sync(self) -> AuditHead:
        with self.mutex:
            numbers, self._dirty = self._dirty, set()
            writer = self._writer
        match = _HEAD.match(self._head_text()) if writer is None or not writer.head.seq else None
        head = AuditHead(0, GENESIS) if writer is None else writer.head
        if match is not None:
            head = AuditHead(int(match[1]), match[2].decode())
        try:
            for number in numbers:
                self._sync_segment(number)
        except OSError:
            with self.mutex:
                self._dirty |= numbers
            raise
        return head

    def _sync_segment(self, number: int) -> None:
        # By name: the descriptor may be closed meanwhile.
        with contextlib.suppress(FileNotFoundError):
            fd = os.open(self._segment(number), os.O_RDONLY | os.O_CLOEXEC)
            try:
                os.fdatasync(fd)
            finally:
                os.close(fd)

    def close(self) -> None:
        writer, self._writer = self._writer, None
        if writer is not None:
            os.close(writer.head_fd)
            if writer.segment_fd >= 0:
                os.close(writer.segment_fd)

    def prune(self, now: float, keep_s: float | None) -> int:
        with self.mutex:
            if not self.path.exists():
                return 0
            writer = self._writer or self._open()
            try:
                _lock(writer.head_fd, wait=True)
            except LockHeldError:
                return 0
            try:
                return self._cut(self._adopted(writer), now, keep_s)
            finally:
                fcntl.flock(writer.head_fd, fcntl.LOCK_UN)

    def read(self, wanted: AuditFilter) -> list[AuditRow]:
        numbers = self.numbers()
        needles = [
            f'"{name}":"{value}"'.encode()
            for name, value in (
                ("kind", wanted.kind),
                ("action", wanted.action),
                ("session_id", wanted.session_id),
                ("key_id", wanted.key_id),
            )
            if value is not None and value.isascii() and value.isprintable()
            if not set(value) & {'"', "\\"}
        ]
        rows: list[AuditRow] = []
        for number in reversed(numbers) if wanted.newest else numbers:
            path = self._segment(number)
            try:
                if wanted.since is not None and path.stat().st_mtime < wanted.since:
                    if wanted.newest:
                        break
                    continue
                lines = path.read_bytes().splitlines(keepends=True)
            except FileNotFoundError:
                continue
            for line in reversed(lines) if wanted.newest else lines:
                if not all(needle in line for needle in needles):
                    continue
                try:
                    row = row_of_line(line)
                except ValueError:
                    continue
                if wanted.matches(row):
                    rows.append(row)
                    if len(rows) >= wanted.limit:
                        return rows[::-1] if wanted.newest else rows
        return rows[::-1] if wanted.newest else rows

    def verify(self, heads: Sequence[AuditHead]) -> AuditReport:
        for _ in range(_TRIES):
            with contextlib.suppress(FileNotFoundError):
                return self._verify_once(heads)
        # A process that cuts all the time; its segments are gone, so what is left is checked.
        return self._verify_once(heads)

    def _verify_once(self, heads: Sequence[AuditHead]) -> AuditReport:
        text, rest = self._head_and_rest()
        match = _HEAD.match(text)
        check = ChainCheck(heads)
        if match is not None:
            check = ChainCheck([*heads, AuditHead(int(match[1]), match[2].decode())])
        for number in self.numbers():
            if match is not None and number > int(match[3]):
                break
            path = self._segment(number)
            end = int(match[4]) if match is not None and number == int(match[3]) else None
            with path.open("rb") as file:
                place = 0
                while (end is None or file.tell() < end) and (
                    line := file.readline(MAX_LINE_BYTES)
                ):
                    place += 1
                    if not check.add(line, f"{path.name}:{place}"):
                        return check.report()
        for name, data in rest:
            for line in io.BytesIO(data):
                if _may_be_half_a_record(line):
                    break
                if not check.add(line, f"{name}, after the newest record"):
                    return check.report()
        return check.report()

    def _head_text(self) -> bytes:
        """Return the head file, not while a record is written."""
        try:
            fd = os.open(self.path / "head", os.O_RDONLY | os.O_CLOEXEC)
        except FileNotFoundError:
            return b""
        try:
            with contextlib.suppress(LockHeldError):
                _lock(fd, wait=True)
            return os.pread(fd, 256, 0)
        finally:
            os.close(fd)

    def _head_and_rest(self) -> tuple[bytes, list[tuple[str, bytes]]]:
        """Return the head file, not while a record is written, and what is behind its record: what
        a process left that died before it wrote the head, or what another program has written.
        """
        try:
            fd = os.open(self.path / "head", os.O_RDONLY | os.O_CLOEXEC)
        except FileNotFoundError:
            return b"", []
        try:
            try:
                _lock(fd, wait=True)
            except LockHeldError:
                return os.pread(fd, 256, 0), []
            text = os.pread(fd, 256, 0)
            match = _HEAD.match(text)
            if match is None:
                return text, []
            rest = []
            for number in self.numbers():
                if number >= int(match[3]):
                    with self._segment(number).open("rb") as file:
                        file.seek(int(match[4]) if number == int(match[3]) else 0)
                        rest.append((self._segment(number).name, file.read(_MOST_REST_BYTES)))
            return text, rest
        finally:
            os.close(fd)

    def _last_line(self) -> tuple[int, int, AuditHead]:
        for number in reversed(self.numbers()):
            path = self._segment(number)
            row = _last_row(path)
            if row is not None:
                return number, path.stat().st_size, AuditHead(row.seq, row.hash)
        return 1, 0, AuditHead(0, GENESIS)

    def piece(self, number: int, offset: int) -> bytes:
        """Return bytes of a segment; none at its end, or if it was removed."""
        try:
            with self._segment(number).open("rb") as file:
                file.seek(offset)
                return file.read(_READ_BYTES)
        except FileNotFoundError:
            return b""

    def place_of(self, seq: int) -> AuditPlace:
        """Return a place before the record with this number, not far from it."""
        number = 0
        for number in reversed(self.numbers()):
            first = _first_row(self._segment(number))
            if first is not None and first.seq <= seq:
                break
        return AuditPlace(number, 0)

    def rows_after(self, place: AuditPlace) -> tuple[list[AuditRow], AuditPlace]:
        """Return some records after a place, and the place after them; the same place at the end.
        Lines that are not records are left out.
        """
        match = _HEAD.match(self._head_text())
        if match is None:
            return [], place
        # Only up to the head: what follows is being written, or is removed again.
        last, size = int(match[3]), int(match[4])
        data = self.piece(place.segment, place.offset)
        if place.segment == last:
            data = data[: max(0, size - place.offset)]
        if not data:
            later = [number for number in self.numbers() if place.segment < number <= last]
            return [], AuditPlace(later[0], 0) if later else place
        # A piece ends anywhere; a line that is longer than a piece is not a record.
        end = data.rfind(b"\n") + 1 or len(data)
        rows = []
        for line in data[:end].splitlines(keepends=True):
            with contextlib.suppress(ValueError):
                rows.append(row_of_line(line))
        return rows, AuditPlace(place.segment, place.offset + end)

    def numbers(self) -> list[int]:
        """Return the numbers of the segments, oldest first."""
        try:
            return sorted(int(name[:10]) for name in os.listdir(self.path) if _NAME.match(name))
        except FileNotFoundError:
            return []

    def _segment(self, number: int) -> Path:
        return self.path / f"{number:010d}.jsonl"


def _lock(fd: int, *, wait: bool) -> None:
    until = time.monotonic() + LOCK_S
    while True:
        try:
            fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            if not wait or time.monotonic() > until:
                raise LockHeldError from None
            time.sleep(_LOCK_POLL_S)
        else:
            return


def _opened(path: Path, flags: int) -> int:
    return os.open(path, flags | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW, 0o600)


def _head_text(head: AuditHead, segment: int, size: int) -> bytes:
    return f"{head.seq:020d} {head.hash} {segment:010d} {size:020d}\n".encode()


def _last_row(path: Path) -> AuditRow | None:
    with path.open("rb") as file:
        size = file.seek(0, os.SEEK_END)
        file.seek(max(0, size - MAX_LINE_BYTES))
        lines = file.read().splitlines(keepends=True)
    try:
        return row_of_line(lines[-1]) if lines else None
    except ValueError:
        return None


def _may_be_half_a_record(line: bytes) -> bool:
    """Return whether a process may have died, or the disk been full, while it wrote this line."""
    if line.endswith(b"\n") or not all(32 <= byte < 127 for byte in line):
        return False
    return line.startswith(LINE_BEGIN) or LINE_BEGIN.startswith(line)


def _first_row(path: Path) -> AuditRow | None:
    try:
        with path.open("rb") as file:
            return row_of_line(file.readline(MAX_LINE_BYTES))
    except (OSError, ValueError):
        return None
