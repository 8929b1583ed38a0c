"""Files of a daemon's sandboxes: streamed bytes, everything else as JSON.

Keeps no more than one piece in memory, except for `read`, which is limited. A file name inside a
sandbox is arbitrary bytes; a name that is not UTF-8 is sent as base64 in a second field, and is a
`str` with surrogate escapes here.
"""

from __future__ import annotations

import asyncio
import os
import re
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING, Any, Final
from urllib.parse import quote

import aiohttp

from sandkasten.client.http.connection import HttpRequest, pieces, reading
from sandkasten.client.http.error_responses import body_error
from sandkasten.client.http.event_streams import events, parsed
from sandkasten.client.http.json_values import count, encoded, record, value_of
from sandkasten.client.http.reconnect import Patience
from sandkasten.disk.read_buffer import ReadBuffer
from sandkasten.errors import (
    BackendUnavailable,
    InvalidRequest,
    IsADirectory,
    PayloadTooLarge,
    SandkastenError,
)
from sandkasten.model.files.file_entries import (
    Change,
    FileBytes,
    FileContent,
    FileEntry,
    Listing,
    TarSummary,
)
from sandkasten.model.files.file_limits import MAX_WHOLE_READ
from sandkasten.model.files.sandbox_paths import sandbox_path
from sandkasten.model.numbers import whole
from sandkasten.outgoing_http import read_whole

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator, AsyncIterable, AsyncIterator, Mapping

    from sandkasten.client.http.connection import Connection

_HIGHEST: Final = 2**62
_OCTETS: Final = {"Content-Type": "application/octet-stream"}
_TAR: Final = "application/x-tar"
_CONTENT_RANGE: Final = re.compile(r"bytes (?:[0-9]+-[0-9]+|\*)/([0-9]{1,19})\Z")
_EVENTS: Final = {"Accept": "text/event-stream"}
# Between two pieces of a file: a sandbox that is busy is slow, and not gone.
_STALL_S: Final = 120.0


class HttpFiles:
    def __init__(self, connection: Connection, user: str | None = None) -> None:
        self._connection = connection
        self._user: dict[str, str] = {} if user is None else {"user": user}

    def by(self, user: str | None) -> HttpFiles:
        return HttpFiles(self._connection, user)

    async def read(
        self,
        sandbox_id: str,
        path: str,
        *,
        offset: int = 0,
        limit: int | None = None,
        max_bytes: int | None = None,
    ) -> FileContent:
        offset = whole("offset", offset, low=0, high=_HIGHEST)
        bounds = [
            whole(name, value, low=0, high=_HIGHEST)
            for name, value in (("limit", limit), ("max_bytes", max_bytes))
            if value is not None
        ]
        most = min(bounds) if bounds else None
        full = sandbox_path(path)
        if most == 0:
            entry = await self.stat(sandbox_id, path)
            return FileContent(full, b"", entry.size, offset < entry.size)
        order = self._part(sandbox_id, path, offset, most)
        try:
            async with (
                reading(self._connection, f"{path} was read"),
                self._connection.stream(order) as answer,
            ):
                _not_a_tree(answer, path)
                length = int(answer.headers.get("Content-Length", "0"))
                if length > MAX_WHOLE_READ:
                    raise _too_large(
                        f"{path} has {length} bytes, more than {MAX_WHOLE_READ} at once"
                    )
                data = await _content(answer, path)
                size = size_of(answer.headers, len(data))
        except InvalidRequest as exc:
            behind = exc.details.get("size")
            if not isinstance(behind, int):
                raise
            # A part behind the end is empty here, as in the file itself.
            return FileContent(full, b"", behind, truncated=False)
        return FileContent(full, data, size, offset + len(data) < size)

    @asynccontextmanager
    async def read_stream(
        self, sandbox_id: str, path: str, *, offset: int = 0, limit: int | None = None
    ) -> AsyncGenerator[tuple[FileEntry, AsyncIterator[bytes]]]:
        offset = whole("offset", offset, low=0, high=_HIGHEST)
        most = None if limit is None else whole("limit", limit, low=0, high=_HIGHEST)
        entry = await self.stat(sandbox_id, path)
        if most == 0 or (offset and offset >= entry.size):
            yield entry, _nothing()
            return
        async with self._connection.stream(self._part(sandbox_id, path, offset, most)) as answer:
            _not_a_tree(answer, path)
            yield entry, pieces(self._connection, answer, f"{path} was read", _STALL_S)

    async def write(
        self,
        sandbox_id: str,
        path: str,
        data: bytes | AsyncIterable[bytes],
        *,
        mode: int | None = None,
        overwrite: bool = True,
        flush: bool = True,
    ) -> FileEntry:
        query = self._named(path)
        if mode is not None:
            query["mode"] = f"{whole('mode', mode, low=0, high=0o7777):04o}"
        if not overwrite:
            query["overwrite"] = "false"
        if not flush:
            query["flush"] = "false"
        order = HttpRequest(
            "PUT",
            _path(sandbox_id, "file"),
            query=query,
            data=data,
            headers=_OCTETS,
            repeatable=overwrite,
            answer_s=None,
        )
        return entry_of(await self._connection.ask(order))

    async def stat(self, sandbox_id: str, path: str, *, follow: bool = True) -> FileEntry:
        query = self._named(path)
        if not follow:
            query["follow"] = "false"
        return entry_of(await self._get(sandbox_id, "stat", query))

    async def list(
        self,
        sandbox_id: str,
        path: str,
        *,
        recursive: bool = False,
        limit: int = 1000,
        cursor: str | None = None,
    ) -> Listing:
        query = {**self._named(path), "limit": str(limit)}
        if recursive:
            query["recursive"] = "true"
        if cursor is not None:
            query["cursor"] = cursor
        return listing_of(await self._get(sandbox_id, "list", query))

    async def mkdir(
        self, sandbox_id: str, path: str, *, parents: bool = True, exist_ok: bool = True
    ) -> FileEntry:
        body = {**self._named(path), "parents": parents, "exist_ok": exist_ok}
        return entry_of(await self._post(sandbox_id, "mkdir", body, repeatable=exist_ok))

    async def move(
        self, sandbox_id: str, source: str, destination: str, *, overwrite: bool = False
    ) -> FileEntry:
        body = {
            **self._user,
            **name_fields("source", source),
            **name_fields("destination", destination),
            "overwrite": overwrite,
        }
        return entry_of(await self._post(sandbox_id, "move", body))

    async def remove(
        self, sandbox_id: str, path: str, *, recursive: bool = False, missing_ok: bool = False
    ) -> int:
        body = {
            **self._named(path),
            "recursive": recursive,
            "missing_ok": missing_ok,
        }
        return removed_of(await self._post(sandbox_id, "delete", body, repeatable=missing_ok))

    async def watch(
        self, sandbox_id: str, path: str, *, recursive: bool = True
    ) -> AsyncGenerator[Change]:
        query = {**self._named(path), "recursive": str(recursive).lower()}
        order = HttpRequest(
            "GET",
            _path(sandbox_id, "watch"),
            query=query,
            headers=_EVENTS,
            repeatable=True,
            answer_s=None,
        )
        patience = Patience()
        while True:
            cause: Exception | None = None
            lost = patience.reached
            try:
                async with self._connection.stream(order) as answer:
                    patience.there()
                    async for event in events(answer):
                        if event.name == "change":
                            yield change_of(parsed(event))
                        elif event.name == "overflow" or (event.name == "ready" and lost):
                            # Changes during the interruption are unknown too.
                            yield Change("overflow", "", is_dir=False)
                        elif event.name == "error":
                            raise body_error(parsed(event))
            except BackendUnavailable as exc:
                if not patience.reached:
                    raise
                cause = exc
            except SandkastenError:
                raise
            except (aiohttp.ClientError, TimeoutError, OSError) as exc:
                cause = exc
            await patience.wait(
                f"the connection broke while {path} was watched", "watch it again", cause
            )

    async def tar_in(
        self, sandbox_id: str, path: str, data: AsyncIterable[bytes], *, flush: bool = True
    ) -> TarSummary:
        query = self._named(path)
        if not flush:
            query["flush"] = "false"
        order = HttpRequest(
            "POST",
            _path(sandbox_id, "upload"),
            query=query,
            data=data,
            headers={"Content-Type": _TAR},
            answer_s=None,
        )
        return summary_of(await self._connection.ask(order))

    async def tar_out(self, sandbox_id: str, path: str) -> AsyncGenerator[bytes]:
        order = HttpRequest(
            "GET",
            _path(sandbox_id, "download"),
            query={**self._named(path), "format": "tar"},
            repeatable=True,
            answer_s=None,
        )
        async with self._connection.stream(order) as answer:
            async for piece in pieces(self._connection, answer, f"{path} was packed", _STALL_S):
                yield piece

    # ---- below

    def _named(self, path: str) -> dict[str, str]:
        return {**name_fields("path", path), **self._user}

    def _part(self, sandbox_id: str, path: str, offset: int, most: int | None) -> HttpRequest:
        return HttpRequest(
            "GET",
            _path(sandbox_id, "download"),
            query=self._named(path),
            headers=range_of(offset, most),
            repeatable=True,
            answer_s=None,
        )

    async def _get(self, sandbox_id: str, verb: str, query: Mapping[str, str]) -> Any:
        order = HttpRequest("GET", _path(sandbox_id, verb), query=query, repeatable=True)
        return await self._connection.ask(order)

    async def _post(
        self, sandbox_id: str, verb: str, body: object, *, repeatable: bool = False
    ) -> Any:
        order = HttpRequest("POST", _path(sandbox_id, verb), body, repeatable=repeatable)
        return await self._connection.ask(order)


def _path(sandbox_id: str, verb: str) -> str:
    return f"/v1/sessions/{quote(sandbox_id, safe='')}/fs/{verb}"


def _not_a_tree(answer: aiohttp.ClientResponse, path: str) -> None:
    if answer.headers.get("Content-Type", "").startswith(_TAR):
        raise IsADirectory(f"{path} is a directory", hint="download it, or list it", path=path)


async def _content(answer: aiohttp.ClientResponse, path: str) -> bytes:
    """Read the body, into one buffer if its size is known: the pieces need not be joined."""
    size = answer.content_length
    if not size:
        too_large = _too_large(f"{path} has more than {MAX_WHOLE_READ} bytes")
        return await read_whole(answer, MAX_WHOLE_READ, too_large)
    buffer, filled = ReadBuffer(size, FileBytes), 0
    # It ends at that size, or with the error of a body that is too short.
    now = asyncio.get_running_loop().time
    async with asyncio.timeout(_STALL_S) as stall:
        async for piece in answer.content.iter_any():
            stall.reschedule(now() + _STALL_S)
            buffer.view[filled : filled + len(piece)] = piece
            filled += len(piece)
    return buffer.taken(filled)


def _too_large(message: str) -> PayloadTooLarge:
    return PayloadTooLarge(message, hint="download it, or read it in parts with offset and limit")


async def _nothing() -> AsyncGenerator[bytes]:
    return
    yield b""


def name_fields(field: str, name: str) -> dict[str, str]:
    """Return the fields of a name to send; InvalidRequest if it is not a valid name."""
    if not isinstance(name, str):
        raise InvalidRequest(
            f"{field} must be a str, got {type(name).__name__}", hint="pass a string", field=field
        )
    try:
        name.encode()
    except UnicodeEncodeError:
        try:
            return {f"{field}_b64": encoded(os.fsencode(name))}
        except UnicodeEncodeError:
            raise InvalidRequest(
                f"{field} has characters that no file name can have",
                hint="remove the unpaired surrogates",
                field=field,
            ) from None
    return {field: name}


def entry_of(value: object) -> FileEntry:
    return value_of(FileEntry, value, "file")


def listing_of(value: object) -> Listing:
    return value_of(Listing, value, "listing")


def change_of(value: object) -> Change:
    return value_of(Change, value, "change")


def summary_of(value: object) -> TarSummary:
    return value_of(TarSummary, value, "upload")


def removed_of(value: object) -> int:
    return count(record(value, "deletion"), "removed")


def range_of(offset: int, most: int | None) -> dict[str, str]:
    """Return the header that requests a range; none for the whole file."""
    if not offset and most is None:
        return {}
    end = "" if most is None else str(offset + most - 1)
    return {"Range": f"bytes={offset}-{end}"}


def size_of(headers: Mapping[str, str], length: int) -> int:
    """Return the true size of a file of which a range was sent; `length` if it was all."""
    match = _CONTENT_RANGE.match(headers.get("Content-Range", ""))
    return int(match[1]) if match else length
