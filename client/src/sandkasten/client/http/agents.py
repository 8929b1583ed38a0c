"""Agents, workflows and their runs at a daemon: one method, one request.

Following a run survives lost connections: the next one continues after the last event.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final, TypeAlias
from urllib.parse import quote

from sandkasten.client.http.connection import ANSWER_S, HttpRequest
from sandkasten.client.http.event_streams import Followed, follow
from sandkasten.client.http.json_values import given, maybe_text, record, records, value_of
from sandkasten.model.runs.run_values import Definition, RunEvent, RunRow

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Mapping, Sequence

    from sandkasten.client.http.connection import Connection
    from sandkasten.model.json_codec import Json
    from sandkasten.model.runs.run_values import AgentRunRequest, RunKind, WorkflowRunRequest

_LISTS: Final = {"agent": "agents", "workflow": "workflows"}
_EVENTS: Final[Mapping[str, str]] = {"Accept": "text/event-stream"}
# A tool may build an image or run for as long as it asks to; the daemon ends it.
_TOOL_S: Final = 86_400.0 + 1800.0
# A run that is cancelled takes its sandboxes along, which has its own deadline.
_CANCEL_S: Final = 2 * ANSWER_S

Definitions: TypeAlias = "Sequence[Definition]"


class HttpAgents:
    def __init__(self, connection: Connection) -> None:
        self._connection = connection

    async def definitions(self, kind: RunKind) -> Definitions:
        reply = await self._get(f"/{_LISTS[kind]}")
        return [_definition(row) for row in records(reply.get(_LISTS[kind]), _LISTS[kind])]

    async def definition(self, kind: RunKind, name: str) -> Definition:
        return _definition(await self._get(f"/{_LISTS[kind]}/{quote(name, safe='')}"))

    async def check(self, kind: RunKind, source: str, name: str = "") -> Definition:
        body = {"source": source, **given(name=name or None)}
        order = HttpRequest("POST", f"/{_LISTS[kind]}/validate", body, repeatable=True)
        return _definition(record(await self._connection.ask(order)))

    async def start_agent(self, request: AgentRunRequest) -> RunRow:
        body = given(
            agent_name=request.agent or None,
            task=request.task or None,
            variables=dict(request.variables),
            source=request.source,
            session=_session(request),
        )
        return _row(record(await self._connection.ask(HttpRequest("POST", "/execute", body))))

    async def start_workflow(self, request: WorkflowRunRequest) -> RunRow:
        body = given(
            workflow_id=request.workflow or None,
            source=request.source,
            session=_session(request),
        )
        if request.input is not None:
            body["input"] = request.input
        return _row(record(await self._connection.ask(HttpRequest("POST", "/workflow-runs", body))))

    async def run(self, run_id: str) -> RunRow:
        return _row(await self._get(_path(run_id)))

    async def runs(
        self,
        *,
        kind: RunKind | None = None,
        status: str | None = None,
        limit: int = 100,
        before: str | None = None,
    ) -> Sequence[RunRow]:
        rows: list[RunRow] = []
        while len(rows) < limit:
            page_size = str(min(1000, limit - len(rows)))
            reply = await self._get(
                "/runs", given(kind=kind, status=status, limit=page_size, before=before)
            )
            rows += [_row(row) for row in records(reply.get("runs"), "runs")]
            before = maybe_text(reply, "next")
            if before is None:
                break
        return rows

    async def cancel(self, run_id: str) -> RunRow:
        order = HttpRequest(
            "POST", _path(run_id, "cancel"), {}, repeatable=True, answer_s=_CANCEL_S
        )
        return _row(record(await self._connection.ask(order)))

    async def resume(self, run_id: str) -> RunRow:
        path = f"/workflow-runs/{quote(run_id, safe='')}/resume"
        return _row(record(await self._connection.ask(HttpRequest("POST", path, {}))))

    def events(
        self, run_id: str, *, since_seq: int = 0, follow: bool = False
    ) -> AsyncIterator[RunEvent | RunRow]:
        if follow:
            return self._followed(run_id, since_seq)
        return self._kept(run_id, since_seq)

    async def tools(self, mode: str) -> Sequence[Mapping[str, Any]]:
        reply = await self._get("/v1/tools", {"mode": mode})
        return records(reply.get("tools"), "tools")

    async def call_tool(
        self,
        name: str,
        arguments: Mapping[str, Any],
        *,
        session: str,
        image: str | None = None,
        runtime: str | None = None,
        backend: str | None = None,
    ) -> Mapping[str, Any]:
        body = {"arguments": dict(arguments), "session": session}
        body |= given(image=image, runtime=runtime, backend=backend)
        order = HttpRequest("POST", f"/v1/tools/{quote(name, safe='')}", body, answer_s=_TOOL_S)
        return record(await self._connection.ask(order))

    async def _kept(self, run_id: str, since_seq: int) -> AsyncIterator[RunEvent | RunRow]:
        while True:
            reply = await self._get(_path(run_id, "events"), {"since_seq": str(since_seq)})
            page = [_event(row) for row in records(reply.get("events"), "events")]
            for event in page:
                yield event
            if reply.get("done") is True:
                yield await self.run(run_id)
                return
            if not page:
                return
            since_seq = page[-1].seq

    def _followed(self, run_id: str, since_seq: int) -> AsyncIterator[RunEvent | RunRow]:
        def order_after(seq: int) -> HttpRequest:
            return HttpRequest(
                "GET",
                _path(run_id, "events"),
                query={"since_seq": str(seq)},
                headers=_EVENTS,
                repeatable=True,
                answer_s=None,
            )

        hint = "the run goes on; ask for it by its id"
        run = Followed("event", _event, _row, "a run", hint)
        return follow(self._connection, order_after, run, since_seq)

    async def _get(self, path: str, query: Mapping[str, str] | None = None) -> Json:
        order = HttpRequest("GET", path, query=query or {}, repeatable=True)
        return record(await self._connection.ask(order))


def _path(run_id: str, verb: str = "") -> str:
    base = f"/runs/{quote(run_id, safe='')}"
    return f"{base}/{verb}" if verb else base


def _session(request: AgentRunRequest | WorkflowRunRequest) -> dict[str, float] | None:
    return None if request.retain_seconds is None else {"retain": request.retain_seconds}


def _row(value: object) -> RunRow:
    # The tenant is the caller's own, and no answer names it.
    return value_of(RunRow, {**record(value, "run"), "tenant": ""}, "run")


def _event(value: object) -> RunEvent:
    return value_of(RunEvent, value, "event")


def _definition(value: object) -> Definition:
    return value_of(Definition, value, "definition")
