"""File routes: operations as JSON, streamed files and trees, changes as events.

One table for everything that has files: `file_routes` creates it for sessions here and for named
workspaces in their own module.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from sandkasten.errors import (
    Conflict,
    DirectoryNotEmpty,
    FileExists,
    FileNotFound,
    FilePermission,
    FileTrouble,
    IsADirectory,
    NotADirectory,
    NotRegular,
    PayloadTooLarge,
    PolicyDenied,
    QuotaExceeded,
    SessionExpired,
    SessionNotFound,
    WorkspaceDamaged,
)
from sandkasten.model.field_patterns import ANY_BASE64, PATH, shown_form
from sandkasten.model.files.sandbox_paths import PATH_MAX
from sandkasten_server.api.files.file_handlers import FORM, Verbs
from sandkasten_server.api.files.file_locations import of_session
from sandkasten_server.api.files.file_schemas import (
    Content,
    DeleteBody,
    DeletedFiles,
    DeleteQuery,
    DownloadQuery,
    Entries,
    FileEntryAnswer,
    FileQuery,
    ListQuery,
    MkdirBody,
    MoveBody,
    ReadQuery,
    StatQuery,
    Uploaded,
    UploadQuery,
    WatchQuery,
    WriteBody,
    Written,
)
from sandkasten_server.api.files.file_transfers import OCTETS, TAR
from sandkasten_server.api.route import EVENTS, Route

if TYPE_CHECKING:
    from sandkasten.errors import SandkastenError
    from sandkasten.model.access.tenancy import Scope
    from sandkasten_server.api.files.file_locations import Place

_CONDITIONS = {
    "Range": "One range of bytes.",
    "If-Range": "With Range: send the range only if the file still has this ETag.",
    "If-None-Match": "Answer only if the file has none of these ETags.",
}
_FORM = {
    "path": {"type": "string", "pattern": shown_form(PATH), "maxLength": PATH_MAX - 1},
    "path_b64": {"type": "string", "pattern": shown_form(ANY_BASE64)},
    "file": {"type": "string", "format": "binary"},
    "files": {"type": "array", "items": {"type": "string", "format": "binary"}},
}
_FOUND = (FileNotFound, NotADirectory, FilePermission, PolicyDenied, FileTrouble, Conflict)
# A disk of the host that is full or failed, also when something is removed.
_DISK = (QuotaExceeded, WorkspaceDamaged)
_MADE = (*_FOUND, *_DISK, FileExists, IsADirectory, NotRegular, PayloadTooLarge)


def file_routes(
    prefix: str,
    place: Place,
    *,
    tag: str,
    scope: Scope,
    missing: tuple[type[SandkastenError], ...],
) -> tuple[Route, ...]:
    """Return every file route below `prefix`; `missing` are the errors of a missing location."""
    verbs = Verbs(place)
    look = (*missing, *_FOUND)
    make = (*missing, *_MADE)
    removed = (*look, *_DISK, IsADirectory, DirectoryNotEmpty)
    files = f"{prefix}/fs"
    return (
        Route(
            "POST", f"{files}/write", verbs.write, "Write a file", tag, scope,
            body=WriteBody, answer=Written, errors=make,
            description="Atomic: a reader sees the old file or the new one. At most 10 MiB.",
        ),
        Route(
            "PUT", f"{files}/file", verbs.put, "Write a file of any size", tag, scope,
            query=FileQuery, takes=("*/*",), reads_body=True, body_required=False,
            answer=Written, errors=make,
            description="The body is the file, streamed; the workspace's quota limits its size.",
        ),
        Route(
            "GET", f"{files}/read", verbs.read, "Read a file", tag, scope,
            query=ReadQuery, answer=Content,
            errors=(*look, IsADirectory, NotRegular, PayloadTooLarge),
        ),
        Route(
            "GET", f"{files}/list", verbs.list, "List a directory", tag, scope,
            query=ListQuery, answer=Entries, errors=look,
        ),
        Route(
            "GET", f"{files}/stat", verbs.stat, "Describe a file", tag, scope,
            query=StatQuery, answer=FileEntryAnswer, errors=look,
        ),
        Route(
            "POST", f"{files}/mkdir", verbs.mkdir, "Create a directory", tag, scope,
            body=MkdirBody, answer=Written, errors=make,
        ),
        Route(
            "POST", f"{files}/move", verbs.move, "Move or rename", tag, scope,
            body=MoveBody, answer=Written, errors=(*make, DirectoryNotEmpty),
        ),
        Route(
            "POST", f"{files}/delete", verbs.delete, "Delete a file or a tree", tag, scope,
            body=DeleteBody, answer=DeletedFiles, errors=removed,
        ),
        Route(
            "DELETE", files, verbs.delete_by_query, "Delete a file or a tree", tag, scope,
            query=DeleteQuery, answer=DeletedFiles, errors=removed,
        ),
        Route(
            "POST", f"{files}/upload", verbs.upload, "Upload files, or a tar", tag, scope,
            query=UploadQuery, takes=(FORM, TAR), reads_body=True, form=_FORM,
            answer=Uploaded, errors=make,
            description="A form with up to 100 parts named `file` (or `files`), each with a file "
            "name, and a field `path`: the directory. Or a tar, unpacked below `path` inside the "
            "sandbox. Streamed; each file is whole or not there.",
        ),
        Route(
            "GET", f"{files}/download", verbs.download, "Download a file, or a tree as a tar",
            tag, scope, query=DownloadQuery, activity="work", gives=(OCTETS, TAR),
            also={206: None, 304: None}, fails={416: "the range"}, headers=_CONDITIONS,
            errors=(*look, NotRegular),
            description="`Range`, `If-Range`, `If-None-Match` and HEAD are understood (206, 304, "
            "416). Sent as an attachment, never as a page.",
        ),
    )  # fmt: skip


_GONE = (SessionNotFound, SessionExpired)

ROUTES = (
    *file_routes("/v1/sessions/{id}", of_session, tag="files", scope="sessions", missing=_GONE),
    Route(
        "GET", "/v1/sessions/{id}/fs/watch", Verbs(of_session).watch, "Watch for changes", "files",
        query=WatchQuery, gives=(EVENTS,), errors=(*_GONE, *_FOUND),
        description="Events: `ready` once nothing is missed any more, `change` with kind "
        "(created, modified, deleted, moved), path and is_dir, `overflow` when changes were "
        "missed, `error` at the end when the sandbox went.",
    ),
)  # fmt: skip
