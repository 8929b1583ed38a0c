"""Streamed uploads and downloads: never whole in memory, never half in place.

A client that disconnects during an upload leaves the old file; one that disconnects during a
download releases everything. The sandbox's kernel resolves every path, its quota limits every
write.
"""

from __future__ import annotations

import secrets
from contextlib import AsyncExitStack, suppress
from dataclasses import field
from typing import TYPE_CHECKING, Final

from starlette.responses import Response

from sandkasten.errors import (
    Busy,
    InvalidRequest,
    IsADirectory,
    PayloadTooLarge,
    SandkastenError,
)
from sandkasten.lazy_dataclass import dataclass
from sandkasten.model.sandbox.cell_spec import WORKSPACE
from sandkasten_server.api.error_responses import problem
from sandkasten_server.api.files.file_names import given_name
from sandkasten_server.api.files.multipart_form import Form
from sandkasten_server.api.response.byte_ranges import (
    FileVersion,
    Span,
    Unsatisfiable,
    disposition,
    wanted,
)
from sandkasten_server.api.response.streamed_response import Streamed

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

    from sandkasten.model.files.file_entries import FileEntry
    from sandkasten_runtime.engine.storage.sandbox_files import FileOperations
    from sandkasten_server.api.files.file_locations import Spot
    from sandkasten_server.api.files.multipart_form import Part
    from sandkasten_server.api.request.http_call import Call

MAX_PARTS: Final = 100
_MAX_FIELD: Final = 16 * 1024
_FILES: Final = frozenset({"file", "files", "file[]", "files[]"})
OCTETS: Final = "application/octet-stream"
TAR: Final = "application/x-tar"
# A file that changes faster than it can be opened cannot be described.
_TRIES: Final = 3


@dataclass(slots=True)
class FormUpload:
    """The files of one form. `directory` may also be a field of the form, before or after them."""

    call: Call
    spot: Spot
    files: FileOperations
    directory: str | None
    overwrite: bool
    flush: bool
    written: list[FileEntry] = field(default_factory=list)
    _named: bool = False
    _waiting: list[tuple[str, str]] = field(default_factory=list)
    """Files that came before the form named their target; under our name, and their own."""

    async def run(self) -> list[FileEntry]:
        call = self.call
        content_type = call.connection.headers.get("content-type", "")
        form = Form(content_type, call.pieces(call.server.rules.max_upload_bytes))
        try:
            async for part in form:
                if part.filename is None:
                    await self._field(part)
                else:
                    await self._file(part, part.filename)
            await self._settle()
        except SandkastenError as exc:
            # Each file is whole or not there; which are there is for the client to know.
            exc.details["written"] = [_shown(entry.path) for entry in self.written]
            raise
        finally:
            await self._tidy()
        if not self.written:
            raise InvalidRequest(
                "the form has no file", hint="send parts named file", http_status=422
            )
        return self.written

    async def _field(self, part: Part) -> None:
        value = bytearray()
        async for piece in part.data:
            value += piece
            if len(value) > _MAX_FIELD:
                raise PayloadTooLarge(
                    f"the field {_shown(part.name)} is too long", hint=f"at most {_MAX_FIELD} bytes"
                )
        if part.name not in ("path", "path_b64"):
            raise InvalidRequest(
                f"{_shown(part.name)} is not a field of this form",
                hint="it takes path (or path_b64), and files in parts named file with a filename",
                field=_shown(part.name),
                http_status=422,
            )
        if self._named or self.directory is not None:
            raise InvalidRequest("path is given twice", hint="give it once", http_status=422)
        self._named = True
        text = value.decode("utf-8", "surrogateescape")
        name = given_name(None, text) if part.name == "path_b64" else text
        self.directory = self.spot.within(name)

    async def _file(self, part: Part, filename: str) -> None:
        if part.name not in _FILES:
            raise InvalidRequest(
                f"{_shown(part.name)} is not a field for files",
                hint="name it file, or files",
                field=_shown(part.name),
                http_status=422,
            )
        if len(self.written) + len(self._waiting) >= MAX_PARTS:
            raise PayloadTooLarge(
                f"the form has more than {MAX_PARTS} files",
                hint=f"send them as a tar (Content-Type: {TAR})",
                limit=MAX_PARTS,
            )
        name = _checked(filename)
        files = self.files
        if self.directory is None:
            staged = f"{WORKSPACE}/.sandkasten-upload-{secrets.token_hex(8)}"
            await files.write(
                self.spot.sandbox_id, staged, part.data, overwrite=False, flush=self.flush
            )
            self._waiting.append((staged, name))
            return
        path = self.spot.within(f"{self.directory}/{name}")
        self.written.append(
            await files.write(
                self.spot.sandbox_id, path, part.data, overwrite=self.overwrite, flush=self.flush
            )
        )

    async def _settle(self) -> None:
        directory = self.directory or WORKSPACE
        files, the_id = self.files, self.spot.sandbox_id
        while self._waiting:
            staged, name = self._waiting[0]
            path = self.spot.within(f"{directory}/{name}")
            await files.mkdir(the_id, path.rpartition("/")[0] or "/")
            moved = await files.move(the_id, staged, path, overwrite=self.overwrite)
            self.written.append(moved)
            del self._waiting[0]

    async def _tidy(self) -> None:
        for staged, _ in self._waiting:
            with suppress(SandkastenError):
                await self.files.remove(self.spot.sandbox_id, staged, missing_ok=True)


async def download(
    call: Call,
    stack: AsyncExitStack,
    spot: Spot,
    files: FileOperations,
    path: str,
    *,
    tar: bool,
) -> Response:
    """Send a file, a range of it, or everything below a directory as a tar."""
    if not tar:
        try:
            return await _file(call, stack, spot, files, path)
        except IsADirectory:
            pass
    return await _tree(call, stack, spot, files, path)


async def _file(
    call: Call, stack: AsyncExitStack, spot: Spot, files: FileOperations, path: str
) -> Response:
    headers = call.connection.headers
    the_id = spot.sandbox_id
    head = call.request.method == "HEAD"
    before: FileEntry | None = None
    if head or "range" in headers or "if-none-match" in headers:
        before = await files.stat(the_id, path)
        if before.is_dir:
            raise IsADirectory(f"{path} is a directory", path=path)
    for _ in range(_TRIES):
        span: Span | None = None
        if before is not None:
            version = FileVersion.of(before.size, before.mtime_unix, call.server.clock.now())
            if version.unchanged(headers):
                return Response(status_code=304, headers=version.headers)
            try:
                span = wanted(headers, version)
            except Unsatisfiable:
                return _unsatisfiable(call, version)
        async with AsyncExitStack() as opened:
            offset, limit = (0, None) if span is None else (span.offset, span.length)
            if head:
                # Opened all the same: what cannot be read has no size to promise.
                limit = 0
            entry, data = await opened.enter_async_context(
                files.read_stream(the_id, path, offset=offset, limit=limit)
            )
            if before is not None and _state(before) != _state(entry):
                before = entry
                continue
            stack.push_async_exit(opened.pop_all())
            return _one(call, stack, entry, span, data)
    raise Busy(
        f"{_shown(path)} changes while it is read",
        hint="copy it inside the sandbox and download the copy",
    )


def _one(
    call: Call,
    stack: AsyncExitStack,
    entry: FileEntry,
    span: Span | None,
    data: AsyncIterator[bytes],
) -> Response:
    version = FileVersion.of(entry.size, entry.mtime_unix, call.server.clock.now())
    length = entry.size if span is None else span.length
    headers = {
        **version.headers,
        "Content-Type": OCTETS,
        "Content-Length": str(length),
        "Content-Disposition": disposition(entry.name),
        "Cache-Control": "no-cache",
    }
    if span is not None:
        last = span.offset + span.length - 1
        headers["Content-Range"] = f"bytes {span.offset}-{last}/{entry.size}"
    status = 200 if span is None else 206
    if call.request.method == "HEAD":
        return Streamed(stack.pop_all(), _nothing(), status=status, headers=headers)
    return Streamed(stack.pop_all(), _exactly(data, length), status=status, headers=headers)


async def _tree(
    call: Call, stack: AsyncExitStack, spot: Spot, files: FileOperations, path: str
) -> Response:
    the_id = spot.sandbox_id
    name = path.rstrip("/").rpartition("/")[2] or "root"
    headers = {
        "Content-Type": TAR,
        "Content-Disposition": disposition(name + ".tar"),
        "Cache-Control": "no-store",
    }
    if call.request.method == "HEAD":
        await files.stat(the_id, path)
        return Streamed(stack.pop_all(), _nothing(), headers=headers)
    pieces = files.tar_out(the_id, path)
    # A refusal comes before the first bytes, and is answered as what it is.
    first = await anext(pieces, b"")
    return Streamed(stack.pop_all(), _behind(first, pieces), headers=headers)


async def _behind(first: bytes, rest: AsyncIterator[bytes]) -> AsyncIterator[bytes]:
    try:
        yield first
        async for piece in rest:
            yield piece
    finally:
        await rest.aclose()  # type: ignore[attr-defined]


async def _exactly(data: AsyncIterator[bytes], length: int) -> AsyncIterator[bytes]:
    """Send the announced length; a file that shrank meanwhile ends the response early."""
    remaining = length
    async for piece in data:
        if len(piece) > remaining:
            piece = piece[:remaining]
        remaining -= len(piece)
        if piece:
            yield piece
        if remaining == 0:
            return
    if remaining:
        raise Busy("the file became shorter while it was sent", hint="try again")


async def _nothing() -> AsyncIterator[bytes]:
    return
    yield b""


def _unsatisfiable(call: Call, version: FileVersion) -> Response:
    refusal = problem(
        InvalidRequest(
            f"the file has {version.size} bytes, and the range starts after its end",
            hint="request a range within the file",
            size=version.size,
            http_status=416,
        ),
        call.request_id,
    )
    refusal.headers["Content-Range"] = f"bytes */{version.size}"
    return refusal


def _state(entry: FileEntry) -> tuple[int, int]:
    return entry.size, entry.mtime_unix


def _checked(filename: str) -> str:
    """Return a name, or a path below the directory; never one that leads outside."""
    parts = filename.split("/")
    if not filename or "\0" in filename or any(part in ("", ".", "..") for part in parts):
        raise InvalidRequest(
            f"{_shown(filename)} is not a valid file name in a form",
            hint="a name, or a path relative to the form's path, without '..'",
            field="filename",
            http_status=422,
        )
    return filename


def _shown(name: str) -> str:
    return name.encode("utf-8", "replace").decode()[:200]
