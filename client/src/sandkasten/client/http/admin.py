"""Keys, the audit and stored files of a daemon: one method, one request."""

from __future__ import annotations

import json
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING, Any, Final, TypeAlias
from urllib.parse import quote

from sandkasten.client.http.connection import HttpRequest, pieces
from sandkasten.client.http.json_values import (
    given,
    maybe_text,
    record,
    records,
    text,
    value_of,
    values_of,
)
from sandkasten.model.access.api_keys import MadeKey
from sandkasten.model.access.tenancy import QuotaUsage
from sandkasten.model.audit_records import AuditReport, AuditRow
from sandkasten.model.files.file_store_rules import UNKNOWN_TYPE, known_file_key, no_such_file
from sandkasten.model.journal_rows import KeyRow, StagedFile, StoredFile

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator, AsyncIterable, AsyncIterator, Mapping, Sequence

    from sandkasten.client.http.connection import Connection
    from sandkasten.client.server.transport import FilesTransport
    from sandkasten.model.access.api_keys import KeyRequest
    from sandkasten.model.audit_records import AuditFilter, AuditHead

_KEYS: Final = "/v1/keys"
_FILES: Final = "/v1/files"
_STALL_S: Final = 60.0
# The whole log may have to be read.
_AUDIT_S: Final = 300.0

KeyRows: TypeAlias = "Sequence[KeyRow]"
Files: TypeAlias = "Sequence[StoredFile]"


class HttpBooks:
    def __init__(self, connection: Connection) -> None:
        self._connection = connection
        self.keys = HttpKeys(connection)
        self.files = HttpStored(connection)

    async def settings(self) -> list[dict[str, Any]]:
        """Return name, value and origin of each setting."""
        order = HttpRequest("GET", "/v1/settings", repeatable=True)
        return records(record(await self._connection.ask(order)).get("settings"), "settings")

    async def audited(self, wanted: AuditFilter) -> Sequence[AuditRow]:
        query = given(
            tenant=wanted.tenant,
            since_seq=None if wanted.newest else str(wanted.since_seq),
            since_unix=None if wanted.since is None else str(wanted.since),
            kind=wanted.kind,
            action=wanted.action,
            target=wanted.target,
            session_id=wanted.session_id,
            key_id=wanted.key_id,
            limit=str(wanted.limit),
        )
        order = HttpRequest("GET", "/v1/audit", query=query, repeatable=True, answer_s=_AUDIT_S)
        return values_of(AuditRow, record(await self._connection.ask(order)), "entries")

    async def audit_verified(self, head: AuditHead | None = None) -> AuditReport:
        query = {} if head is None else {"seq": str(head.seq), "hash": head.hash}
        order = HttpRequest(
            "GET", "/v1/audit/verify", query=query, repeatable=True, answer_s=_AUDIT_S
        )
        return value_of(AuditReport, await self._connection.ask(order), "report")

    @asynccontextmanager
    async def audit_lines(self) -> AsyncGenerator[AsyncIterator[bytes]]:
        order = HttpRequest("GET", "/v1/audit/export", repeatable=True, answer_s=_AUDIT_S)
        async with self._connection.stream(order) as answer:
            yield pieces(self._connection, answer, "the audit was exported", _STALL_S)


class HttpKeys:
    def __init__(self, connection: Connection) -> None:
        self._connection = connection

    async def create(self, request: KeyRequest) -> MadeKey:
        body = given(
            tenant=request.tenant,
            name=request.name or None,
            expires_in_seconds=request.expires_in_s,
            quota=given(**request.quota),
        )
        if request.scopes is not None:
            body["scopes"] = list(request.scopes)
        reply = record(await self._connection.ask(HttpRequest("POST", _KEYS, body)))
        return MadeKey(_key(reply), text(reply, "key"))

    async def list(self, tenant: str | None = None) -> KeyRows:
        order = HttpRequest("GET", _KEYS, query=given(tenant=tenant), repeatable=True)
        reply = record(await self._connection.ask(order))
        return [_key(row) for row in records(reply.get("keys"), "keys")]

    async def usage(self) -> QuotaUsage:
        order = HttpRequest("GET", "/v1/usage", repeatable=True)
        return value_of(QuotaUsage, record(await self._connection.ask(order)), "usage")

    async def revoke(self, key_id: str) -> KeyRow:
        order = HttpRequest("DELETE", f"{_KEYS}/{quote(key_id, safe='')}", repeatable=True)
        return _key(record(await self._connection.ask(order)))


class HttpStored:
    def __init__(self, connection: Connection) -> None:
        self._connection = connection

    async def put(
        self,
        data: AsyncIterable[bytes],
        *,
        key: str | None = None,
        content_type: str | None = None,
        ttl_s: float | None = None,
        metadata: Mapping[str, str] | None = None,
        overwrite: bool = False,
    ) -> StoredFile:
        query = given(
            key=key,
            ttl_seconds=None if ttl_s is None else str(ttl_s),
            metadata=json.dumps(dict(metadata)) if metadata else None,
            overwrite="true" if overwrite else None,
        )
        order = HttpRequest(
            "POST",
            _FILES,
            query=query,
            data=data,
            headers={"Content-Type": content_type or UNKNOWN_TYPE},
            answer_s=None,
        )
        return _file(record(await self._connection.ask(order)))

    async def get(self, key: str) -> StoredFile:
        # Use the list: headers lack some fields. An exact key sorts before its extensions.
        wanted = known_file_key(key)
        query = {"prefix": wanted, "limit": "1"}
        reply = await self._connection.ask(HttpRequest("GET", _FILES, query=query, repeatable=True))
        files = [_file(row) for row in records(record(reply).get("files"), "files")]
        if not files or files[0].key != wanted:
            raise no_such_file(key)
        return files[0]

    @asynccontextmanager
    async def read(self, key: str) -> AsyncGenerator[tuple[StoredFile, AsyncIterator[bytes]]]:
        row = await self.get(key)
        order = HttpRequest("GET", _path(key), repeatable=True, answer_s=None)
        async with self._connection.stream(order) as answer:
            yield row, pieces(self._connection, answer, f"{key} was read", _STALL_S)

    async def list(self, prefix: str = "") -> Files:
        files: list[StoredFile] = []
        cursor: str | None = None
        while True:
            query = given(prefix=prefix or None, cursor=cursor)
            reply = record(
                await self._connection.ask(HttpRequest("GET", _FILES, query=query, repeatable=True))
            )
            files += [_file(row) for row in records(reply.get("files"), "files")]
            cursor = maybe_text(reply, "next")
            if cursor is None:
                return files

    async def delete(self, key: str) -> None:
        await self._connection.ask(HttpRequest("DELETE", _path(key)))

    async def stage(
        self,
        files: FilesTransport,
        sandbox_id: str,
        key: str,
        destination: str,
        *,
        overwrite: bool = True,
    ) -> StagedFile:
        """Copy inside the daemon; the file is not sent to the client."""
        body = {"file_key": key, "destination": destination, "overwrite": overwrite}
        path = f"/v1/sessions/{quote(sandbox_id, safe='')}/files/stage"
        order = HttpRequest("POST", path, body, repeatable=overwrite, answer_s=None)
        return value_of(StagedFile, await self._connection.ask(order), "staged file")

    async def publish(
        self,
        files: FilesTransport,
        sandbox_id: str,
        source: str,
        key: str | None = None,
        *,
        content_type: str | None = None,
        ttl_s: float | None = None,
        overwrite: bool = True,
    ) -> StoredFile:
        body = given(
            source=source,
            file_key=key,
            content_type=content_type,
            ttl_seconds=ttl_s,
            overwrite=overwrite,
        )
        path = f"/v1/sessions/{quote(sandbox_id, safe='')}/files/publish"
        # Without a key each request makes its own.
        again = overwrite and key is not None
        order = HttpRequest("POST", path, body, repeatable=again, answer_s=None)
        return _file(record(await self._connection.ask(order)))


def _path(key: str) -> str:
    return f"{_FILES}/{quote(key)}"


def _key(value: object) -> KeyRow:
    return value_of(KeyRow, value, "key")


def _file(value: object) -> StoredFile:
    # The tenant is the caller's own, and no answer names it.
    return value_of(StoredFile, {**record(value, "file"), "tenant": ""}, "file")
