"""Secrets of the caller's tenant: set, list, remove. No answer contains a value."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

from pydantic import Field

from sandkasten.errors import (
    BackendUnavailable,
    InvalidRequest,
    NotFound,
    QuotaExceeded,
    StoreUnusable,
    UnsupportedByBackend,
)
from sandkasten.model.access.stored_secrets import (
    BASIC_USER,
    MAX_HOSTS,
    QUERY_PARAMETER,
    SECRET_NAME,
    SECRET_VALUE,
    SecretRequest,
)
from sandkasten.model.json_codec import to_json
from sandkasten_server.api.request.field_schemas import schema, shaped
from sandkasten_server.api.response.json_response import answer
from sandkasten_server.api.route import Answer, Body, Route

if TYPE_CHECKING:
    from starlette.responses import Response

    from sandkasten_server.api.request.http_call import Call

_Hosts = Annotated[list[str], schema(minItems=1, maxItems=MAX_HOSTS)]


class SecretBody(Body):
    name: Annotated[str, shaped(SECRET_NAME)] = Field(
        description="Its name, and that of the variable with its placeholder."
    )
    value: Annotated[str, shaped(SECRET_VALUE)] = Field(
        description="8 to 8192 printable ASCII characters.", repr=False
    )
    hosts: _Hosts = Field(description="Names that the value may be sent to, with or without port.")
    header: str | None = Field(
        None, description="A header that is set, such as `Authorization: Bearer {value}`."
    )
    basic: Annotated[str, shaped(BASIC_USER)] | None = Field(
        None, description="The user of `Authorization: Basic`."
    )
    query: Annotated[str, shaped(QUERY_PARAMETER)] | None = Field(
        None, description="A query parameter that is set."
    )
    body: bool = Field(False, description="The value replaces the placeholder in bodies.")


class SecretAnswer(Answer):
    name: str
    hosts: list[str]
    placeholder: str
    header: str | None
    basic: str | None
    query: str | None
    body: bool
    created_at: str
    updated_at: str
    created_at_unix: float
    updated_at_unix: float


class SecretList(Answer):
    secrets: list[SecretAnswer]
    count: int


class Removed(Answer):
    name: str
    ok: bool


async def put(call: Call) -> Response:
    body = await call.body(SecretBody)
    request = SecretRequest(
        name=body.name,
        value=body.value,
        hosts=body.hosts,
        header=body.header,
        basic=body.basic,
        query=body.query,
        body=body.body,
    )
    secret = await call.engine.secrets.set(request, tenant=call.principal.tenant)
    return answer(to_json(secret))


async def listed(call: Call) -> Response:
    secrets = await call.engine.secrets.list(tenant=call.principal.tenant)
    return answer({"secrets": [to_json(secret) for secret in secrets], "count": len(secrets)})


async def remove(call: Call) -> Response:
    name = call.path("name")
    await call.engine.secrets.remove(name, tenant=call.principal.tenant)
    return answer({"name": name, "ok": True})


_FAILURES = (BackendUnavailable, InvalidRequest, StoreUnusable, UnsupportedByBackend)
ROUTES = (
    Route(
        "POST",
        "/v1/secrets",
        put,
        "Set a secret",
        "secrets",
        scope="secrets",
        body=SecretBody,
        answer=SecretAnswer,
        errors=(*_FAILURES, QuotaExceeded),
        description="Replaces the secret with this name. Exactly one of `header`, `basic`, "
        "`query` and `body` says where the value goes. Running sandboxes keep the old value until "
        "their network is updated.",
    ),
    Route(
        "GET",
        "/v1/secrets",
        listed,
        "List secrets",
        "secrets",
        scope="secrets",
        answer=SecretList,
        errors=_FAILURES,
        description="Those of the caller's tenant, by name, without values.",
    ),
    Route(
        "DELETE",
        "/v1/secrets/{name}",
        remove,
        "Remove a secret",
        "secrets",
        scope="secrets",
        answer=Removed,
        errors=(*_FAILURES, NotFound),
        description="Running sandboxes keep it.",
    ),
)
