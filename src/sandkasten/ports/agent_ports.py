"""Runs of agents and workflows: where they are remembered, and who carries them out."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Protocol

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Mapping, Sequence
    from contextlib import AbstractAsyncContextManager

    from sandkasten.model.access.tenancy import TenantQuota
    from sandkasten.model.runs.run_values import (
        AgentRunRequest,
        Definition,
        RunEvent,
        RunKind,
        RunRow,
        WorkflowRunRequest,
    )


class Runs(Protocol):
    """What is remembered of runs. A call that returns is durable; a full disk is QuotaExceeded."""

    async def begin(self, row: RunRow) -> None:
        """Conflict when there is one of that id."""
        ...

    async def save(self, row: RunRow) -> None:
        """In place of the row of that id; whole or not at all."""
        ...

    async def get(self, run_id: str) -> RunRow | None: ...
    async def list(
        self,
        tenant: str | None,
        *,
        kind: RunKind | None = None,
        status: str | None = None,
        limit: int = 100,
        before: str | None = None,
    ) -> Sequence[RunRow]:
        """Newest first (created_at, then id); `before` is the last id of the page before.

        A page may be shorter than `limit` where its rows are large; only an empty one is the end.
        """
        ...

    async def note(self, run_id: str, type: str, data: Mapping[str, Any]) -> RunEvent: ...
    async def events(
        self, run_id: str, *, since_seq: int = 0, limit: int = 1000
    ) -> Sequence[RunEvent]:
        """Those after `since_seq`, oldest first."""
        ...

    async def changed(self, run_id: str, since_seq: int, timeout_s: float) -> bool:
        """Waits for an event after `since_seq`, whoever notes it, or the end of the run."""
        ...

    def claim(self, run_id: str) -> AbstractAsyncContextManager[bool]:
        """Whether it is ours now: one holder over all processes, and it ends with the process."""
        ...

    async def prune(self, before: float) -> int:
        """Forget those that ended earlier; how many went."""
        ...


class AgentLibrary(Protocol):
    """Agents and workflows, their tools, and how a run of one is started."""

    async def definitions(self, kind: RunKind) -> Sequence[Definition]: ...
    async def definition(self, kind: RunKind, name: str) -> Definition:
        """AgentNotFound, WorkflowNotFound."""
        ...

    async def check(self, kind: RunKind, source: str, name: str = "") -> Definition:
        """A file described; what is wrong with it is in `error` and `warnings`, not raised."""
        ...

    async def start_agent(self, request: AgentRunRequest) -> RunRow:
        """Everything that can be refused is refused before this returns."""
        ...

    async def start_workflow(self, request: WorkflowRunRequest) -> RunRow: ...

    async def tools(self, mode: str) -> Sequence[Mapping[str, Any]]:
        """Return name, description and parameters (JSON Schema) of the tools of a mode."""
        ...


class Agents(AgentLibrary, Protocol):
    """Agents and runs of the caller's own tenant; a tenant in a request does not count."""

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
    async def call_tool(
        self,
        name: str,
        arguments: Mapping[str, Any],
        *,
        session: str,
        image: str | None = None,
        runtime: str | None = None,
    ) -> Mapping[str, Any]: ...


class TenantAgents(AgentLibrary, Protocol):
    """Agents and runs of every tenant.

    A run of another tenant is RunNotFound, exactly as an unknown one is.
    """

    async def run(self, run_id: str, tenant: str) -> RunRow: ...
    async def runs(
        self,
        tenant: str,
        *,
        kind: RunKind | None = None,
        status: str | None = None,
        limit: int = 100,
        before: str | None = None,
    ) -> Sequence[RunRow]: ...
    async def cancel(self, run_id: str, tenant: str) -> RunRow:
        """Ended when this returns, and its sandboxes are gone. One that ended stays as it is.

        Conflict when another process works on it.
        """
        ...

    async def resume(self, run_id: str, tenant: str) -> RunRow:
        """Go on with a workflow run that nobody works on. Conflict for any other."""
        ...

    def events(
        self, run_id: str, tenant: str, *, since_seq: int = 0, follow: bool = False
    ) -> AsyncIterator[RunEvent | RunRow]:
        """Its events; with `follow` to its end, and the row as the last item once it has ended."""
        ...

    async def call_tool(
        self,
        name: str,
        arguments: Mapping[str, Any],
        *,
        tenant: str,
        session: str,
        quota: TenantQuota | None = None,
        key_id: str | None = None,
        image: str | None = None,
        runtime: str | None = None,
    ) -> Mapping[str, Any]:
        """Outside any run: `session` names the caller's own sandbox. A failure is an answer.

        `image`, `runtime`: what it is made of where the call does not say. Cancelled, it ends the
        command it waits for.
        """
        ...
