"""Sessions: create, list, describe, change, destroy."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Annotated, Any

from pydantic import Field

from sandkasten.errors import (
    BackendUnavailable,
    Conflict,
    ImageNotFound,
    InvalidImage,
    InvalidRequest,
    IsolationRefused,
    QuotaExceeded,
    RegistryUnavailable,
    SessionExpired,
    SessionNotFound,
    UnsupportedByBackend,
)
from sandkasten.model.json_codec import iso, to_json
from sandkasten.model.request_spellings import sandbox_options
from sandkasten.model.sandbox.sandbox_options import SandboxOptions
from sandkasten.model.sandbox.sandbox_values import (
    CreateRequest,
    Info,
    UpdateRequest,
)
from sandkasten_runtime.engine.lifecycle.session_list import STATUSES
from sandkasten_server.api.request.authentication import require
from sandkasten_server.api.request.body_models import body_of
from sandkasten_server.api.request.field_schemas import (
    ImageName,
    Limits,
    Printable,
    requires,
    schema,
    shaped,
)
from sandkasten_server.api.response.json_response import answer
from sandkasten_server.api.route import Answer, Query, Route

if TYPE_CHECKING:
    from starlette.responses import Response

    from sandkasten.model.journal_rows import SessionRow
    from sandkasten_server.api.request.http_call import Call

NEXT_CURSOR = "X-Next-Cursor"


CreateBody = body_of(
    "CreateBody",
    SandboxOptions,
    schema=requires("workspace_mode", "workspace_id"),
    limits=(Limits, Field(default_factory=dict)),
    runtime=(ImageName | None, Field(None, description="Another name for `image`; `image` wins.")),
    session_key=(
        Printable | None,
        Field(None, description="Get the live session that has this key, or create it."),
    ),
)
UpdateBody = body_of("UpdateBody", UpdateRequest, without=("key_id",))


class ListQuery(Query):
    status: Annotated[str, schema(enum=list(STATUSES))] | None = Field(
        None,
        description="creating, running, paused or destroying; or destroyed, expired, crashed or "
        "lost, which reaches sessions that are gone, newest first.",
    )
    label: Annotated[str, shaped("[^,=]+(?:=[^,]*)?(?:,[^,=]+(?:=[^,]*)?)*")] | None = Field(
        None, description="`name` or `name=value`; several with commas, all of which must hold."
    )
    all_tenants: bool = Field(
        False, description="Those of every tenant, not only of the caller's. Requires scope admin."
    )
    usage: bool = Field(
        False,
        description="Add what each live session uses. Not an activity: it wakes no session and "
        "extends nothing.",
    )
    limit: int = Field(1000, ge=1, le=1000)
    cursor: str | None = Field(
        None, max_length=200, description=f"`{NEXT_CURSOR}` of the previous page."
    )


class RunningCommandAnswer(Answer):
    exec_id: str
    command: str = Field(description="Its first 200 characters.")
    started_at: str
    started_at_unix: float


class SessionUsageAnswer(Answer):
    """null: not counted here, or not known."""

    memory_bytes: int | None
    memory_limit_bytes: int | None
    cpu_usec: int | None
    pids: int | None
    pids_limit: int | None
    oom_kills: int | None
    disk_bytes: int | None = Field(
        description="Of the workspace, when a command was last seen running; an idle session is "
        "not asked."
    )
    disk_limit_bytes: int | None
    connections: int | None = Field(description="Open ones of its network.")
    rx_bytes: int | None
    tx_bytes: int | None
    running: int | None = Field(description="Commands that have not ended.")
    commands: list[RunningCommandAnswer] = Field(description="The newest 8 of them.")


class Session(Answer):
    id: str
    sandbox_id: str
    session_id: str
    session_key: str | None
    image: str
    backend: str
    status: str
    cwd: str = Field(description="Where the default shell is.")
    cwd_b64: str | None = Field(None, description="Its bytes, if the name is not UTF-8.")
    workdir: str
    created: bool
    acquire_source: str
    acquire_detail: str
    workspace_id: str | None
    workspace_shared: bool
    snapshot: str | None = Field(description="The snapshot that it was created from.")
    created_at: str
    created_at_unix: float
    expires_at: str | None
    expires_at_unix: float | None
    ended_at: str | None
    reason: str | None
    ttl_seconds: float | None
    idle_timeout_seconds: float | None
    lifetime_seconds: float | None
    profile: str | None
    limits: dict[str, int | float]
    labels: dict[str, str]
    env_names: list[str]
    mounts: list[dict[str, str]]
    unenforced: list[dict[str, str]]
    warnings: list[str]
    network: str | dict[str, Any]
    tenant: str
    usage: SessionUsageAnswer | None = Field(description="Only in a list, where it is asked for.")


async def create(call: Call) -> Response:
    fields = vars(await call.body(CreateBody))
    options = sandbox_options(fields)
    request = CreateRequest(
        # 0 means the server's own.
        replace(options, ttl_seconds=options.ttl_seconds or None),
        session_key=fields["session_key"],
        tenant=call.principal.tenant,
        key_id=call.principal.key_id,
    )
    # Without its response a client does not know the id, so one that leaves ends the creation.
    info = await call.while_there(call.engine.create(request, call.principal.quota))
    return answer(session_fields(info), 201)


async def describe(call: Call) -> Response:
    return answer(session_fields(await call.engine.get(await call.session())))


async def change(call: Call) -> Response:
    the_id = await call.session()
    body = await call.body(UpdateBody)
    call.recorded["fields"] = " ".join(sorted(body.model_fields_set))
    request = UpdateRequest(**vars(body), key_id=call.principal.key_id)
    return answer(session_fields(await call.engine.update(the_id, request, call.principal.quota)))


async def listed(call: Call) -> Response:
    query = call.query(ListQuery)
    if query.all_tenants:
        require(call.principal, "admin")
    page = await call.engine.page(
        None if query.all_tenants else call.principal.tenant,
        status=query.status,
        labels=_labels(query.label),
        limit=query.limit,
        cursor=query.cursor,
        usage=query.usage,
    )
    rows = [session_fields(info) for info in page.living]
    rows += [ended_fields(session) for session in page.ended]
    return answer(rows, headers=None if page.next is None else {NEXT_CURSOR: page.next})


async def destroy(call: Call) -> Response:
    await call.engine.destroy(await call.session())
    return answer({"ok": True})


def session_fields(info: Info) -> dict[str, object]:
    return {
        **to_json(info),
        "sandbox_id": info.id,
        "session_id": info.id,
        "ended_at": None,
        "reason": None,
        "ttl_seconds": info.idle_timeout_s,
    }


def ended_fields(row: SessionRow) -> dict[str, object]:
    """Return the fields of a session that has ended; what is not remembered is null."""
    return {
        "id": row.id,
        "sandbox_id": row.id,
        "session_id": row.id,
        "session_key": row.session_key,
        "image": row.image,
        "backend": row.backend,
        "status": row.status,
        "cwd": "/workspace",
        "workdir": "/workspace",
        "created": False,
        "acquire_source": "cold",
        "acquire_detail": "",
        "workspace_id": row.workspace_id,
        "workspace_shared": False,
        "snapshot": None,
        "created_at": iso(row.created_at),
        "created_at_unix": row.created_at,
        "expires_at": None,
        "expires_at_unix": None,
        "ended_at": None if row.ended_at is None else iso(row.ended_at),
        "reason": row.reason,
        "ttl_seconds": None,
        "idle_timeout_seconds": None,
        "lifetime_seconds": None,
        "profile": None,
        "limits": {},
        "labels": dict(row.labels),
        "env_names": [],
        "gpus": None,
        "mounts": [],
        "unenforced": [],
        "warnings": [],
        "network": "none",
        "tenant": row.tenant,
        "usage": None,
    }


def _labels(text: str | None) -> dict[str, str | None]:
    wanted: dict[str, str | None] = {}
    for part in [] if text is None else text.split(","):
        name, equals, value = part.partition("=")
        if not name:
            raise InvalidRequest(
                "label must have a name",
                hint="label=name, label=name=value, or several with commas",
                field="label",
                http_status=422,
            )
        wanted[name] = value if equals else None
    return wanted


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
            ImageNotFound,
            Conflict,
            QuotaExceeded,
            BackendUnavailable,
            IsolationRefused,
            UnsupportedByBackend,
            RegistryUnavailable,
        ),
    ),
    Route(
        "GET",
        "/v1/sessions",
        listed,
        "List sessions",
        "sessions",
        query=ListQuery,
        answer=Session,
        array=True,
        description="Live sessions, oldest first. Where there are more than `limit`, the header "
        f"`{NEXT_CURSOR}` holds the cursor of the next page.",
    ),
    Route(
        "GET",
        "/v1/sessions/{id}",
        describe,
        "Describe a session",
        "sessions",
        answer=Session,
        errors=_GONE,
    ),
    Route(
        "PATCH",
        "/v1/sessions/{id}",
        change,
        "Change how long a session lives, and its labels",
        "sessions",
        body=UpdateBody,
        answer=Session,
        errors=(*_GONE, Conflict, QuotaExceeded, UnsupportedByBackend, BackendUnavailable),
    ),
    Route("DELETE", "/v1/sessions/{id}", destroy, "Destroy a session", "sessions", errors=_GONE),
)
