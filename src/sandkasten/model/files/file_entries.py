"""Files inside a sandbox as the file verbs describe them; paths are absolute in its own view.

Names are whatever bytes the sandbox chose: a `str` here may hold surrogate escapes
(`os.fsencode` gives the bytes back), and must be shown, never trusted.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Literal

from sandkasten.model.json_codec import FileName  # noqa: TC001  (the codec reads the annotations)

FileType = Literal["file", "directory", "symlink", "fifo", "socket", "char", "block"]


@dataclass(frozen=True, slots=True)
class FileEntry:
    path: FileName
    name: FileName
    type: FileType
    size: int
    mode: int
    mtime_unix: int
    uid: int = 0
    gid: int = 0
    target: FileName | None = None
    """Where a symlink points, as written in it."""

    @property
    def is_dir(self) -> bool:
        return self.type == "directory"


@dataclass(frozen=True, slots=True)
class FileContent:
    """`size` is the true size of the file; `truncated` says that `data` is not all of it."""

    path: str
    data: bytes
    size: int
    truncated: bool


@dataclass(frozen=True, slots=True)
class Listing:
    """One page. `next` is an opaque cursor, None on the last page."""

    entries: tuple[FileEntry, ...]
    next: str | None = field(default=None, metadata={"json": "next_cursor"})


@dataclass(frozen=True, slots=True)
class Change:
    """`overflow` (path "") says that changes were missed and the caller should list again."""

    change: Literal["created", "modified", "deleted", "moved", "overflow"] = field(
        metadata={"json": "kind"}
    )
    path: FileName
    is_dir: bool = False


@dataclass(frozen=True, slots=True)
class TarSummary:
    entries: int
    bytes: int = field(metadata={"json": "size_bytes"})
