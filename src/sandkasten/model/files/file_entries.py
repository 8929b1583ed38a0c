"""Files inside a sandbox; paths are absolute in the sandbox's view.

Names are arbitrary bytes chosen by the sandbox: a `str` here may hold surrogate escapes
(`os.fsencode` returns the bytes). Show them, never trust them.
"""

from __future__ import annotations

from dataclasses import field
from typing import Literal

from sandkasten.lazy_dataclass import dataclass
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
    """Content of a file. `size` is the true size; `truncated` means that `data` is a part."""

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
    """A change to a file. `overflow` (path "") means that changes were missed: list again."""

    change: Literal["created", "modified", "deleted", "moved", "overflow"] = field(
        metadata={"json": "kind"}
    )
    path: FileName
    is_dir: bool = False


@dataclass(frozen=True, slots=True)
class TarSummary:
    entries: int
    bytes: int = field(metadata={"json": "size_bytes"})
