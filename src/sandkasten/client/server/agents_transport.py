"""What the client needs from whoever runs agents, as a Protocol, and how one is reached.

A daemon runs them and goes on when we leave; without one this process does, and what still runs is
cancelled, with its sandboxes, when it is closed. Only classes of `errors` leave an implementation.
"""

from __future__ import annotations

from contextlib import asynccontextmanager
from typing import TYPE_CHECKING, Any, Protocol

from sandkasten.client.server.server_pool import no_tenant

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Mapping, Sequence

    from sandkasten.client.server.server_pool import Place
    from sandkasten.model.runs.run_values import (
        AgentRunRequest,
        Definition,
        RunEvent,
        RunKind,
        RunRow,
        WorkflowRunRequest,
    )


class AgentsTransport(Protocol):
    """As the tenant one is; a tenant in a request does not count."""

    async def definitions(self, kind: RunKind) -> Sequence[Definition]: ...
    async def definition(self, kind: RunKind, name: str) -> Definition: ...
    async def check(self, kind: RunKind, source: str, name: str = "") -> Definition: ...
    async def start_agent(self, request: AgentRunRequest) -> RunRow: ...
    async def start_workflow(self, request: WorkflowRunRequest) -> RunRow: ...
    async def run(self, run_id: str) -> RunRow: ...
    async def runs(
        self,
        *,
        kind: RunKind | None = None,
        status: str | None = None,
        limit: int = 100,
        before: str | None = None,
    ) -> Sequence[RunRow]: ...
    async def cancel(self, run_id: str) -> RunRow: ...
    async def resume(self, run_id: str) -> RunRow: ...
    def events(
        self, run_id: str, *, since_seq: int = 0, follow: bool = False
    ) -> AsyncIterator[RunEvent | RunRow]: ...
    async def tools(self, mode: str) -> Sequence[Mapping[str, Any]]: ...
    async def call_tool(
        self,
        name: str,
        arguments: Mapping[str, Any],
        *,
        session: str,
        image: str | None = None,
        runtime: str | None = None,
    ) -> Mapping[str, Any]: ...


@asynccontextmanager
async def agents_of(place: Place) -> AsyncIterator[AgentsTransport]:
    """The agents of a daemon, or of this process where none is named."""
    if place.url is None:
        no_tenant(place)
        from sandkasten.client.server.embedded import open_agents

        async with open_agents(place) as opened:
            yield opened
        return
    from sandkasten.client.http.agents import HttpAgents
    from sandkasten.client.http.connection import Connection

    connection = Connection(place.url, place.api_key, place.tenant)
    try:
        yield HttpAgents(connection)
    finally:
        await connection.aclose()
