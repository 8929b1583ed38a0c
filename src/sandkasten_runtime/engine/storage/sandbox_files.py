"""File verbs. Every path is resolved by the sandbox's own kernel; this adds the operator's rules.

Reads and writes are refused under `policy.blocked_paths`, and writes also outside the workspace,
/tmp, the home and writable host mounts; both are checked by the runner after symlinks are resolved.
Failures are the FileError and NotFound classes, QuotaExceeded when the sandbox's or the host's disk
is full, WorkspaceDamaged when the workspace's file system failed, PolicyDenied for a rule.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterable, AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from copy import copy
from typing import TYPE_CHECKING

from sandkasten.disk import free_space
from sandkasten.errors import (
    FilePermission,
    FileTrouble,
    InvalidRequest,
    IsADirectory,
    NotRegular,
    ProtocolViolation,
    QuotaExceeded,
    SandkastenError,
    UnsupportedByBackend,
)
from sandkasten.model.commands.accounts import account_text
from sandkasten.model.files.file_entries import Change, FileContent, FileEntry, Listing, TarSummary
from sandkasten.model.files.file_limits import MAX_WHOLE_READ
from sandkasten.model.files.sandbox_paths import WRITABLE, sandbox_path
from sandkasten.model.numbers import whole
from sandkasten.model.sandbox.cell_spec import WORKSPACE
from sandkasten_runtime.engine.audit_trail import FileChange
from sandkasten_runtime.engine.sandbox_users import file_user
from sandkasten_runtime.engine.storage.file_streams import changes_of, pieces_of
from sandkasten_runtime.engine.storage.open_file import OpenFile, opened
from sandkasten_runtime.wire.call import CallEvent
from sandkasten_runtime.wire.frame_codec import HAS_ATTRIBUTES
from sandkasten_runtime.wire.json_bodies import to_bytes_json
from sandkasten_runtime.wire.messages import FileStat, decode_attributes, decode_entry, decode_page
from sandkasten_runtime.wire.runner_errors import READ_ONLY, became_read_only

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence
    from pathlib import Path

    from sandkasten.model.sandbox.ledger_record import Record
    from sandkasten.model.sandbox.policy import Policy
    from sandkasten_runtime.engine.handles import Handle, Handles
    from sandkasten_runtime.wire.channel import Channel

CALL_TIMEOUT_S = 60.0
MAX_PAGE = 5000
_MAX_OFFSET = 2**62
# Files whose attributes are asked for at once.
_MAX_ATTRIBUTES_OF = 1000
# What a runner answers if the file system below it has no room, failed, or gave up.
_DISK_CODES = frozenset({"no_space", "io", READ_ONLY})


class FileOperations:
    def __init__(self, handles: Handles, policy: Policy, host_disk: Path | None = None) -> None:
        """`host_disk`: a directory on the disk that holds workspaces."""
        self._handles = handles
        self._disk = policy.disk
        self._host_disk = host_disk
        self._deny: dict[str, object] = {
            "deny": [to_bytes_json(path) for path in policy.blocked_paths]
        }
        self._change: dict[str, object] = dict(self._deny)
        if not policy.disk.flush:
            self._change["flush"] = False
        self._user: str | None = None

    def by(self, user: str | None) -> FileOperations:
        """Return the same operations as another user of the sandbox, `USER[:GROUP]`."""
        if user is None:
            return self
        other = copy(self)
        other._user = account_text(user)
        return other

    async def read(
        self,
        sandbox_id: str,
        path: str,
        *,
        offset: int = 0,
        limit: int | None = None,
        max_bytes: int | None = None,
    ) -> FileContent:
        """Read up to `limit` or `max_bytes` from `offset`; without either, the whole file or
        PayloadTooLarge.
        """
        bounds = [
            whole(name, value, low=0, high=_MAX_OFFSET)
            for name, value in (("limit", limit), ("max_bytes", max_bytes))
            if value is not None
        ]
        count = min(bounds) if bounds else None
        if count is not None and count > MAX_WHOLE_READ:
            count = None
        fields = self._range(path, offset, count)
        if count is None:
            fields["max"] = MAX_WHOLE_READ
        async with self._opened(sandbox_id, path, fields, hold=False) as file:
            data = await file.content(offset, MAX_WHOLE_READ if count is None else count)
        size = file.entry.size
        return FileContent(file.entry.path, data, size, offset + len(data) < size)

    @asynccontextmanager
    async def read_stream(
        self, sandbox_id: str, path: str, *, offset: int = 0, limit: int | None = None
    ) -> AsyncIterator[tuple[FileEntry, AsyncIterator[bytes]]]:
        """Return the entry and its bytes as they arrive. Leaving early stops the transfer."""
        if limit is not None:
            limit = whole("limit", limit, low=0, high=_MAX_OFFSET)
        fields = self._range(path, offset, limit)
        async with self._opened(sandbox_id, path, fields, hold=True) as file:
            yield file_entry(file.entry), file.pieces(offset, limit)

    @asynccontextmanager
    async def _opened(
        self, sandbox_id: str, path: str, fields: dict[str, object], *, hold: bool
    ) -> AsyncIterator[OpenFile]:
        handle, channel = await self._connect(sandbox_id, fields)
        async with self._handles.explaining(handle), AsyncExitStack() as stack:
            async with self._telling_directories(sandbox_id, path):
                file = await stack.enter_async_context(opened(channel, fields, hold=hold))
            yield file

    async def write(
        self,
        sandbox_id: str,
        path: str,
        data: bytes | AsyncIterable[bytes],
        *,
        mode: int | None = None,
        overwrite: bool = True,
        flush: bool = True,
        attributes: Mapping[str, str] | None = None,
    ) -> FileEntry:
        """Write the whole file or nothing: readers see the old file until the last byte has
        arrived. `flush=False` acknowledges it before it is on disk. The file has the extended
        attributes `user.{name}` of `attributes` and no others.
        """
        fields = self._arrival(path, flush=flush)
        if mode is not None:
            fields["mode"] = whole("mode", mode, low=0, high=0o7777)
        if not overwrite:
            fields["overwrite"] = False
        if attributes:
            fields["attributes"] = dict(attributes)
        change = FileChange("file.write", path)
        async with (
            self._telling_directories(sandbox_id, path),
            self._changing(sandbox_id, fields, change) as channel,
        ):
            if attributes and channel.hello.generation < HAS_ATTRIBUTES:
                raise UnsupportedByBackend(
                    "the runner of this sandbox is too old for attributes of files",
                    hint="leave them out, or create a new sandbox",
                )
            if isinstance(data, bytes | bytearray | memoryview):
                fields["size"] = len(data)
                done = await channel.call("fs.write", fields, data=bytes(data))
                return change.made(file_entry(decode_entry(done)))
            if not isinstance(data, AsyncIterable):
                raise InvalidRequest("file content must be bytes", hint="encode the string first")
            async with channel.stream("fs.write", fields) as call:
                async for part in data:
                    await call.send(part)
                await call.end()
                return change.made(file_entry(decode_entry(await call.result())))

    @asynccontextmanager
    async def _telling_directories(self, sandbox_id: str, path: str) -> AsyncIterator[None]:
        """Raise IsADirectory for a directory: the runner's code is the same as for a FIFO."""
        try:
            yield
        except NotRegular as exc:
            try:
                entry = await self.stat(sandbox_id, path)
            except SandkastenError:
                raise exc from None
            if not entry.is_dir:
                raise
            raise IsADirectory(
                f"{entry.path} is a directory",
                hint="name a file, or list or download it",
                path=sandbox_path(path),
            ) from exc

    async def stat(self, sandbox_id: str, path: str, *, follow: bool = True) -> FileEntry:
        body = await self._call(sandbox_id, "fs.stat", path, self._deny, follow=follow)
        return file_entry(decode_entry(body))

    async def list(
        self,
        sandbox_id: str,
        path: str = WORKSPACE,
        *,
        recursive: bool = False,
        limit: int = 1000,
        cursor: str | None = None,
    ) -> Listing:
        """Return one sorted page; pass `next` as `cursor` for the following page."""
        fields: dict[str, object] = {
            "recursive": bool(recursive),
            "limit": whole("limit", limit, low=1, high=MAX_PAGE),
        }
        if cursor is not None:
            fields["cursor"] = to_bytes_json(cursor)
        page = decode_page(await self._call(sandbox_id, "fs.list", path, self._deny, **fields))
        return Listing(tuple(file_entry(entry) for entry in page.entries), page.next)

    async def attributes(
        self, sandbox_id: str, paths: Sequence[str], *, prefix: str = ""
    ) -> tuple[Mapping[str, str], ...]:
        """Return the extended attributes `user.{prefix}…` of files, by names without `user.`.

        No link is followed. What is not a file has none, and so has every file of a sandbox whose
        runner is older than attributes.
        """
        attributes: list[Mapping[str, str]] = []
        rest: dict[str, object] = {"prefix": prefix, **self._deny}
        handle, channel = await self._connect(sandbox_id, rest)
        if channel.hello.generation < HAS_ATTRIBUTES:
            return tuple({} for _ in paths)
        while len(attributes) < len(paths):
            part = paths[len(attributes) : len(attributes) + _MAX_ATTRIBUTES_OF]
            fields = {"paths": [to_bytes_json(sandbox_path(path)) for path in part], **rest}
            async with self._handles.explaining(handle):
                body = await channel.call("fs.attributes", fields, timeout_s=CALL_TIMEOUT_S)
            # The answer may be shorter; one without progress would never end.
            page = decode_attributes(body, len(part))
            if not page:
                raise ProtocolViolation("the runner sent no attributes of files")
            attributes += page
        return tuple(attributes)

    async def mkdir(
        self,
        sandbox_id: str,
        path: str,
        *,
        parents: bool = True,
        exist_ok: bool = True,
        mode: int | None = None,
    ) -> FileEntry:
        fields: dict[str, object] = {
            "path": to_bytes_json(sandbox_path(path)),
            "parents": parents,
            "exist_ok": exist_ok,
            **self._change,
        }
        if mode is not None:
            fields["mode"] = whole("mode", mode, low=0, high=0o7777)
        change = FileChange("file.mkdir", path)
        async with self._changing(sandbox_id, fields, change) as channel:
            done = await channel.call("fs.mkdir", fields, timeout_s=CALL_TIMEOUT_S)
        return file_entry(decode_entry(done))

    async def move(
        self, sandbox_id: str, source: str, destination: str, *, overwrite: bool = False
    ) -> FileEntry:
        fields: dict[str, object] = {
            "source": to_bytes_json(sandbox_path(source)),
            "destination": to_bytes_json(sandbox_path(destination)),
            "overwrite": overwrite,
            **self._change,
        }
        change = FileChange("file.move", source, {"destination": destination})
        async with self._changing(sandbox_id, fields, change) as channel:
            # A move across file systems copies, which has no useful deadline.
            return file_entry(decode_entry(await channel.call("fs.move", fields)))

    async def remove(
        self, sandbox_id: str, path: str, *, recursive: bool = False, missing_ok: bool = False
    ) -> int:
        """Remove a path and return the number of entries removed. The workspace, /tmp and the home
        themselves cannot be removed.
        """
        target = sandbox_path(path)
        if target in (*WRITABLE, "/"):
            raise InvalidRequest(
                f"{target} itself cannot be removed",
                hint="remove its contents instead",
                field="path",
            )
        fields: dict[str, object] = {
            "path": to_bytes_json(target),
            "recursive": recursive,
            "missing_ok": missing_ok,
            **self._change,
        }
        change = FileChange("file.remove", path)
        async with self._changing(sandbox_id, fields, change, needs_space=False) as channel:
            # No deadline: a million files take a while, and half a removal is useless.
            removed = _figure(await channel.call("fs.remove", fields), "removed")
            change.detail["removed"] = str(removed)
            return removed

    async def watch(
        self, sandbox_id: str, path: str = WORKSPACE, *, recursive: bool = True
    ) -> AsyncIterator[Change]:
        """Yield changes, starting when the first item is requested, until the caller leaves."""
        async with self.watching(sandbox_id, path, recursive=recursive) as changes:
            async for change in changes:
                yield change

    @asynccontextmanager
    async def watching(
        self, sandbox_id: str, path: str = WORKSPACE, *, recursive: bool = True
    ) -> AsyncIterator[AsyncIterator[Change]]:
        """Watch a path. No change is missed inside the block; the iterator reports them."""
        fields: dict[str, object] = {
            "path": to_bytes_json(sandbox_path(path)),
            "recursive": recursive,
            **self._deny,
        }
        handle, channel = await self._connect(sandbox_id, fields)
        async with (
            self._handles.explaining(handle),
            channel.stream("fs.watch", fields) as call,
        ):
            async for item in call:
                if isinstance(item, CallEvent) and item.name == "watching":
                    break
            yield changes_of(call)

    async def tar_in(
        self,
        sandbox_id: str,
        path: str,
        data: bytes | AsyncIterable[bytes],
        *,
        max_bytes: int | None = None,
        max_entries: int | None = None,
        flush: bool = True,
    ) -> TarSummary:
        """Unpack a tar inside the sandbox. A member that leads out of `path` raises
        PolicyDenied. `flush=False` acknowledges it before it is on disk.
        """
        fields = self._arrival(path, flush=flush)
        if max_bytes is not None:
            fields["max_bytes"] = whole("max_bytes", max_bytes, low=0, high=_MAX_OFFSET)
        if max_entries is not None:
            fields["max_entries"] = whole("max_entries", max_entries, low=0, high=_MAX_OFFSET)
        change = FileChange("file.unpack", path)
        async with (
            self._changing(sandbox_id, fields, change) as channel,
            channel.stream("fs.tar_in", fields) as call,
        ):
            if isinstance(data, bytes | bytearray | memoryview):
                await call.send(data)
            else:
                async for part in data:
                    await call.send(part)
            await call.end()
            summary = _summary(await call.result())
            change.detail["entries"] = str(summary.entries)
            return summary

    async def tar_out(self, sandbox_id: str, path: str) -> AsyncIterator[bytes]:
        fields: dict[str, object] = {"path": to_bytes_json(sandbox_path(path)), **self._deny}
        handle, channel = await self._connect(sandbox_id, fields)
        async with (
            self._handles.explaining(handle),
            channel.stream("fs.tar_out", fields) as call,
        ):
            async for data in pieces_of(call):
                yield data

    async def _connect(self, sandbox_id: str, fields: dict[str, object]) -> tuple[Handle, Channel]:
        """Return the way to a sandbox, and add the user to the fields of a request."""
        handle, channel = await self._handles.connect(sandbox_id)
        if self._user is not None:
            fields.update(await file_user(self._user, handle.record, channel))
        return handle, channel

    @asynccontextmanager
    async def _changing(
        self,
        sandbox_id: str,
        fields: dict[str, object],
        change: FileChange,
        *,
        needs_space: bool = True,
    ) -> AsyncIterator[Channel]:
        """Yield a channel for a verb that changes files; name a failure of the host's disk.
        The change is audited, or the error that prevented it.

        Adds to `fields` where this sandbox may write besides the usual directories.
        """
        handle, channel = await self._connect(sandbox_id, fields)
        mounts = [mount.target for mount in handle.record.mounts if mount.mode == "rw"]
        fields["within"] = [*WRITABLE, *mounts]
        disk = self._host_disk
        if disk is not None and needs_space and self._shares_space(handle.record):
            attempt, min_free = "write to the workspace", self._disk.min_free_bytes
            await asyncio.to_thread(free_space.check_free, disk, min_free, attempt)
        try:
            with self._handles.trail.changing(handle.record, change):
                async with self._handles.explaining(handle):
                    yield channel
        except (QuotaExceeded, FileTrouble, FilePermission) as exc:
            code = exc.details.get("runner_code")
            if code not in _DISK_CODES:
                raise
            if disk is not None and await asyncio.to_thread(free_space.is_exhausted, disk):
                raise QuotaExceeded(
                    f"{exc.message}: the host's disk is full",
                    hint="the operator must free space on the disk of the data directory",
                    quota="disk",
                ) from exc
            if code == READ_ONLY:
                raise became_read_only(exc) from exc
            raise

    def _shares_space(self, record: Record) -> bool:
        reserve = self._disk.reserve
        return reserve == "none" or (reserve == "named" and record.workspace_id is None)

    def _arrival(self, path: str, *, flush: bool) -> dict[str, object]:
        fields: dict[str, object] = {"path": to_bytes_json(sandbox_path(path)), **self._change}
        # A request cannot turn on what the operator has turned off.
        if not flush:
            fields["flush"] = False
        return fields

    def _range(self, path: str, offset: int, limit: int | None) -> dict[str, object]:
        fields: dict[str, object] = {"path": to_bytes_json(sandbox_path(path)), **self._deny}
        if offset:
            fields["offset"] = whole("offset", offset, low=0, high=_MAX_OFFSET)
        if limit is not None:
            fields["limit"] = limit
        return fields

    async def _call(
        self, sandbox_id: str, verb: str, path: str, rules: dict[str, object], **fields: object
    ) -> dict[str, object]:
        request = {"path": to_bytes_json(sandbox_path(path)), **fields, **rules}
        _, channel = await self._connect(sandbox_id, request)
        return await channel.call(verb, request, timeout_s=CALL_TIMEOUT_S)


def file_entry(entry: FileStat) -> FileEntry:
    return FileEntry(
        path=entry.path,
        name=entry.name,
        type=entry.type,
        size=entry.size,
        mode=entry.mode,
        mtime_unix=entry.mtime_unix,
        uid=entry.uid,
        gid=entry.gid,
        target=entry.target,
    )


def _summary(body: dict[str, object]) -> TarSummary:
    return TarSummary(_figure(body, "entries"), _figure(body, "bytes"))


def _figure(body: dict[str, object], name: str) -> int:
    value = body.get(name)
    if type(value) is not int or value < 0:
        raise ProtocolViolation(f"the runner's answer had no usable field {name!r}")
    return value
