"""Recordings of commands and terminals: one asciicast v2 file each, `<session>/<exec>.cast`.

They hold output as it was, secrets included, for the tenant of the session. Each is bounded, and so
are all of them: the oldest are removed first. A recording that cannot be written ends, and never
the command.
"""

from __future__ import annotations

import asyncio
import codecs
import json
import logging
import os
import shutil
import time
from typing import IO, TYPE_CHECKING, Final

from sandkasten.model.journal_rows import RecordingInfo

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

    from sandkasten_runtime.store.record_rules import RecordingRules

log = logging.getLogger("sandkasten.recording")
_TITLE_CHARS: Final = 200
_SUFFIX: Final = ".cast"


class Recording:
    """One file. It is made with the first output."""

    def __init__(self, path: Path, header: dict[str, object], max_bytes: int) -> None:
        self._path = path
        self._header = header
        self._left = max_bytes
        self._began = time.monotonic()
        self._decoder = codecs.getincrementaldecoder("utf-8")("replace")
        self._file: IO[bytes] | None = None
        self._ended = False
        self._last_seq = 0
        self.offset = 0
        """How many bytes of output were recorded, or left out."""

    def add(self, data: bytes, offset: int | None = None) -> None:
        """Record output. With `offset`, only what was not recorded before."""
        if offset is not None:
            data = data[max(0, self.offset - offset) :]
            self.offset = max(self.offset, offset)
        self.offset += len(data)
        if data:
            self._event("o", self._decoder.decode(data))

    def add_chunk(self, seq: int, data: bytes) -> None:
        """Record a chunk, unless one with this number was recorded."""
        if seq > self._last_seq:
            self._last_seq = seq
            self.add(data)

    def resize(self, rows: int, cols: int) -> None:
        if self._file is not None:
            self._event("r", f"{cols}x{rows}")

    def close(self) -> None:
        self._ended = True
        file, self._file = self._file, None
        if file is not None:
            try:
                file.close()
            except OSError as exc:
                log.warning("recording.failed", extra={"sandkasten": {"why": exc.strerror}})

    def _event(self, code: str, text: str) -> None:
        if self._ended:
            return
        at = round(time.monotonic() - self._began, 6)
        line = json.dumps([at, code, text], separators=(",", ":")).encode() + b"\n"
        full = len(line) > self._left
        if full:
            line = json.dumps([at, "m", "the recording reached its limit"]).encode() + b"\n"
        try:
            if self._file is None:
                self._file = self._opened()
            self._file.write(line)
            # A reader of a terminal that is still open sees what its viewers have seen.
            self._file.flush()
            self._left -= len(line)
        except OSError as exc:
            log.warning("recording.failed", extra={"sandkasten": {"why": exc.strerror}})
            full = True
        if full:
            self.close()

    def _opened(self) -> IO[bytes]:
        self._path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC | os.O_NOFOLLOW
        file = os.fdopen(os.open(self._path, flags, 0o600), "wb")
        file.write(json.dumps(self._header, separators=(",", ":")).encode() + b"\n")
        return file


class RecordingDirectory:
    def __init__(self, path: Path, rules: RecordingRules, keep_s: float) -> None:
        self._path = path
        self._rules = rules
        self._keep_s = keep_s

    def begin(
        self, session_id: str, exec_id: str, title: str, *, rows: int = 24, cols: int = 80
    ) -> Recording | None:
        """Return what records one command; None if nothing is recorded."""
        if not self._rules.enabled:
            return None
        header: dict[str, object] = {
            "version": 2,
            "width": cols,
            "height": rows,
            "timestamp": int(time.time()),
            "title": title[:_TITLE_CHARS],
        }
        return Recording(self._file(session_id, exec_id), header, self._rules.max_bytes)

    async def list(self, session_id: str) -> Sequence[RecordingInfo]:
        """Return the recordings of a session, oldest first."""
        return await asyncio.to_thread(self._list, session_id)

    async def read(self, session_id: str, exec_id: str) -> bytes | None:
        """Return a recording; None if there is none."""
        return await asyncio.to_thread(self._read, session_id, exec_id)

    async def prune(self, now: float) -> None:
        await asyncio.to_thread(self._prune, now)

    def _file(self, session_id: str, exec_id: str) -> Path:
        return self._path / session_id / (exec_id + _SUFFIX)

    def _list(self, session_id: str) -> Sequence[RecordingInfo]:
        infos = []
        for path in (self._path / session_id).glob("*" + _SUFFIX):
            stat = path.stat()
            infos.append(RecordingInfo(path.stem, stat.st_size, stat.st_mtime))
        return sorted(infos, key=lambda info: info.at)

    def _read(self, session_id: str, exec_id: str) -> bytes | None:
        try:
            return self._file(session_id, exec_id).read_bytes()
        except FileNotFoundError:
            return None

    def _prune(self, now: float) -> None:
        """Remove whole sessions: those that are old, then the oldest while there is too much."""
        sessions = []
        for folder in self._path.glob("*"):
            files = [path.stat() for path in folder.glob("*" + _SUFFIX)]
            newest = max((status.st_mtime for status in files), default=0.0)
            sessions.append((newest, sum(status.st_size for status in files), folder))
        total = sum(size for _, size, _ in sessions)
        for newest, size, folder in sorted(sessions, key=lambda session: session[0]):
            if newest >= now - self._keep_s and total <= self._rules.max_total_bytes:
                return
            shutil.rmtree(folder, ignore_errors=True)
            total -= size
