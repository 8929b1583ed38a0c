"""Handlers of the file operations, for sessions and for workspaces."""

from __future__ import annotations

from contextlib import AsyncExitStack
from typing import TYPE_CHECKING, Final

from sandkasten.errors import Cancelled, Conflict, PayloadTooLarge, SandboxLost
from sandkasten.model.files.file_entries import utf8_text
from sandkasten.model.files.file_limits import MAX_JSON_FILE
from sandkasten.model.sandbox.cell_spec import WORKSPACE
from sandkasten_server.api.files.file_names import (
    encoded_cursor,
    entry_fields,
    given_cursor,
    name_fields,
)
from sandkasten_server.api.files.file_schemas import (
    DeleteBody,
    DeleteQuery,
    DownloadQuery,
    FileQuery,
    ListQuery,
    MkdirBody,
    MoveBody,
    ReadQuery,
    StatQuery,
    UploadQuery,
    WatchQuery,
    WriteBody,
    permissions,
    unclear,
)
from sandkasten_server.api.files.file_transfers import FormUpload, download
from sandkasten_server.api.response.json_response import (
    LARGE,
    answer,
    as_base64,
    is_large,
    large_answer,
)
from sandkasten_server.api.response.sse import begun, event

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

    from starlette.responses import Response

    from sandkasten.model.files.file_entries import Change
    from sandkasten_server.api.files.file_locations import Place, Spot
    from sandkasten_server.api.request.http_call import Call

FORM: Final = "multipart/form-data"


class Verbs:
    """The handlers for one kind of location."""

    def __init__(self, place: Place) -> None:
        self._place = place

    async def write(self, call: Call) -> Response:
        body = await call.body(WriteBody)
        data = body.data()
        if len(data) > MAX_JSON_FILE:
            raise _too_large(f"the file is {len(data)} bytes long", "PUT it to fs/file")
        async with self._place(call) as spot:
            entry = await call.engine.files.by(body.user).write(
                spot.sandbox_id,
                spot.named(body.path, body.path_b64),
                data,
                mode=permissions(body.mode),
                overwrite=body.overwrite,
                flush=body.flush,
            )
        return answer({"ok": True, **entry_fields(entry)})

    async def put(self, call: Call) -> Response:
        query = call.query(FileQuery)
        async with self._place(call) as spot:
            entry = await call.engine.files.by(query.user).write(
                spot.sandbox_id,
                spot.named(query.path, query.path_b64),
                call.pieces(call.server.rules.max_upload_bytes),
                mode=permissions(query.mode),
                overwrite=query.overwrite,
                flush=query.flush,
            )
        return answer({"ok": True, **entry_fields(entry)})

    async def read(self, call: Call) -> Response:
        query = call.query(ReadQuery)
        most = MAX_JSON_FILE if query.max_bytes is None else min(query.max_bytes, MAX_JSON_FILE)
        async with AsyncExitStack() as stack:
            async with self._place(call) as spot:
                path = spot.named(query.path, query.path_b64)
                files = call.engine.files.by(query.user)
                content = await files.read(
                    spot.sandbox_id, path, offset=query.offset, max_bytes=min(most, LARGE)
                )
                if content.truncated and most > LARGE:
                    turn = call.server.large_bodies.answering(call.principal.tenant)
                    await call.while_there(stack.enter_async_context(turn))
                    content = await files.read(
                        spot.sandbox_id, path, offset=query.offset, max_bytes=most
                    )
            if content.truncated and query.max_bytes is None:
                raise _too_large(
                    f"the file is {content.size} bytes long",
                    "GET fs/download, or read parts with max_bytes and offset",
                )
            fields = {
                **name_fields("path", content.path),
                "size_bytes": content.size,
                "truncated": content.truncated,
                "offset": query.offset,
                **_content(content.data, query, truncated=content.truncated),
            }
            return answer(fields) if not is_large(fields) else large_answer(fields, stack.pop_all())

    async def list(self, call: Call) -> Response:
        query = call.query(ListQuery)
        async with self._place(call) as spot:
            path = spot.named(query.path, query.path_b64, otherwise=WORKSPACE)
            page = await call.engine.files.by(query.user).list(
                spot.sandbox_id,
                path,
                recursive=query.recursive,
                limit=query.limit,
                cursor=given_cursor(query.cursor),
            )
        return answer(
            {
                **name_fields("path", path),
                "entries": [entry_fields(entry) for entry in page.entries],
                "next_cursor": encoded_cursor(page.next),
                "truncated": page.next is not None,
            }
        )

    async def stat(self, call: Call) -> Response:
        query = call.query(StatQuery)
        async with self._place(call) as spot:
            path = spot.named(query.path, query.path_b64)
            entry = await call.engine.files.by(query.user).stat(
                spot.sandbox_id, path, follow=query.follow
            )
        return answer(entry_fields(entry))

    async def mkdir(self, call: Call) -> Response:
        body = await call.body(MkdirBody)
        async with self._place(call) as spot:
            entry = await call.engine.files.by(body.user).mkdir(
                spot.sandbox_id,
                spot.named(body.path, body.path_b64),
                parents=body.parents,
                exist_ok=body.exist_ok,
                mode=permissions(body.mode),
            )
        return answer({"ok": True, **entry_fields(entry)})

    async def move(self, call: Call) -> Response:
        body = await call.body(MoveBody)
        async with self._place(call) as spot:
            entry = await call.engine.files.by(body.user).move(
                spot.sandbox_id,
                spot.named(body.source, body.source_b64, field="source"),
                spot.named(body.destination, body.destination_b64, field="destination"),
                overwrite=body.overwrite,
            )
        return answer({"ok": True, **entry_fields(entry)})

    async def delete(self, call: Call) -> Response:
        body = await call.body(DeleteBody)
        return await self._delete(call, DeleteQuery(**body.model_dump()))

    async def delete_by_query(self, call: Call) -> Response:
        return await self._delete(call, call.query(DeleteQuery))

    async def _delete(self, call: Call, query: DeleteQuery) -> Response:
        async with self._place(call) as spot:
            path = spot.named(query.path, query.path_b64)
            removed = await call.engine.files.by(query.user).remove(
                spot.sandbox_id, path, recursive=query.recursive, missing_ok=query.missing_ok
            )
        return answer(
            {
                "ok": True,
                **name_fields("path", path),
                "deleted": name_fields("path", path)["path"],
                "removed": removed,
            }
        )

    async def upload(self, call: Call) -> Response:
        query = call.query(UploadQuery)
        kind = call.connection.headers.get("content-type", "").partition(";")[0].strip().lower()
        async with self._place(call) as spot:
            has_path = query.path is not None or query.path_b64 is not None
            directory = spot.named(query.path, query.path_b64) if has_path else None
            if kind == FORM:
                files = call.engine.files.by(query.user)
                form = FormUpload(call, spot, files, directory, query.overwrite, query.flush)
                written = await form.run()
                shown = [entry_fields(entry) for entry in written]
                path, entries = form.directory or WORKSPACE, len(written)
                size = sum(entry.size for entry in written)
            else:
                path, shown = directory or WORKSPACE, []
                pieces = call.pieces(call.server.rules.max_upload_bytes)
                summary = await call.engine.files.by(query.user).tar_in(
                    spot.sandbox_id, path, pieces, flush=query.flush
                )
                entries, size = summary.entries, summary.bytes
        return answer(
            {
                "ok": True,
                **name_fields("path", path),
                "paths": [fields["path"] for fields in shown],
                "files": shown,
                "entries": entries,
                "size_bytes": size,
            }
        )

    async def download(self, call: Call) -> Response:
        query = call.query(DownloadQuery)
        async with AsyncExitStack() as stack:
            spot = await stack.enter_async_context(self._place(call))
            path = spot.named(query.path, query.path_b64)
            files = call.engine.files.by(query.user)
            return await download(call, stack, spot, files, path, tar=query.format == "tar")

    async def watch(self, call: Call) -> Response:
        return await begun(self._changes(call, call.query(WatchQuery)), call)

    async def _changes(self, call: Call, query: WatchQuery) -> AsyncIterator[bytes]:
        async with AsyncExitStack() as stack:
            spot = await stack.enter_async_context(self._place(call))
            path = spot.named(query.path, query.path_b64, otherwise=WORKSPACE)
            changes = await stack.enter_async_context(
                call.engine.files.by(query.user).watching(
                    spot.sandbox_id, path, recursive=query.recursive
                )
            )
            yield event("ready", name_fields("path", path))
            async for change in self._told(call, spot, changes):
                if change.change == "overflow":
                    yield event("overflow", {"hint": "changes were missed; list again"})
                    continue
                fields = {"kind": change.change, "change": change.change, "is_dir": change.is_dir}
                yield event("change", {**fields, **name_fields("path", change.path)})

    async def _told(
        self, call: Call, spot: Spot, changes: AsyncIterator[Change]
    ) -> AsyncIterator[Change]:
        try:
            async for change in changes:
                yield change
        except Cancelled as exc:
            # The way to the sandbox was closed on our side, which happens for two reasons.
            info = await call.engine.get(spot.sandbox_id)
            if info.status == "paused":
                raise Conflict("the sandbox was paused", hint="watch again after resuming") from exc
            raise SandboxLost("the sandbox was destroyed", hint="create a new one") from exc


def _content(data: bytes, query: ReadQuery, *, truncated: bool) -> dict[str, object]:
    text = None if query.encoding == "base64" else utf8_text(data, truncated=truncated)
    if text is None:
        if query.encoding not in (None, "base64"):
            raise unclear("the file is not UTF-8", "read it with encoding=base64", "encoding")
        b64 = as_base64(data)
        return {
            "encoding": "base64",
            "contents_b64": b64,
            "content_base64": b64,
            "next_offset": query.offset + len(data),
        }
    data = text.encode()
    return {
        "encoding": "utf-8",
        "content": text,
        "contents": text,
        "content_base64": as_base64(data),
        "next_offset": query.offset + len(data),
    }


def _too_large(what: str, hint: str) -> PayloadTooLarge:
    return PayloadTooLarge(
        f"{what}, and JSON takes {MAX_JSON_FILE}", hint=hint, limit=MAX_JSON_FILE
    )
