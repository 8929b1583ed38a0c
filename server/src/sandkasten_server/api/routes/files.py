"""The file store: files that outlive sandboxes, stored, read and deleted by key.

Bodies are streamed both ways. A file is sent as an attachment, never as a page.
"""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Annotated, Any

from pydantic import Field
from starlette.responses import Response

from sandkasten.errors import (
    Busy,
    Conflict,
    FileNotFound,
    InvalidRequest,
    PayloadTooLarge,
    QuotaExceeded,
    UnsupportedByBackend,
)
from sandkasten.lazy_dataclass import dataclass
from sandkasten.model.files.file_store_rules import UNKNOWN_TYPE
from sandkasten_server.api.files.multipart_form import Form
from sandkasten_server.api.files.stored_file import (
    File,
    expiry_of,
    file_fields,
    max_stored_bytes,
    store_of,
)
from sandkasten_server.api.request.field_schemas import ContentType, FileKey, text_schema
from sandkasten_server.api.request.http_call import checked
from sandkasten_server.api.response.byte_ranges import (
    FileVersion,
    Span,
    Unsatisfiable,
    disposition,
    wanted,
)
from sandkasten_server.api.response.json_response import answer
from sandkasten_server.api.route import Answer, Query, Route

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

    from starlette.types import Receive, Scope, Send

    from sandkasten.model.journal_rows import StoredFile
    from sandkasten.ports import FileStore
    from sandkasten_server.api.request.http_call import Call

_FORM = "multipart/form-data"
_MAX_FIELD = 16 * 1024
_MAX_FIELDS = 16
# Around the file: boundaries, headers and fields of a form.
_AROUND = 1 << 20
Seconds = Annotated[float, Field(gt=0, le=10**10)]


class PutQuery(Query):
    key: FileKey | None = Field(None, description="`f_<id>` if omitted.")
    content_type: ContentType | None = Field(
        None, description="The body's content type if omitted."
    )
    ttl_seconds: Seconds | None = Field(None, description="Deleted after this many seconds.")
    metadata: str | None = Field(None, description="A JSON object with string values.")
    checksum: str | None = Field(
        None,
        pattern=r"^(sha256:)?[0-9a-fA-F]{64}$",
        description="The request fails if the content has another digest.",
    )
    overwrite: bool = False


class ListQuery(Query):
    prefix: str = ""
    limit: Annotated[int, Field(ge=1, le=1000)] = 1000
    cursor: str | None = Field(None, description="`next` of the previous page.")


class FileList(Answer):
    files: list[File]
    count: int
    next: str | None


class DeletedStoredFile(Answer):
    ok: bool
    key: str


async def put(call: Call) -> Response:
    store = store_of(call)
    call.query(PutQuery)
    parameters = dict(call.connection.query_params)
    most = call.server.rules.max_upload_bytes + _AROUND
    content_type = call.connection.headers.get("content-type", "")
    if content_type.partition(";")[0].strip().lower() == _FORM:
        form = Form(content_type, call.pieces(most)).__aiter__()
        parameters, data, part_type = await _file_of(form, parameters)
    else:
        data, part_type = call.pieces(most), content_type or None
    query = checked(PutQuery, {**parameters})
    row = await store.put(
        call.principal.tenant,
        query.key,
        data,
        content_type=query.content_type or part_type or UNKNOWN_TYPE,
        expires_at=expiry_of(call, query.ttl_seconds),
        metadata=_metadata(query.metadata),
        expect_sha256=query.checksum,
        overwrite=query.overwrite,
        max_stored_bytes=max_stored_bytes(call),
    )
    return answer(file_fields(row), 201)


async def listed(call: Call) -> Response:
    query = call.query(ListQuery)
    rows = await store_of(call).list(
        call.principal.tenant, prefix=query.prefix, limit=query.limit + 1, after=query.cursor
    )
    page = rows[: query.limit]
    return answer(
        {
            "files": [file_fields(row) for row in page],
            "count": len(page),
            "next": page[-1].key if len(rows) > query.limit else None,
        }
    )


async def get(call: Call) -> Response:
    store = store_of(call)
    row = await store.get(call.principal.tenant, call.path("key"))
    version = _StoredVersion(
        row.size_bytes, int(row.created_at), strong=True, checksum=row.checksum
    )
    headers = {
        **version.headers,
        "Content-Type": row.content_type,
        "Content-Disposition": disposition(row.key.rpartition("/")[2]),
        "X-Checksum": row.checksum,
        "Content-Security-Policy": "sandbox",
    }
    request_headers = call.connection.headers
    if version.unchanged(request_headers):
        return Response(status_code=304, headers=headers)
    try:
        span = wanted(request_headers, version)
    except Unsatisfiable:
        raise InvalidRequest(
            f"the range starts after the end of the file ({row.size_bytes} bytes)",
            hint="request a range within the file",
            http_status=416,
            size=row.size_bytes,
        ) from None
    if span is None:
        status, span = 200, Span(0, row.size_bytes)
    else:
        status, last = 206, span.offset + span.length - 1
        headers["Content-Range"] = f"bytes {span.offset}-{last}/{row.size_bytes}"
    headers["Content-Length"] = str(span.length)
    if call.request.method == "HEAD":
        return Response(status_code=status, headers=headers)
    return _Download(store, row, span, status, headers)


async def delete(call: Call) -> Response:
    key = call.path("key")
    await store_of(call).delete(call.principal.tenant, key)
    return answer({"ok": True, "key": key})


@dataclass(frozen=True, slots=True)
class _StoredVersion(FileVersion):
    """A version identified by its content, which never changes unseen."""

    checksum: str = ""

    @property
    def tag(self) -> str:
        return f'"{self.checksum.removeprefix("sha256:")}"'


class _Download(Response):
    """Opens the file before the first byte is sent, so that a failure is still an error."""

    def __init__(
        self, store: FileStore, row: StoredFile, span: Span, status: int, headers: dict[str, str]
    ) -> None:
        self._store = store
        self._row = row
        self._span = span
        self._head = {
            "type": "http.response.start",
            "status": status,
            "headers": [(k.lower().encode(), v.encode("latin-1")) for k, v in headers.items()],
        }

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        row, span = self._row, self._span
        async with self._store.read(row.tenant, row.key, offset=span.offset, limit=span.length) as (
            stored,
            pieces,
        ):
            if stored.checksum != row.checksum:
                raise Busy("the file was replaced during the request", hint="ask again")
            await send(self._head)
            async for piece in pieces:
                await send({"type": "http.response.body", "body": piece, "more_body": True})
        await send({"type": "http.response.body", "body": b""})


async def _file_of(
    form: AsyncIterator[Any], fields: dict[str, str]
) -> tuple[dict[str, str], AsyncIterator[bytes], str | None]:
    """Return the fields before the file, and the file as a stream."""
    async for part in form:
        if part.filename is not None or part.name == "file":
            return fields, _alone(part.data, form), part.content_type
        if part.name in fields or len(fields) >= _MAX_FIELDS:
            raise _form(f"{part.name[:40]!r} is given twice, or there are too many fields")
        raw = b""
        async for piece in part.data:
            raw += piece
            if len(raw) > _MAX_FIELD:
                raise _form(f"the field {part.name[:40]!r} is larger than {_MAX_FIELD} bytes")
        try:
            fields[part.name] = raw.decode()
        except UnicodeDecodeError as exc:
            raise _form(f"the field {part.name[:40]!r} is not UTF-8") from exc
    raise _form("there is no part named file")


async def _alone(data: AsyncIterator[bytes], form: AsyncIterator[Any]) -> AsyncIterator[bytes]:
    async for piece in data:
        yield piece
    async for part in form:
        # Here, before the file is complete, and so before it is stored.
        raise _form(f"{part.name[:40]!r} comes after the file")


def _metadata(text: str | None) -> dict[str, str]:
    if text is None:
        return {}
    try:
        metadata = json.loads(text)
    except (ValueError, RecursionError):
        metadata = None
    if not isinstance(metadata, dict) or not all(
        isinstance(value, str) for value in metadata.values()
    ):
        raise InvalidRequest(
            "metadata must be a JSON object of strings",
            hint='use an object such as {"made_by": "report"}',
            field="metadata",
            http_status=422,
        )
    return metadata


def _form(why: str) -> InvalidRequest:
    return InvalidRequest(
        f"the form is not valid: {why}",
        hint="send fields first, then one part named file",
        http_status=422,
    )


_HEADERS = {
    "Range": "One range of bytes.",
    "If-Range": "With Range: send the range only if the file still has this ETag.",
    "If-None-Match": "Answer 304 if the file still has this ETag.",
}

ROUTES = (
    Route(
        "POST",
        "/v1/files",
        put,
        "Store a file",
        "files",
        scope="files",
        query=PutQuery,
        takes=(_FORM, "*/*"),
        reads_body=True,
        form={
            **text_schema(PutQuery)["properties"],
            "file": {"type": "string", "format": "binary"},
        },
        body_required=False,
        answer=File,
        status=201,
        errors=(Conflict, PayloadTooLarge, QuotaExceeded, UnsupportedByBackend),
        description="A form with one part named `file`, and the fields of the query before it; or "
        "the bytes themselves as the body. Whole or not at all.",
    ),
    Route(
        "GET",
        "/v1/files",
        listed,
        "List stored files",
        "files",
        scope="files",
        query=ListQuery,
        answer=FileList,
        errors=(UnsupportedByBackend,),
    ),
    Route(
        "GET",
        "/v1/files/{key:path}",
        get,
        "Get a stored file",
        "files",
        scope="files",
        gives=("*/*",),
        also={206: None, 304: None},
        fails={416: "the range"},
        headers=_HEADERS,
        errors=(FileNotFound, InvalidRequest, UnsupportedByBackend),
        description="With the content type it was stored with, as an attachment. HEAD: the headers "
        "alone. 416 for a range behind the end.",
    ),
    Route(
        "HEAD",
        "/v1/files/{key:path}",
        get,
        "Describe a stored file by headers",
        "files",
        scope="files",
        gives=("*/*",),
        also={206: None, 304: None},
        fails={416: "the range"},
        headers=_HEADERS,
        errors=(FileNotFound, InvalidRequest, UnsupportedByBackend),
    ),
    Route(
        "DELETE",
        "/v1/files/{key:path}",
        delete,
        "Delete a stored file",
        "files",
        scope="files",
        answer=DeletedStoredFile,
        errors=(FileNotFound, QuotaExceeded, UnsupportedByBackend),
    ),
)
