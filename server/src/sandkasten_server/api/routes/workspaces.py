"""Named workspaces, and their files through a sandbox that uses them."""

from __future__ import annotations

from contextlib import asynccontextmanager
from typing import TYPE_CHECKING, Annotated, Final

from pydantic import ConfigDict, Field, StrictFloat

from sandkasten.errors import (
    BackendUnavailable,
    Busy,
    Conflict,
    FileNotFound,
    InvalidRequest,
    NotADirectory,
    QuotaExceeded,
    UnsupportedByBackend,
    WorkspaceDamaged,
    WorkspaceNotFound,
)
from sandkasten.model.json_codec import to_json
from sandkasten.model.sandbox.cell_spec import WORKSPACE
from sandkasten_server.api.files.file_locations import Spot
from sandkasten_server.api.files.file_names import name_fields
from sandkasten_server.api.request.field_schemas import (
    Path,
    PathB64,
    WorkspaceName,
    at_most_given,
    exactly_one,
)
from sandkasten_server.api.response.json_response import answer
from sandkasten_server.api.route import Answer, Body, Query, Route
from sandkasten_server.api.routes.fs import file_routes

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

    from starlette.responses import Response

    from sandkasten.model.sandbox.workspace import Workspace
    from sandkasten_server.api.request.http_call import Call

Megabytes = Annotated[StrictFloat, Field(ge=1, le=10**9, json_schema_extra={"maximum": 1 << 20})]
# What one answer of the short listing holds; `fs/list` has pages.
_SHORT_LIST = 5000


class NewBody(Body):
    model_config = ConfigDict(json_schema_extra=exactly_one("name", "id"))

    name: WorkspaceName | None = None
    id: WorkspaceName | None = Field(None, description="Another name for `name`.")
    size_mb: Megabytes | None = Field(None, description="Without it, the operator's.")


class CopyBody(Body):
    name: WorkspaceName = Field(description="Name of the copy.")


class ResizeBody(Body):
    size_mb: Megabytes


class ShortListQuery(Query):
    model_config = ConfigDict(json_schema_extra=at_most_given("path", "path_b64"))

    path: Path | None = None
    path_b64: PathB64 | None = None


class OneWorkspace(Answer):
    id: str
    name: str
    kind: str | None = Field(description="`image`: the kernel enforces its size; or `directory`.")
    size: int | None
    size_bytes: int | None
    used_bytes: int | None
    allocated_bytes: int | None
    created_at: float | None
    used_by: list[str] = Field(description="Ids of the sessions that have it.")
    shared: bool
    problem: str | None = Field(description="Why it cannot be used as it is.")


class AllWorkspaces(Answer):
    workspaces: list[OneWorkspace]


class ShortEntry(Answer):
    name: str
    is_dir: bool


class ShortList(Answer):
    entries: list[ShortEntry]


class Done(Answer):
    ok: bool


async def listed(call: Call) -> Response:
    workspaces = await call.engine.workspaces.list(tenant=call.principal.tenant)
    return answer({"workspaces": [workspace_fields(workspace) for workspace in workspaces]})


async def described(call: Call) -> Response:
    workspace = await call.engine.workspaces.get(call.path("id"), tenant=call.principal.tenant)
    return answer(workspace_fields(workspace))


async def create(call: Call) -> Response:
    body = await call.body(NewBody)
    name = body.name if body.name is not None else body.id
    if name is None or (body.name is not None and body.id not in (None, body.name)):
        raise InvalidRequest(
            "a workspace requires one name", hint="send name", field="name", http_status=422
        )
    workspace = await call.engine.workspaces.create(
        name,
        size_mb=body.size_mb,
        tenant=call.principal.tenant,
        quota=call.principal.quota,
    )
    return answer(workspace_fields(workspace), 201)


async def copy(call: Call) -> Response:
    body = await call.body(CopyBody)
    workspace = await call.engine.workspaces.copy(
        call.path("id"),
        body.name,
        tenant=call.principal.tenant,
        quota=call.principal.quota,
    )
    return answer(workspace_fields(workspace), 201)


async def resize(call: Call) -> Response:
    body = await call.body(ResizeBody)
    workspace = await call.engine.workspaces.resize(
        call.path("id"),
        body.size_mb,
        tenant=call.principal.tenant,
        quota=call.principal.quota,
    )
    return answer(workspace_fields(workspace))


async def delete(call: Call) -> Response:
    await call.engine.workspaces.delete(call.path("id"), tenant=call.principal.tenant)
    return answer({"ok": True})


async def short_list(call: Call) -> Response:
    query = call.query(ShortListQuery)
    async with of_workspace(call) as spot:
        path = spot.named(query.path or None, query.path_b64, otherwise=WORKSPACE)
        page = await call.engine.files.list(spot.sandbox_id, path, limit=_SHORT_LIST)
    entries = [
        {**name_fields("name", entry.name), "is_dir": entry.is_dir} for entry in page.entries
    ]
    return answer({"entries": entries, "truncated": page.next is not None})


def workspace_fields(workspace: Workspace) -> dict[str, object]:
    return {**to_json(workspace), "id": workspace.name, "size": workspace.size_bytes}


@asynccontextmanager
async def of_workspace(call: Call) -> AsyncIterator[Spot]:
    lending = call.engine.workspace_files.lent(call.path("id"), tenant=call.principal.tenant)
    async with lending as sandbox_id:
        yield Spot(sandbox_id, workspace_only=True)


_TAG: Final = "workspaces"
_HERE = "/v1/workspaces/{id}"
_GONE = (WorkspaceNotFound, WorkspaceDamaged, UnsupportedByBackend)
_MADE = (Conflict, QuotaExceeded, UnsupportedByBackend)
_FILES = (*_GONE, Conflict, Busy, BackendUnavailable)

ROUTES = (
    Route(
        "GET", "/v1/workspaces", listed, "List workspaces", _TAG, _TAG,
        answer=AllWorkspaces, errors=(UnsupportedByBackend,),
        description="Without usage: request one workspace to measure it.",
    ),
    Route(
        "POST", "/v1/workspaces", create, "Create an empty workspace", _TAG, _TAG,
        body=NewBody, answer=OneWorkspace, status=201, errors=_MADE,
        description="A session that names a missing workspace creates it.",
    ),
    Route(
        "GET", _HERE, described, "Describe and measure a workspace", _TAG, _TAG,
        answer=OneWorkspace, errors=_GONE,
    ),
    Route(
        "DELETE", _HERE, delete, "Delete a workspace with everything in it", _TAG, _TAG,
        answer=Done, errors=(*_GONE, Conflict),
        description="CONFLICT while a session uses it.",
    ),
    Route(
        "POST", f"{_HERE}/copy", copy, "Copy a workspace", _TAG, _TAG,
        body=CopyBody, answer=OneWorkspace, status=201, errors=(*_GONE, *_MADE),
    ),
    Route(
        "POST", f"{_HERE}/resize", resize, "Enlarge a workspace", _TAG, _TAG,
        body=ResizeBody, answer=OneWorkspace, errors=(*_GONE, *_MADE),
    ),
    Route(
        "GET", f"{_HERE}/fs", short_list, "List a directory of a workspace, names only", _TAG, _TAG,
        query=ShortListQuery, answer=ShortList, errors=(*_FILES, FileNotFound, NotADirectory),
    ),
    *file_routes(_HERE, of_workspace, tag=_TAG, scope="workspaces", missing=_FILES),
)  # fmt: skip
