"""Changes of files as E2B's events: streamed, or collected until the client fetches them.

A collecting watcher is a task in the daemon. The number of watchers and the events of each are
bounded. A watcher ends with its sandbox, or when the client has not fetched its events for an hour.
"""

from __future__ import annotations

import asyncio
import json
import posixpath
import secrets
from collections import deque
from contextlib import aclosing, asynccontextmanager, suppress
from dataclasses import field
from time import monotonic
from typing import TYPE_CHECKING, Final

from sandkasten.errors import NotFound, QuotaExceeded, SandkastenError
from sandkasten.lazy_dataclass import dataclass
from sandkasten.model.files.sandbox_paths import sandbox_path
from sandkasten_e2b.file_entry_json import described
from sandkasten_e2b.sandbox_places import Spelling, real_path

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

    from sandkasten.model.files.file_entries import Change
    from sandkasten.model.ids import SandboxId
    from sandkasten_e2b.e2b_messages import WatchDir
    from sandkasten_runtime.engine.engine import Engine
    from sandkasten_runtime.engine.storage.sandbox_files import FileOperations

Event = dict[str, object]
_TYPES: Final = {
    "created": "EVENT_TYPE_CREATE",
    "modified": "EVENT_TYPE_WRITE",
    "deleted": "EVENT_TYPE_REMOVE",
    "moved": "EVENT_TYPE_RENAME",
}
_MAX_PER_SANDBOX: Final = 32
_MAX_EVENTS: Final = 10_000
# Size of the events of one watcher as JSON: 16 MB for all watchers of a sandbox. The entry of an
# event has up to 16 kB.
_MAX_EVENT_BYTES: Final = 512 << 10
# Reported in a row before others have their turn: all watchers may have thousands waiting.
_CHANGES_IN_A_ROW: Final = 16
# E2B keeps a watcher as long as its sandbox. Here, one that no client reads any more ends.
_FORGOTTEN_S: Final = 3600.0


@dataclass(slots=True, eq=False)
class _Watcher:
    sandbox: str
    path: str
    ready: asyncio.Event = field(default_factory=asyncio.Event)
    events: deque[bytes] = field(default_factory=deque)
    """As JSON, which takes a fraction of the memory of dictionaries."""
    event_bytes: int = 0
    fetched_at: float = field(default_factory=monotonic)
    error: SandkastenError | None = None
    task: asyncio.Task[None] | None = None


class FileWatchers:
    def __init__(self) -> None:
        self._watchers: dict[str, _Watcher] = {}

    @asynccontextmanager
    async def watching(
        self, files: FileOperations, the_id: SandboxId, message: WatchDir
    ) -> AsyncIterator[AsyncIterator[Event]]:
        """Watch a directory; no change inside the block is missed."""
        path = sandbox_path(real_path(message.path))
        async with files.watching(the_id, path, recursive=message.recursive) as changes:
            yield _events(files, the_id, message, path, changes)

    async def create(
        self, engine: Engine, files: FileOperations, the_id: SandboxId, message: WatchDir
    ) -> str:
        """Start a watcher that acts as the user of `files`."""
        self._forget()
        count = sum(watcher.sandbox == the_id for watcher in self._watchers.values())
        if count >= _MAX_PER_SANDBOX:
            raise QuotaExceeded(
                f"the sandbox has {_MAX_PER_SANDBOX} watchers",
                hint="stop one of them first",
                quota="connections",
            )
        watcher = _Watcher(the_id, sandbox_path(real_path(message.path)))
        the_watcher = secrets.token_hex(8)
        self._watchers[the_watcher] = watcher
        watcher.task = asyncio.get_running_loop().create_task(
            self._collect(engine, files, the_id, message, watcher)
        )
        try:
            await watcher.ready.wait()
        except asyncio.CancelledError:
            await self.remove(the_id, the_watcher)
            raise
        if watcher.error is not None:
            await self.remove(the_id, the_watcher)
            raise watcher.error
        return the_watcher

    async def drain(self, engine: Engine, the_id: SandboxId, watcher_id: str) -> list[Event]:
        """Return the events since the last call, with those of changes that were made before it."""
        watcher = self._get(the_id, watcher_id)
        watcher.fetched_at = monotonic()
        # The runner answers in order: what it saw before these calls arrives before the answers.
        for _ in range(2):
            with suppress(NotFound):
                await engine.files.stat(the_id, watcher.path)
        await asyncio.sleep(0)
        if watcher.error is not None and not watcher.events:
            raise watcher.error
        events: list[Event] = [json.loads(event) for event in watcher.events]
        watcher.events.clear()
        watcher.event_bytes = 0
        return events

    async def remove(self, the_id: SandboxId, watcher_id: str) -> None:
        self._get(the_id, watcher_id)
        await _end(self._watchers.pop(watcher_id))

    async def aclose(self) -> None:
        watchers = list(self._watchers.values())
        self._watchers.clear()
        for watcher in watchers:
            await _end(watcher)

    def _get(self, the_id: str, watcher_id: str) -> _Watcher:
        watcher = self._watchers.get(watcher_id)
        if watcher is None or watcher.sandbox != the_id:
            raise NotFound("no watcher has that id", hint="create it again with watch_dir")
        return watcher

    def _forget(self) -> None:
        now = monotonic()
        for the_watcher, watcher in list(self._watchers.items()):
            ended = watcher.task is not None and watcher.task.done()
            if now - watcher.fetched_at > _FORGOTTEN_S or (ended and not watcher.events):
                del self._watchers[the_watcher]
                if watcher.task is not None:
                    watcher.task.cancel()

    async def _collect(
        self,
        engine: Engine,
        files: FileOperations,
        the_id: SandboxId,
        message: WatchDir,
        watcher: _Watcher,
    ) -> None:
        try:
            async with self.watching(files, the_id, message) as events:
                watcher.ready.set()
                async with aclosing(events) as source:  # type: ignore[type-var]
                    async for event in source:
                        _keep(watcher, event)
        except SandkastenError as exc:
            watcher.error = exc
        finally:
            watcher.ready.set()
        if await _is_over(engine, the_id):
            # No request of the sandbox is served any more, so none fetches them.
            watcher.events.clear()


async def _is_over(engine: Engine, the_id: SandboxId) -> bool:
    try:
        return (await engine.get(the_id)).status in ("destroying", "lost")
    except NotFound:
        return True
    except SandkastenError:
        return False


def _keep(watcher: _Watcher, event: Event) -> None:
    """Keep the newest events, which describe the current state of the directory."""
    line = json.dumps(event, separators=(",", ":")).encode()
    watcher.events.append(line)
    watcher.event_bytes += len(line)
    while len(watcher.events) > _MAX_EVENTS or watcher.event_bytes > _MAX_EVENT_BYTES:
        watcher.event_bytes -= len(watcher.events.popleft())


async def _end(watcher: _Watcher) -> None:
    if watcher.task is not None:
        watcher.task.cancel()
        await asyncio.gather(watcher.task, return_exceptions=True)


async def _events(
    files: FileOperations,
    the_id: SandboxId,
    message: WatchDir,
    path: str,
    changes: AsyncIterator[Change],
) -> AsyncIterator[Event]:
    spelling = Spelling.of(message.path)
    count = 0
    async for change in changes:
        count += 1
        if count % _CHANGES_IN_A_ROW == 0:
            await asyncio.sleep(0)
        kind = _TYPES.get(change.change)
        if kind is None:
            # Changes were missed; E2B has no event for that.
            continue
        event: Event = {"name": posixpath.relpath(change.path, path), "type": kind}
        if message.includeEntry:
            with suppress(SandkastenError):
                entry = await files.stat(the_id, change.path, follow=False)
                event["entry"] = await described(files, the_id, entry, spelling)
        yield event
        if change.change == "created" and not change.is_dir:
            # A file written through the API appears with its content in one step, but programs wait
            # for a WRITE event.
            yield {**event, "type": _TYPES["modified"]}
            yield {**event, "type": "EVENT_TYPE_CHMOD"}
