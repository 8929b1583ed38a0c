"""Content of files over HTTP, and the health of a sandbox.

A request has the access token of the sandbox or is signed with it. A signed URL without
a host name of its sandbox does not name it, so the signature is compared with the tokens of all
living sandboxes.
"""

from __future__ import annotations

import asyncio
import re
import zlib
from contextlib import AsyncExitStack
from typing import TYPE_CHECKING, Final

from starlette.responses import Response

from sandkasten.errors import (
    Conflict,
    InvalidRequest,
    PayloadTooLarge,
    SandkastenError,
    SessionNotFound,
)
from sandkasten.model.ids import sandbox_id
from sandkasten_e2b.e2b_messages import FileQuery
from sandkasten_e2b.envd_tokens import Operation, SignedPath, invalid_signature
from sandkasten_e2b.file_entry_json import METADATA_SPACE
from sandkasten_e2b.sandbox_places import Spelling, check_user, real_path
from sandkasten_server.api.files.multipart_form import Form
from sandkasten_server.api.response.json_response import answer
from sandkasten_server.api.response.streamed_response import Streamed

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Mapping

    from starlette.datastructures import Headers

    from sandkasten.model.files.file_entries import FileEntry
    from sandkasten.model.ids import SandboxId
    from sandkasten_e2b.envd_access import EnvdAccess
    from sandkasten_server.api.request.http_call import Call

FORM: Final = "multipart/form-data"
BYTES: Final = "application/octet-stream"
_GZIP: Final = "gzip"
_GZIP_WINDOW: Final = 31
_PIECE: Final = 256 * 1024
# A limit for one gzip body. A member of 20 bytes costs as much as a piece.
_MAX_MEMBERS: Final = 1000
_MAX_FILES: Final = 10_000
_METADATA_HEADER: Final = "x-metadata-"
# E2B's clients recognise a new start of the machine by this. Linux shows that of the host.
_BOOT_ID: Final = "/proc/sys/kernel/random/boot_id"
_PRINTABLE: Final = re.compile(r"[\x20-\x7e]*\Z")
# The whole name of an attribute has at most 255 bytes, with `user.e2b.`.
_MAX_METADATA_NAME: Final = 246
# A limit for one file; ext4 keeps attributes in one block of 4 KiB.
_MAX_METADATA: Final = 3072


class FileRoutes:
    def __init__(self, access: EnvdAccess) -> None:
        self._access = access
        self._searching = asyncio.Lock()

    async def health(self, call: Call) -> Response:
        the_id = await self._access.sandbox(call, wakes=False)
        info = await call.engine.get(the_id)
        if info.status == "paused":
            raise Conflict(f"sandbox {the_id} is paused", hint="connect to it", reason="paused")
        if info.status != "running":
            raise SessionNotFound(f"sandbox {the_id} is {info.status}", hint="create a new one")
        return Response(status_code=204)

    async def read(self, call: Call) -> Response:
        query = call.query(FileQuery)
        the_id = await self._admitted(call, query, "read")
        if not query.path:
            raise _no_path()
        if query.path == _BOOT_ID:
            return Response(f"{self._access.boot_id(the_id)}\n", media_type=BYTES)
        files = await self._access.files(call, the_id, query.username)
        stack = AsyncExitStack()
        try:
            entry, pieces = await stack.enter_async_context(
                files.read_stream(the_id, real_path(query.path))
            )
        except BaseException:
            await stack.aclose()
            raise
        headers = {"content-type": BYTES, "vary": "Accept-Encoding"}
        # Every HTTP client sends a list of encodings; compress only if gzip is the only one.
        if call.connection.headers.get("accept-encoding", "").strip().lower() == _GZIP:
            return Streamed(stack, _packed(pieces), headers={**headers, "content-encoding": _GZIP})
        return Streamed(stack, pieces, headers={**headers, "content-length": str(entry.size)})

    async def write(self, call: Call) -> Response:
        query = call.query(FileQuery)
        the_id = await self._admitted(call, query, "write")
        headers = call.connection.headers
        most = call.server.rules.max_upload_bytes
        body = call.pieces(most)
        packed = headers.get("content-encoding", "identity").strip().lower()
        if packed == _GZIP:
            body = _unpacked(body, most)
        elif packed != "identity":
            raise InvalidRequest(
                f"the content encoding {packed[:40]!r} is not supported", hint="send gzip or none"
            )
        metadata = _metadata(headers)
        files = await self._access.files(call, the_id, query.username)
        attributes = {METADATA_SPACE + name: value for name, value in metadata.items()}
        content_type = headers.get("content-type", "")
        if not content_type.lower().startswith(FORM):
            if not query.path:
                raise _no_path()
            entry = await files.write(the_id, real_path(query.path), body, attributes=attributes)
            return answer([_written(entry, query.path, metadata)])
        written: list[dict[str, object]] = []
        async for part in Form(content_type, body):
            path = query.path or part.filename
            if part.name != "file" or not path:
                continue
            if len(written) >= _MAX_FILES or (query.path and written):
                raise InvalidRequest(
                    "the form has too many files",
                    hint=f"one with path in the query, or at most {_MAX_FILES} with their names",
                )
            entry = await files.write(the_id, real_path(path), part.data, attributes=attributes)
            written.append(_written(entry, path, metadata))
        if not written:
            raise InvalidRequest("the form has no file", hint="send it in the field file")
        return answer(written)

    async def _admitted(self, call: Call, query: FileQuery, operation: Operation) -> SandboxId:
        if query.signature is None:
            the_id = await self._access.sandbox(call)
        else:
            signed = SignedPath(
                query.path or "",
                operation,
                query.username or "",
                query.signature,
                query.signature_expiration,
            )
            signed.check(call.server.clock.now())
            the_id = await self._signer(call, signed)
            await self._access.enter(call, the_id)
        check_user(query.username)
        return the_id

    async def _signer(self, call: Call, signed: SignedPath) -> SandboxId:
        named = call.connection.headers.get("e2b-sandbox-id")
        if named is not None:
            # The host name of the URL contains it.
            the_id = sandbox_id(named)
            if not signed.is_signed_with(self._access.tokens.token(the_id)):
                raise invalid_signature()
            return the_id
        # One search at a time: a client without a key must not keep the daemon busy.
        async with self._searching:
            living = [info.id for info in await call.engine.list(all_tenants=True)]
            signer = await asyncio.to_thread(self._search, living, signed)
        if signer is None:
            raise invalid_signature()
        return signer

    def _search(self, living: list[str], signed: SignedPath) -> SandboxId | None:
        tokens = self._access.tokens
        for the_id in living:
            if signed.is_signed_with(tokens.token(the_id)):
                return sandbox_id(the_id)
        return None


def _written(entry: FileEntry, path: str, metadata: Mapping[str, str]) -> dict[str, object]:
    fields = {"path": Spelling.of(path).shown(entry.path), "name": entry.name, "type": "file"}
    return {**fields, "metadata": dict(metadata)} if metadata else dict(fields)


def _metadata(headers: Headers) -> dict[str, str]:
    """Return the metadata of an upload: names in lower case, and the first of two values."""
    metadata: dict[str, str] = {}
    for header, value in headers.items():
        name = header.lower().removeprefix(_METADATA_HEADER)
        if name == header.lower():
            continue
        if not name or not _PRINTABLE.match(value) or len(name) > _MAX_METADATA_NAME:
            raise _invalid_metadata(f"metadata {name[:80]!r} is not valid")
        metadata.setdefault(name, value)
    if sum(len(name) + len(value) for name, value in metadata.items()) > _MAX_METADATA:
        raise _invalid_metadata(f"the metadata are larger than {_MAX_METADATA} bytes")
    return metadata


def _invalid_metadata(message: str) -> InvalidRequest:
    hint = "use short names, and values of printable ASCII"
    return InvalidRequest(message, hint=hint, field="metadata")


def _no_path() -> InvalidRequest:
    return InvalidRequest("path is missing", hint="name a file: ?path=/home/user/x", field="path")


async def _packed(pieces: AsyncIterator[bytes]) -> AsyncIterator[bytes]:
    packer = zlib.compressobj(1, zlib.DEFLATED, _GZIP_WINDOW)
    async for piece in pieces:
        packed = await asyncio.to_thread(packer.compress, piece)
        if packed:
            yield packed
    yield packer.flush()


async def _unpacked(pieces: AsyncIterator[bytes], most: int) -> AsyncIterator[bytes]:
    """Decompress all members, with a bound on each piece, on the whole and on their number."""
    unpacker = zlib.decompressobj(_GZIP_WINDOW)
    count, members = 0, 1
    async for piece in pieces:
        rest = piece
        while rest:
            if unpacker.eof:
                members += 1
                if members > _MAX_MEMBERS:
                    raise InvalidRequest(
                        f"the gzip body has more than {_MAX_MEMBERS} members",
                        hint="compress it as one",
                    )
                unpacker = zlib.decompressobj(_GZIP_WINDOW)
            try:
                data = await asyncio.to_thread(unpacker.decompress, rest, _PIECE)
            except zlib.error as exc:
                raise _not_gzip() from exc
            rest = unpacker.unused_data if unpacker.eof else unpacker.unconsumed_tail
            count += len(data)
            if count > most:
                raise PayloadTooLarge(
                    f"the body is larger than {most} bytes",
                    hint="send less at once",
                    limit=most,
                )
            if data:
                yield data
    if not unpacker.eof:
        raise _not_gzip()


def _not_gzip() -> SandkastenError:
    return InvalidRequest("the body is not valid gzip", hint="send it without Content-Encoding")
