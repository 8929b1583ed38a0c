"""Copies stored files into a session and out of it, without sending them to the client.

Requires the scopes of both sides. Errors are those of the file operations and of the store.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

from pydantic import Field

from sandkasten.errors import (
    FileExists,
    FileNotFound,
    IsADirectory,
    NotRegular,
    PayloadTooLarge,
    PolicyDenied,
    QuotaExceeded,
    SessionExpired,
    SessionNotFound,
    UnsupportedByBackend,
)
from sandkasten_runtime.engine.storage.stage_publish import StagePublish
from sandkasten_server.api.files.stored_file import (
    File,
    expiry_of,
    file_fields,
    max_stored_bytes,
    store_of,
)
from sandkasten_server.api.request.authentication import require
from sandkasten_server.api.request.field_schemas import ContentType, FileKey, Path
from sandkasten_server.api.response.json_response import answer
from sandkasten_server.api.route import Answer, Body, Route

if TYPE_CHECKING:
    from starlette.responses import Response

    from sandkasten_server.api.request.http_call import Call


class StageBody(Body):
    file_key: FileKey
    destination: Path
    overwrite: bool = True


class PublishBody(Body):
    source: Path
    file_key: FileKey | None = None
    content_type: ContentType | None = None
    ttl_seconds: Annotated[float, Field(gt=0, le=10**10, strict=False)] | None = None
    checksum: str | None = Field(None, pattern=r"^(sha256:)?[0-9a-fA-F]{64}$")
    overwrite: bool = True


class StagedFile(Answer):
    ok: bool
    path: str
    size_bytes: int
    file_key: str
    checksum: str


class Published(File):
    ok: bool


async def stage(call: Call) -> Response:
    require(call.principal, "files")
    body = await call.body(StageBody)
    filing = StagePublish(call.engine.files, store_of(call))
    done = await filing.stage(
        call.principal.tenant,
        await call.session(),
        body.file_key,
        body.destination,
        overwrite=body.overwrite,
    )
    return answer(
        {
            "ok": True,
            "path": done.path,
            "size_bytes": done.size_bytes,
            "file_key": done.file_key,
            "checksum": done.checksum,
        }
    )


async def publish(call: Call) -> Response:
    require(call.principal, "files")
    body = await call.body(PublishBody)
    row = await StagePublish(call.engine.files, store_of(call)).publish(
        call.principal.tenant,
        await call.session(),
        body.source,
        body.file_key,
        content_type=body.content_type,
        expires_at=expiry_of(call, body.ttl_seconds),
        expect_sha256=body.checksum,
        overwrite=body.overwrite,
        max_stored_bytes=max_stored_bytes(call),
    )
    return answer({"ok": True, **file_fields(row)})


_GONE = (SessionNotFound, SessionExpired, UnsupportedByBackend)

ROUTES = (
    Route(
        "POST",
        "/v1/sessions/{id}/files/stage",
        stage,
        "Stage a stored file into a session",
        "files",
        body=StageBody,
        answer=StagedFile,
        errors=(*_GONE, FileNotFound, PolicyDenied, QuotaExceeded, IsADirectory, FileExists),
        description="Takes the scopes sessions and files.",
    ),
    Route(
        "POST",
        "/v1/sessions/{id}/files/publish",
        publish,
        "Publish a file of a session to the file store",
        "files",
        body=PublishBody,
        answer=Published,
        errors=(
            *_GONE,
            FileNotFound,
            PolicyDenied,
            IsADirectory,
            NotRegular,
            PayloadTooLarge,
            QuotaExceeded,
        ),
        description="Takes the scopes sessions and files. The whole file, replacing what the key "
        "led to.",
    ),
)
