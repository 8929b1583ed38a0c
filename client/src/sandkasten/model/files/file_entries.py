"""Files inside a sandbox; paths are absolute in the sandbox's view.

Names are arbitrary bytes chosen by the sandbox: a `str` here may hold surrogate escapes
(`os.fsencode` returns the bytes). Show them, never trust them.
"""

from __future__ import annotations

from dataclasses import field
from typing import Literal, cast

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
    """Content of a file. `size` is the true size; `truncated` means that `data` is a part.

    `data` may be FileBytes without its attributes, so that it need not be copied to have them.
    """

    path: str
    data: bytes
    size: int
    truncated: bool


class FileBytes(bytes):
    """The bytes of a file, with their path and whether they are complete."""

    path: str
    size: int
    """The true size of the file."""
    truncated: bool

    def __new__(cls, data: bytes, path: str, size: int, truncated: bool) -> FileBytes:
        # One without attributes was read for this purpose, and is not copied.
        fresh = type(data) is FileBytes and not hasattr(data, "path")
        content = cast("FileBytes", data) if fresh else super().__new__(cls, data)
        content.path = path
        content.size = size
        content.truncated = truncated
        return content

    @property
    def content(self) -> bytes:
        return self

    @property
    def text(self) -> str:
        return self.decode("utf-8", "replace")

    def __getnewargs__(self) -> tuple[bytes, str, int, bool]:  # type: ignore[override]
        return (bytes(self), self.path, self.size, self.truncated)


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


def utf8_text(data: bytes, *, truncated: bool) -> str | None:
    """Decode UTF-8; return None if it is not. A truncated part may end within a character, which
    is cut off.
    """
    try:
        return data.decode()
    except UnicodeDecodeError as exc:
        if truncated and exc.start > 0 and len(data) - exc.start < 4 and exc.end == len(data):
            return data[: exc.start].decode()
        return None
