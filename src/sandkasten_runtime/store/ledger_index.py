"""Keep the rows of a ledger in memory, and read a row again only if its file has changed.

Other processes change the ledger too. If the kernel reports changed names, a call reads as many
files as have changed, whatever the number of rows. If it does not, and at every sweep, the whole
directory is compared by inode, times and size. The first call sets up no watch, because many
processes list the ledger only once. Knows nothing about the format of a row; raises OSError if the
directory cannot be read.
"""

from __future__ import annotations

import os
import time
from bisect import bisect_left, insort
from contextlib import suppress
from typing import TYPE_CHECKING, Final

from sandkasten.disk.directory_watch import DirectoryWatch

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence
    from pathlib import Path

    from sandkasten.model.ids import SandboxId
    from sandkasten.model.sandbox.ledger_record import Record

# Inode, times and size of each file of one id.
_Stamp = frozenset[tuple[int, int, int, int]]

# Two replacements within one tick of the clock of a file system can have equal times, and inodes
# are used again. A file this young is therefore read again.
_YOUNG_NS: Final = 1_000_000_000


class LedgerIndex:
    def __init__(
        self,
        directory: Path,
        id_of: Callable[[str], SandboxId | None],
        read: Callable[[SandboxId, str | None], Record | None],
        is_there: Callable[[SandboxId], bool],
    ) -> None:
        """`id_of` returns the id that a file name belongs to, which may have several files. `read`
        returns its row, if possible from the file that is named, and `is_there` whether it has any
        file.
        """
        self._is_there = is_there
        self._directory = directory
        self._id_of = id_of
        self._read = read
        self._records: dict[SandboxId, Record] = {}
        self._order: list[tuple[float, SandboxId]] = []
        self._stamps: dict[SandboxId, _Stamp | None] = {}
        self._listed: tuple[Record, ...] | None = None
        self._watch: DirectoryWatch | None = None
        self._calls = 0
        self._closed = False

    def records(self) -> Sequence[Record]:
        """Return all rows, oldest first: the same sequence as before if nothing has changed."""
        self._calls += 1
        changed = None if self._watch is None else self._watch.changed()
        if changed is None:
            self._watch_anew()
            self._compare()
        else:
            for name in changed:
                the_id = self._id_of(name)
                if the_id is not None:
                    self._load(the_id)
        if self._listed is None:
            self._listed = tuple(self._records[the_id] for _, the_id in self._order)
        return self._listed

    def unreadable(self) -> Sequence[SandboxId]:
        """Compare the whole directory; return the ids whose file has no valid row."""
        self._compare()
        return [
            the_id
            for the_id in self._stamps
            if the_id not in self._records
            and self._read(the_id, None) is None
            and self._is_there(the_id)
        ]

    def close(self) -> None:
        """Stop watching; later calls compare the directory."""
        self._closed = True
        self._watch_anew()

    def _watch_anew(self) -> None:
        if self._watch is not None:
            self._watch.close()
            self._watch = None
        if self._calls > 1 and not self._closed:
            with suppress(OSError):
                self._watch = DirectoryWatch(self._directory)

    def _compare(self) -> None:
        young = time.time_ns() - _YOUNG_NS
        there: dict[SandboxId, _Stamp | None] = {}
        names: dict[SandboxId, str | None] = {}
        none: _Stamp = frozenset()
        with os.scandir(self._directory) as entries:
            for entry in entries:
                the_id = self._id_of(entry.name)
                if the_id is None:
                    continue
                try:
                    stat = entry.stat(follow_symlinks=False)
                except FileNotFoundError:
                    continue
                stamp = (stat.st_ino, stat.st_mtime_ns, stat.st_ctime_ns, stat.st_size)
                names[the_id] = None if the_id in there else entry.name
                stamps = there.get(the_id, none)
                if stamps is not None:
                    there[the_id] = stamps | {stamp} if stat.st_ctime_ns < young else None
        for the_id in [sandbox_id for sandbox_id in self._stamps if sandbox_id not in there]:
            self._set(the_id, None)
        before, self._stamps = self._stamps, there
        for the_id, now in there.items():
            if now is None or before.get(the_id) != now:
                self._set(the_id, self._read(the_id, names[the_id]))

    def _load(self, the_id: SandboxId) -> None:
        record = self._read(the_id, None)
        if record is None and not self._is_there(the_id):
            self._stamps.pop(the_id, None)
        else:
            self._stamps[the_id] = None
        self._set(the_id, record)

    def _set(self, the_id: SandboxId, record: Record | None) -> None:
        before = self._records.get(the_id)
        if before == record:
            return
        self._listed = None
        if before is not None:
            del self._order[bisect_left(self._order, (before.created_at, the_id))]
            del self._records[the_id]
        if record is not None:
            self._records[the_id] = record
            insort(self._order, (record.created_at, the_id))
