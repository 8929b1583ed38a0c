"""Agents and workflows: the asynchronous client and its blocking twin.

With a daemon, a run belongs to the daemon and continues without the client. Without one it belongs
to this process: it ends, with its sandboxes, when the object is closed or the loop ends. A run that
failed is a result; a run that could not be started is an error.
"""

from __future__ import annotations

import asyncio
import builtins
from typing import TYPE_CHECKING, Any, Self

from sandkasten.client.blocking.stream_pump import Pump
from sandkasten.client.blocking.twins import arguments_of, giving, waiting
from sandkasten.client.server.agents_transport import agents_of
from sandkasten.client.server.daemon_or_embedded import ServerAddress, place_of
from sandkasten.client.stream_close import closing
from sandkasten.errors import InvalidRequest
from sandkasten.model.runs.run_values import AgentRunRequest, RunRow, WorkflowRunRequest

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator, Awaitable, Callable, Mapping
    from contextlib import AbstractAsyncContextManager
    from os import PathLike

    from sandkasten.model.runs.run_values import Definition, RunEvent, RunKind
    from sandkasten.ports import Agents as AgentsPort


class AsyncRunEvents:
    """The events of a run as they happen; `run` is set when iteration has ended."""

    def __init__(
        self, reach: Callable[[], Awaitable[AgentsPort]], run_id: str, since_seq: int
    ) -> None:
        """Made by `run_events`."""
        self._reach = reach
        self._run_id = run_id
        self._since_seq = since_seq
        self._events: AsyncGenerator[RunEvent] | None = None
        self._run: RunRow | None = None

    @property
    def run(self) -> RunRow:
        if self._run is None:
            raise InvalidRequest(
                "the run has not ended yet", hint="iterate to the end, then read `run`"
            )
        return self._run

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.aclose()

    def __aiter__(self) -> Self:
        return self

    async def __anext__(self) -> RunEvent:
        if self._events is None:
            self._events = self._follow()
        return await anext(self._events)

    async def aclose(self) -> None:
        """Stop following. The run goes on."""
        if self._events is not None:
            await self._events.aclose()

    async def wait(self) -> RunRow:
        """Drop the rest of the events and wait for the end."""
        async for _ in self:
            pass
        return self.run

    async def _follow(self) -> AsyncGenerator[RunEvent]:
        agents = await self._reach()
        items = agents.events(self._run_id, since_seq=self._since_seq, follow=True)
        async with closing(items) as source:
            async for item in source:
                if isinstance(item, RunRow):
                    self._run = item
                    return
                yield item


class AsyncAgents:
    """The agents and workflows of one server. Connects on first use."""

    def __init__(
        self,
        *,
        data_dir: str | PathLike[str] | None = None,
        backend: str | None = None,
        url: str | None = None,
        api_key: str | None = None,
    ) -> None:
        """With `url` (or SANDKASTEN_URL) a daemon runs them, else this process does."""
        self._place = place_of(data_dir, backend, url, api_key)
        self._opening: asyncio.Lock | None = None
        self._loop: asyncio.AbstractEventLoop | None = None
        self._open: AgentsPort | None = None
        self._held: AbstractAsyncContextManager[AgentsPort] | None = None

    @classmethod
    def _at(cls, place: ServerAddress) -> Self:
        """Return the agents of a known server."""
        agents = cls.__new__(cls)
        agents._place = place
        agents._opening = agents._loop = agents._open = agents._held = None
        return agents

    async def agents(self) -> builtins.list[Definition]:
        """Return the agents in the library; a broken file has its reason in `error`."""
        return builtins.list(await (await self.transport()).definitions("agent"))

    async def workflows(self) -> builtins.list[Definition]:
        """Return the workflows in the library."""
        return builtins.list(await (await self.transport()).definitions("workflow"))

    async def run_agent(
        self,
        agent: str = "",
        task: str = "",
        *,
        variables: Mapping[str, Any] | None = None,
        source: str | None = None,
        retain_seconds: float | None = None,
        wait: bool = True,
    ) -> RunRow:
        """Run an agent. Returns the run at its end, or with `wait=False` at its start.

        `source` is the text of a prompt file, in place of an agent of the library. Its sessions
        are kept for `retain_seconds` after its end; `retained` of the run names them.
        """
        agents = await self.transport()
        row = await agents.start_agent(
            AgentRunRequest(
                agent=agent,
                task=task,
                variables=variables or {},
                source=source,
                retain_seconds=retain_seconds,
            )
        )
        return await self.run_events(row.id).wait() if wait else row

    async def run_workflow(
        self,
        workflow: str = "",
        input: Any = None,
        *,
        source: str | None = None,
        retain_seconds: float | None = None,
        wait: bool = True,
    ) -> RunRow:
        """Run a workflow. Returns the run at its end, or with `wait=False` at its start.

        Its sessions are kept for `retain_seconds` after its end.
        """
        agents = await self.transport()
        row = await agents.start_workflow(
            WorkflowRunRequest(
                workflow=workflow, input=input, source=source, retain_seconds=retain_seconds
            )
        )
        return await self.run_events(row.id).wait() if wait else row

    async def get_run(self, run_id: str) -> RunRow:
        """Return a run as it stands; RunNotFound if there is none."""
        return await (await self.transport()).run(run_id)

    async def runs(
        self,
        *,
        kind: RunKind | None = None,
        status: str | None = None,
        limit: int = 100,
        before: str | None = None,
    ) -> builtins.list[RunRow]:
        """Return runs, newest first; `before` is the last id of the previous page."""
        agents = await self.transport()
        rows = await agents.runs(kind=kind, status=status, limit=limit, before=before)
        return builtins.list(rows)

    async def cancel_run(self, run_id: str) -> RunRow:
        """End a run and its sandboxes. A run that has ended stays as it is."""
        return await (await self.transport()).cancel(run_id)

    async def resume_run(self, run_id: str) -> RunRow:
        """Continue a workflow run whose process died."""
        return await (await self.transport()).resume(run_id)

    def run_events(self, run_id: str, *, since_seq: int = 0) -> AsyncRunEvents:
        """Return the events of a run, from the first to its end."""
        return AsyncRunEvents(self.transport, run_id, since_seq)

    async def tools(self, mode: str = "code") -> builtins.list[dict[str, Any]]:
        """Return name, description and parameters of the tools of a mode (compute, code)."""
        return [dict(tool) for tool in await (await self.transport()).tools(mode)]

    async def call_tool(
        self, name: str, arguments: Mapping[str, Any] | None = None, *, session: str = "default"
    ) -> dict[str, Any]:
        """Call a tool in a sandbox of the caller, created on first use. A failure is an answer."""
        agents = await self.transport()
        return dict(await agents.call_tool(name, arguments or {}, session=session))

    async def close(self) -> None:
        """Close the connection; without a daemon, cancel what still runs. A call reopens it."""
        context, self._held, self._open = self._held, None, None
        if context is not None and self._loop is asyncio.get_running_loop():
            await context.__aexit__(None, None, None)

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.close()

    async def transport(self) -> AgentsPort:
        """Return what runs agents on this loop; it ends with the loop at the latest."""
        loop = asyncio.get_running_loop()
        if self._loop is not loop or self._opening is None:
            self._loop, self._opening = loop, asyncio.Lock()
            self._open = self._held = None
        async with self._opening:
            if self._open is None:
                context = agents_of(self._place)
                self._open = await context.__aenter__()
                self._held = context
            return self._open


class RunEvents:
    """The events of a run as they happen; `run` is set when iteration has ended."""

    def __init__(self, twin: AsyncRunEvents) -> None:
        """Made by `run_events`."""
        self._twin = twin
        self._pump: Pump[RunEvent] = Pump(twin)

    @property
    def run(self) -> RunRow:
        return self._twin.run

    def __iter__(self) -> Self:
        return self

    def __next__(self) -> RunEvent:
        return self._pump.take()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """Stop following. The run goes on."""
        self._pump.close()

    def wait(self) -> RunRow:
        """Drop the rest of the events and wait for the end."""
        for _ in self:
            pass
        return self.run


class Agents:
    """The agents and workflows of one server. Connects on first use."""

    @arguments_of(AsyncAgents)
    def __init__(self, **kwargs: Any) -> None:
        """With `url` (or SANDKASTEN_URL) a daemon runs them, else this process does."""
        self._twin = AsyncAgents(**kwargs)

    agents = waiting(AsyncAgents.agents)
    workflows = waiting(AsyncAgents.workflows)
    run_agent = waiting(AsyncAgents.run_agent)
    run_workflow = waiting(AsyncAgents.run_workflow)
    get_run = waiting(AsyncAgents.get_run)
    runs = waiting(AsyncAgents.runs)
    cancel_run = waiting(AsyncAgents.cancel_run)
    resume_run = waiting(AsyncAgents.resume_run)
    run_events = giving(RunEvents, AsyncAgents.run_events)
    tools = waiting(AsyncAgents.tools)
    call_tool = waiting(AsyncAgents.call_tool)
    close = waiting(AsyncAgents.close)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()
