"""A whole directory from pages, with a limit on the number of entries."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from sandkasten.errors import PayloadTooLarge

if TYPE_CHECKING:
    from sandkasten.client.server.transport import FilesTransport
    from sandkasten.model.files.file_entries import FileEntry

# A listing is as long as the sandbox says; this keeps a hostile one out of our memory.
MAX_LISTED: Final = 200_000
PAGE: Final = 5_000


async def listed(
    files: FilesTransport, sandbox_id: str, path: str, *, recursive: bool, limit: int | None
) -> list[FileEntry]:
    """Return all entries (PayloadTooLarge over MAX_LISTED), or the first `limit`."""
    found: list[FileEntry] = []
    cursor: str | None = None
    while limit is None or len(found) < limit:
        size = PAGE if limit is None else min(PAGE, limit - len(found))
        page = await files.list(sandbox_id, path, recursive=recursive, limit=size, cursor=cursor)
        found.extend(page.entries)
        cursor = page.next
        # An empty page that promises more would keep us asking for ever.
        if cursor is None or not page.entries:
            break
        if limit is None and len(found) > MAX_LISTED:
            raise PayloadTooLarge(
                f"{path} has more than {MAX_LISTED} entries",
                hint="list a directory below it, or give a limit",
            )
    return found
