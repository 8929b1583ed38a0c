"""Files as E2B's filesystem service describes them."""

from __future__ import annotations

import posixpath
import stat
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Final

from sandkasten.errors import SandkastenError
from sandkasten_e2b.sandbox_places import Spelling, owner_name

if TYPE_CHECKING:
    from collections.abc import Sequence

    from sandkasten.model.files.file_entries import FileEntry
    from sandkasten.model.ids import SandboxId
    from sandkasten_runtime.engine.storage.sandbox_files import FileOperations

METADATA_SPACE: Final = "e2b."
"""Metadata of a file are its extended attributes `user.e2b.*`."""
_TYPES: Final = {
    "file": "FILE_TYPE_FILE",
    "directory": "FILE_TYPE_DIRECTORY",
    "symlink": "FILE_TYPE_SYMLINK",
}
_KINDS: Final = {
    "file": stat.S_IFREG,
    "directory": stat.S_IFDIR,
    "symlink": stat.S_IFLNK,
    "fifo": stat.S_IFIFO,
    "socket": stat.S_IFSOCK,
    "char": stat.S_IFCHR,
    "block": stat.S_IFBLK,
}


async def described_with_metadata(
    files: FileOperations, the_id: SandboxId, entries: Sequence[FileEntry], spelling: Spelling
) -> list[dict[str, object]]:
    """Return entries as JSON, each with the metadata of its file if it has some."""
    paths = [entry.path for entry in entries if entry.type == "file"]
    attributes = await files.attributes(the_id, paths, prefix=METADATA_SPACE)
    metadata = dict(zip(paths, attributes, strict=True))
    documents = []
    for entry in entries:
        document = await described(files, the_id, entry, spelling)
        if metadata.get(entry.path):
            named = metadata[entry.path].items()
            document["metadata"] = {
                name.removeprefix(METADATA_SPACE): value for name, value in named
            }
        documents.append(document)
    return documents


async def described(
    files: FileOperations, the_id: SandboxId, entry: FileEntry, spelling: Spelling
) -> dict[str, object]:
    """Return an entry as JSON; a link has the type of its target, if that exists."""
    kind: str = entry.type
    if kind == "symlink":
        try:
            kind = (await files.stat(the_id, entry.path)).type
        except SandkastenError:
            kind = "symlink"
    return entry_fields(entry, kind, spelling)


def entry_fields(entry: FileEntry, kind: str, spelling: Spelling) -> dict[str, object]:
    fields: dict[str, object] = {
        "name": entry.name,
        "type": _TYPES.get(kind, "FILE_TYPE_UNSPECIFIED"),
        "path": spelling.shown(entry.path),
        # 64-bit integers are strings in the JSON of protobuf.
        "size": str(entry.size),
        "mode": entry.mode & 0o7777,
        "permissions": stat.filemode(_KINDS[entry.type] | (entry.mode & 0o7777)),
        "owner": owner_name(entry.uid),
        "group": owner_name(entry.gid),
        "modifiedTime": _timestamp(entry.mtime_unix),
    }
    if entry.target is not None:
        above = posixpath.dirname(entry.path)
        fields["symlinkTarget"] = spelling.shown(posixpath.join(above, entry.target))
        fields["isSymlink"] = True
    return fields


def _timestamp(unix: int) -> str:
    try:
        return datetime.fromtimestamp(unix, UTC).strftime("%Y-%m-%dT%H:%M:%SZ")
    except (ValueError, OverflowError, OSError):
        # A program inside can set any time, also one that Python cannot represent.
        return "1970-01-01T00:00:00Z"
