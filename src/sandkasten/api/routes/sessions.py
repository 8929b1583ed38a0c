"""Sessions: create, list, describe, destroy."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

from pydantic import Field, StrictFloat, StrictInt

from sandkasten.api.printing import answer
from sandkasten.api.routing import Answer, Body, Route
from sandkasten.errors import (
    BackendUnavailable,
    Conflict,
    InvalidImage,
    IsolationRefused,
    QuotaExceeded,
    SessionExpired,
    SessionNotFound,
    UnsupportedByBackend,
)
from sandkasten.model.sandbox import CreateRequest, Info

if TYPE_CHECKING:
    from starlette.responses import Response

    from sandkasten.api.call import Call

Seconds = Annotated[StrictInt | StrictFloat, Field(ge=0, le=10**9)]
Number = StrictInt | StrictFloat


class CreateBody(Body):
    image: str | None = None
    runtime: str | None = Field(None, description="Another name for `image`; `image` wins.")
    ttl_seconds: Seconds | None = Field(None, description="0 means the server's own.")
    idle_timeout_seconds: Seconds | None = None
    lifetime_seconds: Seconds | None = None
    workspace_id: str | None = None
    workspace_mode: str | None = None
    env: dict[str, str] = Field(default_factory=dict)
    labels: dict[str, str] = Field(default_factory=dict)
    limits: dict[str, Number] = Field(default_factory=dict)
    network: str | None = None
    profile: str | None = None
    backend: str | None = None
    isolation: str | None = None
    mounts: list[str] = Field(default_factory=list)
    session_key: str | None = None


class Session(Answer):
    id: str
    sandbox_id: str
    session_id: str
    session_key: str | None
    image: str
    backend: str
    status: str
    cwd: str
    workdir: str
    created: bool
    acquire_source: str
    acquire_detail: str
    workspace_id: str | None
    created_at: float
    expires_at: float


async def create(call: Call) -> Response:
    body = await call.body(CreateBody)
    request = CreateRequest(
        image=body.image if body.image is not None else body.runtime,
        ttl_s=body.ttl_seconds or None,
        idle_timeout_s=body.idle_timeout_seconds,
        lifetime_s=body.lifetime_seconds,
        env=body.env,
        labels=body.labels,
        limits=body.limits,
        profile=body.profile,
        backend=body.backend,
        isolation=body.isolation,
        network=body.network,
        workspace_id=body.workspace_id,
        workspace_mode=body.workspace_mode,
        mounts=tuple(body.mounts),
        session_key=body.session_key,
        tenant=call.principal.tenant,
    )
    return answer(session_fields(await call.engine.create(request)), 201)


async def describe(call: Call) -> Response:
    return answer(session_fields(await call.engine.get(await call.session())))


async def listed(call: Call) -> Response:
    found = await call.engine.list(tenant=call.principal.tenant)
    return answer([session_fields(one) for one in found])


async def destroy(call: Call) -> Response:
    await call.engine.destroy(await call.session())
    return answer({"ok": True})


def session_fields(info: Info) -> dict[str, object]:
    return {
        "id": info.id,
        "sandbox_id": info.id,
        "session_id": info.id,
        "session_key": info.session_key,
        "image": info.image,
        "backend": info.backend,
        "status": info.status,
        "cwd": info.cwd,
        "workdir": info.workdir,
        "created": info.created,
        "acquire_source": info.acquire_source,
        "acquire_detail": info.acquire_detail,
        "workspace_id": info.workspace_id,
        "created_at": info.created_at,
        "expires_at": info.expires_at,
    }


_GONE = (SessionNotFound, SessionExpired)

ROUTES = (
    Route(
        "POST",
        "/v1/sessions",
        create,
        "Create a session, or get the one that has the key",
        "sessions",
        body=CreateBody,
        answer=Session,
        status=201,
        errors=(
            InvalidImage,
            Conflict,
            QuotaExceeded,
            BackendUnavailable,
            IsolationRefused,
            UnsupportedByBackend,
        ),
    ),
    Route("GET", "/v1/sessions", listed, "List sessions", "sessions", answer=Session, array=True),
    Route(
        "GET",
        "/v1/sessions/{id}",
        describe,
        "Describe a session",
        "sessions",
        answer=Session,
        errors=_GONE,
    ),
    Route("DELETE", "/v1/sessions/{id}", destroy, "Destroy a session", "sessions", errors=_GONE),
)
