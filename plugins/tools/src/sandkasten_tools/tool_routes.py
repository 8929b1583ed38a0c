"""The tools of agents over HTTP, for clients with their own agent loop.

A call works in a sandbox of the caller, named by `session` and created on first use; no name leads
to a sandbox of a run. A tool that fails is an answer with `ok` false. Disconnecting ends the
command.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Any, Final, Literal

from pydantic import Field

from sandkasten.errors import InvalidRequest, UnsupportedByBackend
from sandkasten.model.field_patterns import SESSION_KEY_PART
from sandkasten_server.api.request.authentication import require
from sandkasten_server.api.request.field_schemas import shaped
from sandkasten_server.api.response.json_response import answer
from sandkasten_server.api.route import Answer, Body, Query, Route
from sandkasten_tools.lazy_tools import LazyTools

if TYPE_CHECKING:
    from starlette.responses import Response

    from sandkasten.ports import TenantTools
    from sandkasten_server.api.request.http_call import Call


# Besides the scope of sessions they take that of files, as the routes for the same do.
_OF_THE_STORE: Final = ("sandbox_stage_file", "sandbox_publish_file")


class ToolsQuery(Query):
    mode: Literal["compute", "code"] = "code"


class ToolBody(Body):
    arguments: dict[str, Any] = Field(default_factory=dict)
    session: Annotated[str, shaped(SESSION_KEY_PART)] = Field(
        "default", description="Names one of the caller's sandboxes; created on first use."
    )
    image: str | None = Field(None, description="The image; wins over the runtime's own.")
    runtime: str | None = Field(None, description="python, node, bash or linux.")
    backend: str | None = Field(None, description="The backend; default: as the operator says.")


class Tool(Answer):
    name: str
    description: str
    parameters: dict[str, Any] = Field(description="A JSON Schema.")


class ToolList(Answer):
    tools: list[Tool]
    count: int
    mode: str


class ToolAnswer(Answer):
    """The answer of the tool; `ok` false and the fields of an error if it failed."""


async def _tools_of(call: Call) -> TenantTools:
    tools = call.server.service(LazyTools)
    if tools is None:
        raise UnsupportedByBackend(
            "this daemon has no tools of agents", hint="restart the daemon of this installation"
        )
    return await tools.open()


async def tools(call: Call) -> Response:
    mode = call.query(ToolsQuery).mode
    listed = [dict(tool) for tool in await (await _tools_of(call)).tools(mode)]
    return answer({"tools": listed, "count": len(listed), "mode": mode})


async def call_tool(call: Call) -> Response:
    if call.path("name") in _OF_THE_STORE:
        require(call.principal, "files")
    body = await call.body(ToolBody)
    work = (await _tools_of(call)).call_tool(
        call.path("name"),
        body.arguments,
        tenant=call.principal.tenant,
        session=body.session,
        quota=call.principal.quota,
        files=call.principal.may("files"),
        key_id=call.principal.key_id,
        image=body.image,
        runtime=body.runtime,
        backend=body.backend,
    )
    # No other client knows the command's id, so no other could end it.
    return answer(dict(await call.while_there(work)))


ROUTES = (
    Route(
        "GET",
        "/v1/tools",
        tools,
        "List the agents' tools",
        "tools",
        query=ToolsQuery,
        answer=ToolList,
        errors=(UnsupportedByBackend,),
    ),
    Route(
        "POST",
        "/v1/tools/{name}",
        call_tool,
        "Call a tool",
        "tools",
        body=ToolBody,
        body_required=False,
        answer=ToolAnswer,
        errors=(InvalidRequest, UnsupportedByBackend),
        description="A tool that fails also answers 200, with `ok` false. Those that stage and "
        "publish files take the scope files as well.",
    ),
)
