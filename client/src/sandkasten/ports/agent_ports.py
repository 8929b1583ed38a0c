"""Runs of agents and workflows: storage and execution."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Protocol

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Mapping, Sequence
    from types import TracebackType

    from sandkasten.model.access.tenancy import TenantQuota
    from sandkasten.model.runs.run_values import (
        AgentRunRequest,
        Definition,
        RunEvent,
        RunKind,
        RunRow,
        WorkflowRunRequest,
    )


class RunClaim(Protocol):
    """Hold a run for a block; `async with` returns whether it does. A holder that loses the run is
    cancelled; it then writes nothing, because another process may have the run.
    """

    @property
    def is_lost(self) -> bool: ...
    async def __aenter__(self) -> bool: ...
    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
        /,
    ) -> bool | None: ...


class Runs(Protocol):
    """Storage of runs. A call that returns is durable; a full disk raises QuotaExceeded."""

    async def begin(self, row: RunRow) -> None:
        """Store a new run. Raise Conflict if its id exists."""
        ...

    async def save(self, row: RunRow) -> None:
        """Replace the row with that id, atomically."""
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
        """Return runs, newest first (created_at, then id); `before` is the last id of the previous
        page.

        A page may be shorter than `limit` if its rows are large; only an empty page is the end.
        """
        ...

    async def note(self, run_id: str, type: str, data: Mapping[str, Any]) -> RunEvent: ...
    async def events(
        self, run_id: str, *, since_seq: int = 0, limit: int = 1000
    ) -> Sequence[RunEvent]:
        """Return the events after `since_seq`, oldest first."""
        ...

    async def changed(self, run_id: str, since_seq: int, timeout_s: float) -> bool:
        """Wait for an event after `since_seq`, from any process, or for the end of the run."""
        ...

    def claim(self, run_id: str) -> RunClaim:
        """Yield whether the caller now holds the run: one holder across all processes, until it
        exits.
        """
        ...

    async def prune(self, before: float) -> int:
        """Forget runs that ended earlier. Return their number."""
        ...


class AgentLibrary(Protocol):
    """Agents and workflows, their tools, and how a run of one is started."""

    async def definitions(self, kind: RunKind) -> Sequence[Definition]: ...
    async def definition(self, kind: RunKind, name: str) -> Definition:
        """Raise AgentNotFound or WorkflowNotFound."""
        ...

    async def check(self, kind: RunKind, source: str, name: str = "") -> Definition:
        """Describe a file; its faults are in `error` and `warnings`, not raised."""
        ...

    async def start_agent(self, request: AgentRunRequest) -> RunRow:
        """Start a run. Every reason to refuse it is checked before this returns."""
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
        backend: str | None = None,
    ) -> Mapping[str, Any]: ...


class TenantTools(Protocol):
    """The tools of agents, for clients with their own agent loop."""

    async def tools(self, mode: str) -> Sequence[Mapping[str, Any]]:
        """Return name, description and parameters (JSON Schema) of the tools of a mode."""
        ...

    async def call_tool(
        self,
        name: str,
        arguments: Mapping[str, Any],
        *,
        tenant: str,
        session: str,
        quota: TenantQuota | None = None,
        files: bool = True,
        key_id: str | None = None,
        image: str | None = None,
        runtime: str | None = None,
        backend: str | None = None,
    ) -> Mapping[str, Any]:
        """Call a tool outside any run: `session` names the caller's own sandbox. A failure is a
        result.

        `image`, `runtime` and `backend` are those of that sandbox. Cancelling ends the running
        command.
        """
        ...


class TenantAgents(AgentLibrary, TenantTools, Protocol):
    """Agents and runs of every tenant.

    A run of another tenant is RunNotFound, exactly as an unknown one is.
    """

    async def check(
        self, kind: RunKind, source: str, name: str = "", *, key_id: str | None = None
    ) -> Definition: ...
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
        """Cancel a run: it has ended and its sandboxes are removed when this returns.

        A run that has already ended is unchanged. Raise Conflict if another process works on it.
        """
        ...

    async def resume(self, run_id: str, tenant: str) -> RunRow:
        """Resume a workflow run that no process works on. Raise Conflict for any other."""
        ...

    def events(
        self, run_id: str, tenant: str, *, since_seq: int = 0, follow: bool = False
    ) -> AsyncIterator[RunEvent | RunRow]:
        """Yield its events; with `follow` until it ends, and then the row as the last item."""
        ...
