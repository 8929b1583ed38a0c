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

from sandkasten.compat.e2b.file_entry_json import described
from sandkasten.compat.e2b.sandbox_places import Spelling, real_path
from sandkasten.errors import NotFound, QuotaExceeded, SandkastenError
from sandkasten.lazy_dataclass import dataclass
from sandkasten.model.files.sandbox_paths import sandbox_path

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

    from sandkasten.compat.e2b.e2b_messages import WatchDir
    from sandkasten.engine.engine import Engine
    from sandkasten.engine.storage.sandbox_files import FileOperations
    from sandkasten.model.files.file_entries import Change
    from sandkasten.model.ids import SandboxId

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
        if sum(one.sandbox == the_id for one in self._watchers.values()) >= _MAX_PER_SANDBOX:
            raise QuotaExceeded(
                f"the sandbox has {_MAX_PER_SANDBOX} watchers",
                hint="stop one of them first",
                quota="connections",
            )
        one = _Watcher(the_id, sandbox_path(real_path(message.path)))
        the_watcher = secrets.token_hex(8)
        self._watchers[the_watcher] = one
        one.task = asyncio.get_running_loop().create_task(
            self._collect(engine, files, the_id, message, one)
        )
        try:
            await one.ready.wait()
        except asyncio.CancelledError:
            await self.remove(the_id, the_watcher)
            raise
        if one.error is not None:
            await self.remove(the_id, the_watcher)
            raise one.error
        return the_watcher

    async def drain(self, engine: Engine, the_id: SandboxId, watcher_id: str) -> list[Event]:
        """Return the events since the last call, with those of changes that were made before it."""
        one = self._get(the_id, watcher_id)
        one.fetched_at = monotonic()
        # The runner answers in order: what it saw before these calls arrives before the answers.
        for _ in range(2):
            with suppress(NotFound):
                await engine.files.stat(the_id, one.path)
        await asyncio.sleep(0)
        if one.error is not None and not one.events:
            raise one.error
        events: list[Event] = [json.loads(event) for event in one.events]
        one.events.clear()
        one.event_bytes = 0
        return events

    async def remove(self, the_id: SandboxId, watcher_id: str) -> None:
        self._get(the_id, watcher_id)
        await _end(self._watchers.pop(watcher_id))

    async def aclose(self) -> None:
        watchers = list(self._watchers.values())
        self._watchers.clear()
        for one in watchers:
            await _end(one)

    def _get(self, the_id: str, watcher_id: str) -> _Watcher:
        found = self._watchers.get(watcher_id)
        if found is None or found.sandbox != the_id:
            raise NotFound("no watcher has that id", hint="create it again with watch_dir")
        return found

    def _forget(self) -> None:
        now = monotonic()
        for the_watcher, one in list(self._watchers.items()):
            ended = one.task is not None and one.task.done()
            if now - one.fetched_at > _FORGOTTEN_S or (ended and not one.events):
                del self._watchers[the_watcher]
                if one.task is not None:
                    one.task.cancel()

    async def _collect(
        self,
        engine: Engine,
        files: FileOperations,
        the_id: SandboxId,
        message: WatchDir,
        one: _Watcher,
    ) -> None:
        try:
            async with self.watching(files, the_id, message) as events:
                one.ready.set()
                async with aclosing(events) as source:  # type: ignore[type-var]
                    async for event in source:
                        _keep(one, event)
        except SandkastenError as exc:
            one.error = exc
        finally:
            one.ready.set()
        if await _is_over(engine, the_id):
            # No request of the sandbox is served any more, so none fetches them.
            one.events.clear()


async def _is_over(engine: Engine, the_id: SandboxId) -> bool:
    try:
        return (await engine.get(the_id)).status in ("destroying", "lost")
    except NotFound:
        return True
    except SandkastenError:
        return False


def _keep(one: _Watcher, event: Event) -> None:
    """Keep the newest events, which describe the current state of the directory."""
    kept = json.dumps(event, separators=(",", ":")).encode()
    one.events.append(kept)
    one.event_bytes += len(kept)
    while len(one.events) > _MAX_EVENTS or one.event_bytes > _MAX_EVENT_BYTES:
        one.event_bytes -= len(one.events.popleft())


async def _end(one: _Watcher) -> None:
    if one.task is not None:
        one.task.cancel()
        await asyncio.gather(one.task, return_exceptions=True)


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
