"""Agents and workflows over HTTP: start, list, follow, cancel and resume runs.

A run belongs to its tenant; another tenant's answers exactly like an unknown one. Everything that
can be refused is refused before 202. The routes exist at the paths of the contract and below `/v1`.
"""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

from sandkasten.errors import (
    AgentNotFound,
    Busy,
    Conflict,
    InvalidAgent,
    InvalidConfiguration,
    InvalidRequest,
    InvalidWorkflow,
    PolicyDenied,
    ProvisioningFailed,
    QuotaExceeded,
    RunNotFound,
    UnsupportedByBackend,
    WorkflowNotFound,
)
from sandkasten.model.durations import seconds
from sandkasten.model.json_codec import to_json
from sandkasten.model.optional_extras import install_command
from sandkasten.model.runs.run_values import AgentRunRequest, RunEvent, RunRow, WorkflowRunRequest
from sandkasten.model.spelling import shown
from sandkasten_agents.lazy_agents import LazyAgents
from sandkasten_agents.routes.run_schemas import (
    Accepted,
    AgentList,
    AgentRunsQuery,
    DescribedWhole,
    EventList,
    EventsQuery,
    ExecuteBody,
    RunDetail,
    RunList,
    RunSession,
    RunsQuery,
    SourceBody,
    WorkflowBody,
    WorkflowList,
    definition_fields,
    detail_fields,
    run_fields,
)
from sandkasten_server.api.response.json_response import answer
from sandkasten_server.api.response.sse import begun, event, large_event
from sandkasten_server.api.route import EVENTS, JSON, Route

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

    from starlette.responses import Response

    from sandkasten.model.runs.run_values import Definition, RunKind
    from sandkasten.ports import TenantAgents
    from sandkasten_server.api.request.http_call import Call


async def agents_of(call: Call) -> TenantAgents:
    agents = call.server.service(LazyAgents)
    if agents is None:
        raise UnsupportedByBackend(
            "this daemon runs no agents",
            hint=f"on the daemon's machine: {install_command('agents')}; then restart the daemon",
        )
    return await agents.open()


async def execute(call: Call) -> Response:
    body = await call.body(ExecuteBody)
    name = _one_name(body)
    row = await (await agents_of(call)).start_agent(
        AgentRunRequest(
            agent=name,
            task=body.task,
            variables=body.variables,
            tenant=call.principal.tenant,
            key_id=call.principal.key_id,
            quota=call.principal.quota,
            source=body.source,
            files=call.principal.may("files"),
            retain_seconds=_retention(body.session),
        )
    )
    return answer({**run_fields(row), "message": f"agent {row.name} runs"}, 202)


async def start_workflow(call: Call) -> Response:
    body = await call.body(WorkflowBody)
    if body.workflow_id is None and body.source is None:
        raise _refused("workflow_id", "no workflow is named")
    row = await (await agents_of(call)).start_workflow(
        WorkflowRunRequest(
            workflow=body.workflow_id or "",
            input=body.input,
            tenant=call.principal.tenant,
            key_id=call.principal.key_id,
            quota=call.principal.quota,
            source=body.source,
            files=call.principal.may("files"),
            retain_seconds=_retention(body.session),
        )
    )
    return answer({**run_fields(row), "message": f"workflow {row.name} runs"}, 202)


def _retention(session: RunSession | None) -> float | None:
    if session is None or session.retain is None:
        return None
    retain_s = seconds(session.retain)
    if retain_s is None:
        raise InvalidRequest(
            f"{shown(str(session.retain))} is not a valid duration",
            hint="write seconds, or 30m, 1h30m, 7d",
            field="session.retain",
        )
    return retain_s


async def runs(call: Call) -> Response:
    query = call.query(AgentRunsQuery)
    return await _listed(call, query, query.kind)


async def workflow_runs(call: Call) -> Response:
    return await _listed(call, call.query(RunsQuery), "workflow")


async def _listed(call: Call, query: RunsQuery, kind: RunKind | None) -> Response:
    agents, tenant = await agents_of(call), call.principal.tenant
    rows = await agents.runs(
        tenant, kind=kind, status=query.status, limit=query.limit, before=query.before
    )
    more = None
    if rows and await agents.runs(
        tenant, kind=kind, status=query.status, limit=1, before=rows[-1].id
    ):
        more = rows[-1].id
    return answer({"runs": [run_fields(row) for row in rows], "count": len(rows), "next": more})


async def run(call: Call) -> Response:
    return answer(detail_fields(await _run(call)))


async def workflow_run(call: Call) -> Response:
    row = await _workflow_run(call)
    return answer({**detail_fields(row), "state": dict(row.state)})


async def cancel(call: Call) -> Response:
    row = await (await agents_of(call)).cancel(call.path("run_id"), call.principal.tenant)
    return answer(detail_fields(row))


async def workflow_cancel(call: Call) -> Response:
    await _workflow_run(call)
    return await cancel(call)


async def resume(call: Call) -> Response:
    await _workflow_run(call)
    row = await (await agents_of(call)).resume(call.path("run_id"), call.principal.tenant)
    return answer({**run_fields(row), "message": f"workflow {row.name} goes on"}, 202)


async def events(call: Call) -> Response:
    query = call.query(EventsQuery)
    agents, the_id, tenant = await agents_of(call), call.path("run_id"), call.principal.tenant
    since = query.since_seq
    headers = call.connection.headers
    if EVENTS in headers.get("accept", ""):
        last_id = headers.get("last-event-id", "")
        if last_id.isascii() and last_id.isdigit() and len(last_id) < 19:
            since = max(since, int(last_id))
        return await begun(_stream(agents, the_id, tenant, since), call)
    row = await agents.run(the_id, tenant)
    collected: list[RunEvent] = []
    async for item in agents.events(the_id, tenant, since_seq=since):
        if isinstance(item, RunRow):
            row = item
        elif len(collected) > query.limit:
            break
        else:
            collected.append(item)
    shown = collected[: query.limit]
    return answer(
        {
            "events": [to_json(run_event) for run_event in shown],
            "count": len(shown),
            "next_seq": shown[-1].seq if shown else since,
            "status": row.status,
            "done": row.ended and len(shown) == len(collected),
        }
    )


async def workflow_events(call: Call) -> Response:
    await _workflow_run(call)
    return await events(call)


async def _stream(
    agents: TenantAgents, the_id: str, tenant: str, since: int
) -> AsyncIterator[bytes]:
    async for item in agents.events(the_id, tenant, since_seq=since, follow=True):
        if isinstance(item, RunEvent):
            yield event("event", to_json(item), item.seq)
        else:
            async for piece in large_event("done", detail_fields(item)):
                yield piece


async def agents(call: Call) -> Response:
    shown = [_shown(call, entry) for entry in await (await agents_of(call)).definitions("agent")]
    return answer({"agents": [definition_fields(entry) for entry in shown], "count": len(shown)})


async def workflows(call: Call) -> Response:
    shown = [_shown(call, entry) for entry in await (await agents_of(call)).definitions("workflow")]
    return answer({"workflows": [definition_fields(entry) for entry in shown], "count": len(shown)})


async def agent(call: Call) -> Response:
    entry = _shown(call, await (await agents_of(call)).definition("agent", call.path("name")))
    return answer(definition_fields(entry, whole=True))


async def workflow(call: Call) -> Response:
    entry = _shown(call, await (await agents_of(call)).definition("workflow", call.path("name")))
    return answer(definition_fields(entry, whole=True))


async def check_agent(call: Call) -> Response:
    body = await call.body(SourceBody)
    definition = await (await agents_of(call)).check(
        "agent", body.source, body.name, key_id=call.principal.key_id
    )
    return answer(definition_fields(definition, whole=True))


async def check_workflow(call: Call) -> Response:
    body = await call.body(SourceBody)
    definition = await (await agents_of(call)).check(
        "workflow", body.source, body.name, key_id=call.principal.key_id
    )
    return answer(definition_fields(definition, whole=True))


def _shown(call: Call, definition: Definition) -> Definition:
    """Hide paths of this machine from everyone but its operator."""
    if call.principal.may("admin"):
        return definition
    return replace(definition, path=definition.path.rpartition("/")[2])


async def _run(call: Call) -> RunRow:
    return await (await agents_of(call)).run(call.path("run_id"), call.principal.tenant)


async def _workflow_run(call: Call) -> RunRow:
    row = await _run(call)
    if row.kind != "workflow":
        raise RunNotFound(
            "no workflow run has that id",
            hint="sandkasten workflow runs, or GET /workflow-runs, lists them",
        )
    return row


def _one_name(body: ExecuteBody) -> str:
    named = {name for name in (body.agent_name, body.agent_id) if name}
    if len(named) > 1:
        raise _refused("agent_id", "agent_name and agent_id name two agents")
    if not named and body.source is None:
        raise _refused("agent_name", "no agent is named")
    return next(iter(named), "")


def _refused(field: str, message: str) -> InvalidRequest:
    return InvalidRequest(
        message, hint="see /docs for the fields of this route", field=field, http_status=422
    )


_START = (
    InvalidConfiguration,
    PolicyDenied,
    QuotaExceeded,
    ProvisioningFailed,
    UnsupportedByBackend,
    Busy,
)
_ONE = (RunNotFound, UnsupportedByBackend)

_PLAIN = (
    Route(
        "POST",
        "/execute",
        execute,
        "Run an agent",
        "runs",
        body=ExecuteBody,
        answer=Accepted,
        status=202,
        errors=(AgentNotFound, InvalidAgent, *_START),
        description="Answered when the run has begun; `GET /runs/{run_id}` tells how it goes. "
        "A key without the scope files has no tool for stored files in it.",
    ),
    Route(
        "GET",
        "/runs",
        runs,
        "List runs",
        "runs",
        query=AgentRunsQuery,
        answer=RunList,
        errors=(UnsupportedByBackend,),
        description="Newest first, including runs started by agents and workflows.",
    ),
    Route("GET", "/runs/{run_id}", run, "Show a run", "runs", answer=RunDetail, errors=_ONE),
    Route(
        "GET",
        "/runs/{run_id}/events",
        events,
        "Events of a run",
        "runs",
        query=EventsQuery,
        answer=EventList,
        gives=(JSON, EVENTS),
        errors=_ONE,
        headers={"Last-Event-ID": "With events, the same as `since_seq`."},
        description="With `Accept: text/event-stream` it follows the run: `event` for each, and "
        "`done` with the run at its end.",
    ),
    Route(
        "POST",
        "/runs/{run_id}/cancel",
        cancel,
        "Cancel a run",
        "runs",
        answer=RunDetail,
        errors=(*_ONE, Conflict),
        description="When this answers, the run has ended and its sandboxes are gone. A run that "
        "had already ended is unchanged.",
    ),
    Route(
        "POST",
        "/workflow-runs",
        start_workflow,
        "Run a workflow",
        "runs",
        body=WorkflowBody,
        answer=Accepted,
        status=202,
        errors=(WorkflowNotFound, InvalidWorkflow, AgentNotFound, InvalidAgent, *_START),
        description="A key without the scope files has no tool for stored files in it.",
    ),
    Route(
        "GET",
        "/workflow-runs",
        workflow_runs,
        "List workflow runs",
        "runs",
        query=RunsQuery,
        answer=RunList,
        errors=(UnsupportedByBackend,),
    ),
    Route(
        "GET",
        "/workflow-runs/{run_id}",
        workflow_run,
        "Show a workflow run",
        "runs",
        answer=RunDetail,
        errors=_ONE,
    ),
    Route(
        "GET",
        "/workflow-runs/{run_id}/events",
        workflow_events,
        "Events of a workflow run",
        "runs",
        query=EventsQuery,
        answer=EventList,
        gives=(JSON, EVENTS),
        errors=_ONE,
        headers={"Last-Event-ID": "With events, the same as `since_seq`."},
    ),
    Route(
        "POST",
        "/workflow-runs/{run_id}/cancel",
        workflow_cancel,
        "Cancel a workflow run",
        "runs",
        answer=RunDetail,
        errors=(*_ONE, Conflict),
    ),
    Route(
        "POST",
        "/workflow-runs/{run_id}/resume",
        resume,
        "Resume a workflow run that no process works on",
        "runs",
        answer=Accepted,
        status=202,
        errors=(*_ONE, Conflict, Busy, InvalidWorkflow, QuotaExceeded),
        description="The daemon also does this by itself within 30 seconds.",
    ),
    Route(
        "GET",
        "/agents",
        agents,
        "List agents",
        "agents",
        answer=AgentList,
        errors=(UnsupportedByBackend,),
        description="Includes unusable files; `error` says why.",
    ),
    Route(
        "GET",
        "/agents/{name}",
        agent,
        "Show an agent",
        "agents",
        answer=DescribedWhole,
        errors=(AgentNotFound, UnsupportedByBackend),
    ),
    Route(
        "POST",
        "/agents/validate",
        check_agent,
        "Validate a prompt file",
        "agents",
        body=SourceBody,
        answer=DescribedWhole,
        errors=(UnsupportedByBackend,),
        description="Problems are in `error` and `warnings`; nothing runs.",
    ),
    Route(
        "GET",
        "/workflows",
        workflows,
        "List workflows",
        "agents",
        answer=WorkflowList,
        errors=(UnsupportedByBackend,),
    ),
    Route(
        "GET",
        "/workflows/{name}",
        workflow,
        "Show a workflow, with its graph",
        "agents",
        answer=DescribedWhole,
        errors=(WorkflowNotFound, UnsupportedByBackend),
    ),
    Route(
        "POST",
        "/workflows/validate",
        check_workflow,
        "Validate a workflow file",
        "agents",
        body=SourceBody,
        answer=DescribedWhole,
        errors=(UnsupportedByBackend,),
        description="Problems are in `error` and `warnings`; nothing runs.",
    ),
)
ROUTES = (*_PLAIN, *(replace(route, path="/v1" + route.path) for route in _PLAIN))
