"""E2B's filesystem service: describe, list, make, move, remove and watch files."""

from __future__ import annotations

import posixpath
from contextlib import suppress
from typing import TYPE_CHECKING, Final

from sandkasten.errors import FileNotFound, NotADirectory, PayloadTooLarge
from sandkasten.model.files.sandbox_paths import WRITABLE, sandbox_path
from sandkasten_e2b.e2b_messages import ListDir, Move, OnePath, WatchDir, Watcher
from sandkasten_e2b.envd_access import follow, streamed_request
from sandkasten_e2b.file_entry_json import described_with_metadata
from sandkasten_e2b.sandbox_places import Spelling, real_path
from sandkasten_server.api.response.json_response import answer

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Mapping

    from starlette.responses import Response

    from sandkasten.model.files.file_entries import FileEntry
    from sandkasten.model.ids import SandboxId
    from sandkasten_e2b.envd_access import EnvdAccess
    from sandkasten_e2b.file_watchers import FileWatchers
    from sandkasten_runtime.engine.storage.sandbox_files import FileOperations
    from sandkasten_server.api.request.http_call import Call

# One answer holds the whole list; a page of 5000 entries has about a megabyte.
_MAX_ENTRIES: Final = 20_000
# A path has up to 4 kB, and a link names another one.
_MAX_PATH_BYTES: Final = 8 << 20
_PAGE: Final = 1000
_ALIVE: Final[Mapping[str, object]] = {"keepalive": {}}


class FilesystemRoutes:
    def __init__(self, access: EnvdAccess, watchers: FileWatchers) -> None:
        self._access = access
        self._watchers = watchers

    async def stat(self, call: Call) -> Response:
        the_id = await self._access.sandbox(call)
        path = (await call.body(OnePath)).path
        files = await self._access.files(call, the_id)
        entry = await files.stat(the_id, real_path(path), follow=False)
        return await self._entry(files, the_id, entry, path)

    async def make_dir(self, call: Call) -> Response:
        the_id = await self._access.sandbox(call)
        path = (await call.body(OnePath)).path
        files = await self._access.files(call, the_id)
        entry = await files.mkdir(the_id, real_path(path), exist_ok=False)
        return await self._entry(files, the_id, entry, path)

    async def move(self, call: Call) -> Response:
        the_id = await self._access.sandbox(call)
        message = await call.body(Move)
        target = sandbox_path(real_path(message.destination))
        above = posixpath.dirname(target)
        files = await self._access.files(call, the_id)
        if above.startswith(tuple(f"{place}/" for place in WRITABLE)):
            await files.mkdir(the_id, above)
        source = real_path(message.source)
        entry = await files.move(the_id, source, target, overwrite=True)
        return await self._entry(files, the_id, entry, message.destination)

    async def remove(self, call: Call) -> Response:
        the_id = await self._access.sandbox(call)
        path = real_path((await call.body(OnePath)).path)
        files = await self._access.files(call, the_id)
        # As in E2B, it is enough that the path does not exist afterwards.
        with suppress(FileNotFound):
            await files.remove(the_id, path, recursive=True)
        return answer({})

    async def list_dir(self, call: Call) -> Response:
        the_id = await self._access.sandbox(call)
        message = await call.body(ListDir)
        path = sandbox_path(real_path(message.path))
        files = await self._access.files(call, the_id)
        await _check_directory(files, the_id, path)
        # This can take thousands of exchanges with the sandbox; a client that leaves ends it.
        entries = await call.while_there(_entries(files, the_id, path, message))
        return answer({"entries": entries})

    async def watch_dir(self, call: Call) -> Response:
        the_id = await self._access.sandbox(call)
        message = await streamed_request(call, WatchDir)
        files = await self._access.files(call, the_id)
        await _check_directory(files, the_id, real_path(message.path))
        return follow(call, self._changes(files, the_id, message), _ALIVE)

    async def create_watcher(self, call: Call) -> Response:
        the_id = await self._access.sandbox(call)
        message = await call.body(WatchDir)
        files = await self._access.files(call, the_id)
        await _check_directory(files, the_id, real_path(message.path))
        watcher_id = await self._watchers.create(call.engine, files, the_id, message)
        return answer({"watcherId": watcher_id})

    async def watcher_events(self, call: Call) -> Response:
        the_id = await self._access.sandbox(call)
        watcher_id = (await call.body(Watcher)).watcherId
        return answer({"events": await self._watchers.drain(call.engine, the_id, watcher_id)})

    async def remove_watcher(self, call: Call) -> Response:
        the_id = await self._access.sandbox(call)
        await self._watchers.remove(the_id, (await call.body(Watcher)).watcherId)
        return answer({})

    async def _changes(
        self, files: FileOperations, the_id: SandboxId, message: WatchDir
    ) -> AsyncIterator[Mapping[str, object]]:
        async with self._watchers.watching(files, the_id, message) as events:
            yield {"start": {}}
            async for event in events:
                yield {"filesystem": event}

    async def _entry(
        self, files: FileOperations, the_id: SandboxId, entry: FileEntry, path: str
    ) -> Response:
        spelling = Spelling.of(path)
        [document] = await described_with_metadata(files, the_id, [entry], spelling)
        return answer({"entry": document})


async def _check_directory(files: FileOperations, the_id: SandboxId, path: str) -> None:
    directory = await files.stat(the_id, path)
    if not directory.is_dir:
        raise NotADirectory(f"{directory.path} is not a directory", hint="name a directory")


async def _entries(
    files: FileOperations, the_id: SandboxId, path: str, message: ListDir
) -> list[dict[str, object]]:
    entries = await _listed(files, the_id, path, max(1, message.depth))
    spelling = Spelling.of(message.path)
    return await described_with_metadata(files, the_id, entries, spelling)


async def _listed(
    files: FileOperations, the_id: SandboxId, path: str, depth: int
) -> list[FileEntry]:
    entries: list[FileEntry] = []
    path_bytes = 0
    cursor: str | None = None
    level = path.rstrip("/").count("/")
    while True:
        page = await files.list(the_id, path, recursive=depth > 1, limit=_PAGE, cursor=cursor)
        shown = [entry for entry in page.entries if entry.path.count("/") - level <= depth]
        entries += shown
        path_bytes += sum(2 * len(entry.path) + len(entry.target or "") for entry in shown)
        if len(entries) > _MAX_ENTRIES or path_bytes > _MAX_PATH_BYTES:
            raise PayloadTooLarge(
                f"the directory has more than {_MAX_ENTRIES} entries, or longer paths than fit in "
                "one answer",
                hint="list its directories one by one, or use find in a command",
                limit=_MAX_ENTRIES,
            )
        cursor = page.next
        if cursor is None:
            return entries
