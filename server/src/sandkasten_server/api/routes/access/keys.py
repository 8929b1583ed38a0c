"""API keys: create, list, revoke. The key itself is only in the response that creates it."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

from pydantic import Field, StrictFloat, StrictInt

from sandkasten.errors import InvalidRequest, NotFound, QuotaExceeded, UnsupportedByBackend
from sandkasten.model.access.api_keys import (
    MAX_KEY_NAME,
    KeyRequest,
    is_key_id,
    make_key,
    new_row,
    no_such_key,
)
from sandkasten.model.access.tenancy import SCOPES
from sandkasten.model.field_patterns import PRINTABLE
from sandkasten.model.json_codec import to_json
from sandkasten_server.api.request.field_schemas import WHOLE, Tenant, schema, shaped
from sandkasten_server.api.response.json_response import answer
from sandkasten_server.api.route import Answer, Body, Query, Route

if TYPE_CHECKING:
    from starlette.responses import Response

    from sandkasten.ports import Keys
    from sandkasten_server.api.request.http_call import Call

Count = Annotated[StrictInt, Field(ge=0, le=1 << 60), WHOLE]
_Scope = Annotated[str, schema(enum=sorted(SCOPES))]
_LEAST = schema(minimum=0.001)


class Quota(Body):
    max_sessions: Count | None = None
    max_memory_bytes: Count | None = None
    max_disk_bytes: Count | None = None
    requests_per_second: Annotated[StrictFloat, Field(gt=0, le=10**6), _LEAST] | None = None
    max_network_connections: Count | None = None
    max_network_bandwidth_bps: Count | None = None
    max_network_bytes_per_day: Count | None = None


class KeyBody(Body):
    tenant: Tenant | None = Field(None, description="Its tenant; the caller's if omitted.")
    name: Annotated[str, shaped(f"{PRINTABLE}{{0,{MAX_KEY_NAME}}}")] = Field(
        "", description="A free-form comment."
    )
    scopes: Annotated[list[_Scope], schema(minItems=1)] | None = Field(
        None, description="sessions, files and workspaces if omitted."
    )
    expires_in_seconds: Annotated[StrictFloat, Field(gt=0, le=10**10), _LEAST] | None = None
    quota: Quota | None = None


class KeysQuery(Query):
    tenant: str | None = None


class Key(Answer):
    id: str
    tenant: str
    name: str
    scopes: list[str]
    quota: dict[str, int | float | None]
    created_at: str
    expires_at: str | None
    revoked_at: str | None
    last_used_at: str | None
    created_at_unix: float
    expires_at_unix: float | None
    revoked_at_unix: float | None
    last_used_at_unix: float | None


class NewKey(Key):
    key: str = Field(description="The key. It is not kept and never shown again.")


class KeyList(Answer):
    keys: list[Key]
    count: int


async def create(call: Call) -> Response:
    body = await call.body(KeyBody)
    keys = _keys(call)
    request = KeyRequest(
        tenant=body.tenant,
        name=body.name,
        scopes=body.scopes,
        expires_in_s=body.expires_in_seconds,
        quota={} if body.quota is None else body.quota.model_dump(),
    )
    new_key = make_key()
    row = new_row(request, new_key, call.server.clock.now(), call.principal.tenant)
    await keys.add(row, new_key.hashed)
    call.recorded |= {"tenant": row.tenant, "scopes": " ".join(sorted(row.scopes))}
    return answer({**to_json(row), "key": new_key.text}, 201)


async def listed(call: Call) -> Response:
    rows = await _keys(call).list(call.query(KeysQuery).tenant)
    return answer({"keys": [to_json(row) for row in rows], "count": len(rows)})


async def revoke(call: Call) -> Response:
    key_id = call.path("id")
    row = None
    if is_key_id(key_id):
        row = await _keys(call).revoke(key_id, call.server.clock.now())
    if row is None:
        raise no_such_key()
    return answer({**to_json(row), "ok": True})


def _keys(call: Call) -> Keys:
    if call.server.stores.keys is None:
        raise UnsupportedByBackend("this daemon has no keys", hint="use a daemon with a database")
    return call.server.stores.keys


ROUTES = (
    Route(
        "POST",
        "/v1/keys",
        create,
        "Create an API key",
        "keys",
        scope="admin",
        body=KeyBody,
        body_required=False,
        answer=NewKey,
        status=201,
        errors=(InvalidRequest, QuotaExceeded, UnsupportedByBackend),
        description="Only this answer contains the key itself.",
    ),
    Route(
        "GET",
        "/v1/keys",
        listed,
        "List API keys",
        "keys",
        scope="admin",
        query=KeysQuery,
        answer=KeyList,
        errors=(UnsupportedByBackend,),
        description="Includes revoked and expired keys; all tenants unless one is named.",
    ),
    Route(
        "DELETE",
        "/v1/keys/{id}",
        revoke,
        "Revoke an API key",
        "keys",
        scope="admin",
        answer=Key,
        errors=(NotFound, QuotaExceeded, UnsupportedByBackend),
        description="The key is invalid from this answer on. Twice is fine; the first time counts.",
    ),
)
