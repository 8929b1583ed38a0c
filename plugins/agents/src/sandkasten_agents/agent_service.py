"""Service that runs agents and workflows, used by the HTTP API, the client and the command line.

Requests are checked before a run starts. Every run is a task of this object and ends no later than
the object does; the sandboxes of a run are destroyed when it ends, for whatever reason.

A daemon recovers from crashes at startup and every half minute: it resumes workflow runs, marks
agent runs as `lost`, and destroys sandboxes of runs that ended. A plain process never recovers, so
the sandboxes of its runs expire unless they are renewed.

A run of another tenant raises RunNotFound, as an unknown run does.
"""

from __future__ import annotations

import asyncio
import logging
from contextlib import contextmanager, suppress
from dataclasses import replace
from typing import TYPE_CHECKING, Any, Final, Self, get_args

from sandkasten.errors import (
    Busy,
    Cancelled,
    Conflict,
    InternalError,
    InvalidRequest,
    QuotaExceeded,
    RunNotFound,
    SandkastenError,
)
from sandkasten.model.access.tenancy import DEFAULT_TENANT
from sandkasten.model.runs.run_values import RunEvent, RunRow, RunStatus, new_run_id
from sandkasten.model.spelling import shown
from sandkasten_agents.agent_settings import AgentSettings
from sandkasten_agents.definition_info import described_agent, described_workflow
from sandkasten_agents.run_lifecycle import RunLifecycle
from sandkasten_agents.run_preparation import RunPreparation
from sandkasten_agents.run_sandboxes import RunSandboxes
from sandkasten_agents.run_tasks import RunTasks
from sandkasten_tools.tool_service import ToolService

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Iterator, Mapping, Sequence

    from sandkasten.model.access.tenancy import TenantQuota
    from sandkasten.model.runs.run_values import (
        AgentRunRequest,
        Definition,
        RunKind,
        WorkflowRunRequest,
    )
    from sandkasten.ports import Clock, EventSink
    from sandkasten.ports.agent_ports import Runs
    from sandkasten_agents.chat.model_settings import Models
    from sandkasten_agents.definitions.library import Library
    from sandkasten_agents.loop.loop_limits import LoopLimits
    from sandkasten_agents.workflows.workflow_runner import WorkflowRunner
    from sandkasten_runtime.engine.engine import Engine
    from sandkasten_tools.calls.toolbox import Toolbox

log = logging.getLogger("sandkasten.agents")
# Half of the minute within which everything of a lost run must be removed.
RECOVER_EVERY_S: Final = 30.0
# A sandbox of a plain process expires after this time; it is renewed three times within it.
PLAIN_IDLE_S: Final = 45.0
TOUCH_EVERY_S: Final = 15.0
# A run is listed shortly before it is claimed, so check such a run again soon.
_YOUNG_S: Final = 2.0
_FOLLOW_S: Final = 10.0


class AgentService:
    """Implementation of `ports.Agents`; use it with `async with`."""

    def __init__(
        self,
        *,
        engine: Engine,
        runs: Runs,
        toolbox: Toolbox,
        library: Library,
        models: Models,
        runner: WorkflowRunner,
        clock: Clock,
        limits: LoopLimits | None = None,
        settings: AgentSettings | None = None,
        recovers: bool = False,
        events: EventSink | None = None,
    ) -> None:
        """`recovers`: it belongs to a daemon, which recovers after a crash and resumes its workflow
        runs.
        """
        self._runs = runs
        self._tools = ToolService(toolbox)
        self._toolbox = toolbox
        self._clock = clock
        self._settings = settings or AgentSettings()
        self._recovers = recovers
        policy = engine.policy
        self._idle_timeout_s = (
            min(policy.ttl_s, policy.idle_timeout_s) if self._recovers else PLAIN_IDLE_S
        )
        self._lives_s = policy.lifetime_s if self._recovers else PLAIN_IDLE_S
        self._lifecycle = RunLifecycle(runs, self._clean, clock, events, engine.tracing)
        self._tasks = RunTasks(
            runs=runs,
            lifecycle=self._lifecycle,
            toolbox=toolbox,
            library=library,
            models=models,
            runner=runner,
            clock=clock,
            limits=limits,
            tracing=engine.tracing,
            idle_timeout_s=None if self._recovers else PLAIN_IDLE_S,
        )
        self._preparation = RunPreparation(library, self._tasks.loop, toolbox, engine.policy)
        self._run_sandboxes = RunSandboxes(engine, runs)
        self._upkeep: asyncio.Task[None] | None = None
        self._starting = 0
        self._closed = False

    async def __aenter__(self) -> Self:
        work = self._maintain() if self._recovers else self._renew_sandboxes()
        self._upkeep = asyncio.create_task(work)
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.aclose()

    async def drain(self, deadline_s: float) -> None:
        """Reject new runs and wait until the deadline for the current ones to end."""
        self._closed = True
        with suppress(TimeoutError):
            async with asyncio.timeout(deadline_s):
                await self._tasks.idle()

    async def aclose(self) -> None:
        """Cancel the remaining runs; a daemon leaves its workflow runs open for the next daemon."""
        self._closed = True
        self._lifecycle.stop_request.shutdown = True
        self._lifecycle.stop_request.leave_open = self._recovers
        if self._upkeep is not None:
            self._upkeep.cancel()
            await asyncio.gather(self._upkeep, return_exceptions=True)
            self._upkeep = None
        await self._tasks.aclose()

    # ---- the library

    async def definitions(self, kind: RunKind) -> Sequence[Definition]:
        return await self._preparation.definitions(kind)

    async def definition(self, kind: RunKind, name: str) -> Definition:
        return await self._preparation.definition(kind, name)

    async def check(
        self, kind: RunKind, source: str, name: str = "", *, key_id: str | None = None
    ) -> Definition:
        describe = described_agent if kind == "agent" else described_workflow
        definition = await asyncio.to_thread(describe, source, name)
        if definition.error is not None:
            return definition
        return await self._preparation.checked(definition, key_id)

    # ---- runs

    async def start_agent(self, request: AgentRunRequest) -> RunRow:
        with self._reserved():
            return await self._start_agent(request)

    async def _start_agent(self, request: AgentRunRequest) -> RunRow:
        agent = await self._preparation.agent(request)
        row = RunRow(
            retain_s=request.retain_seconds,
            id=new_run_id(),
            kind="agent",
            name=agent.name,
            created_at=self._clock.now(),
            tenant=request.tenant,
            input={"task": request.task, "variables": dict(request.variables)},
            key_id=request.key_id,
            quota=request.quota,
            files=request.files,
            source=agent.source,
        )
        await self._runs.begin(row)
        self._tasks.start_agent(row, agent)
        return row

    async def start_workflow(self, request: WorkflowRunRequest) -> RunRow:
        with self._reserved():
            return await self._start_workflow(request)

    async def _start_workflow(self, request: WorkflowRunRequest) -> RunRow:
        prepared = await self._preparation.workflow(request)
        retain_s = request.retain_seconds
        row = RunRow(
            retain_s=prepared.workflow.retain_s or None if retain_s is None else retain_s,
            id=new_run_id(),
            kind="workflow",
            name=prepared.workflow.id,
            created_at=self._clock.now(),
            tenant=request.tenant,
            input=request.input,
            key_id=request.key_id,
            quota=request.quota,
            files=request.files,
            source=prepared.source,
        )
        await self._runs.begin(row)
        self._tasks.start_workflow(row, prepared.workflow, prepared.warnings)
        return row

    async def run(self, run_id: str, tenant: str = DEFAULT_TENANT) -> RunRow:
        row = await self._runs.get(run_id)
        if row is None or row.tenant != tenant:
            raise RunNotFound(
                "run not found",
                hint="list the runs with `sandkasten agent runs` or GET /runs",
            )
        return row

    async def runs(
        self,
        tenant: str = DEFAULT_TENANT,
        *,
        kind: RunKind | None = None,
        status: str | None = None,
        limit: int = 100,
        before: str | None = None,
    ) -> Sequence[RunRow]:
        if status is not None and status not in get_args(RunStatus):
            raise InvalidRequest(
                f"{shown(status)} is not a valid run status",
                hint="use running, completed, failed, cancelled or lost",
                field="status",
            )
        return await self._runs.list(tenant, kind=kind, status=status, limit=limit, before=before)

    async def cancel(self, run_id: str, tenant: str = DEFAULT_TENANT) -> RunRow:
        row = await self.run(run_id, tenant)
        if row.ended:
            return row
        await self._tasks.cancel(run_id)
        row = await self.run(run_id, tenant)
        if not row.ended:
            # The run belongs to a dead process, or to one of our tasks that was stopped before it
            # started.
            with suppress(QuotaExceeded, InternalError):
                await self._abandon(row)
            row = await self.run(run_id, tenant)
        if not row.ended:
            # The disk may be full, for example. A workflow run would be resumed.
            raise Busy(
                f"run {run_id} was stopped, but its new status could not be saved",
                hint="free disk space, then cancel the run again",
                run_id=run_id,
            )
        return row

    async def resume(self, run_id: str, tenant: str = DEFAULT_TENANT) -> RunRow:
        row = await self.run(run_id, tenant)
        if row.kind != "workflow" or row.ended:
            what = "has ended" if row.ended else "is not a workflow run"
            raise Conflict(f"run {run_id} {what}", hint="start a new run", run_id=run_id)
        with self._reserved():
            resumed = await self._resumed(row)
        if not resumed:
            raise Conflict(
                f"run {run_id} is already in progress", hint="follow it instead", run_id=run_id
            )
        return row

    async def events(
        self, run_id: str, tenant: str = DEFAULT_TENANT, *, since_seq: int = 0, follow: bool = False
    ) -> AsyncIterator[RunEvent | RunRow]:
        row = await self.run(run_id, tenant)
        while True:
            page = await self._runs.events(run_id, since_seq=since_seq)
            for event in page:
                yield event
                since_seq = event.seq
            if page:
                continue
            if row.ended:
                yield row
                return
            if follow:
                await self._runs.changed(run_id, since_seq, _FOLLOW_S)
            # Read the status before the events, so that events written before the end are not
            # missed.
            row = await self.run(run_id, tenant)
            if not follow and not row.ended:
                return

    # ---- tools for other clients

    async def tools(self, mode: str) -> Sequence[Mapping[str, Any]]:
        return await self._tools.tools(mode)

    async def call_tool(
        self,
        name: str,
        arguments: Mapping[str, Any],
        *,
        tenant: str = DEFAULT_TENANT,
        session: str,
        quota: TenantQuota | None = None,
        files: bool = True,
        key_id: str | None = None,
        image: str | None = None,
        runtime: str | None = None,
        backend: str | None = None,
    ) -> Mapping[str, Any]:
        return await self._tools.call_tool(
            name,
            arguments,
            tenant=tenant,
            session=session,
            quota=quota,
            files=files,
            key_id=key_id,
            image=image,
            runtime=runtime,
            backend=backend,
        )

    # ---- after a crash

    async def recover(self) -> bool:
        """Settle the runs of dead processes; return False when some were too recent to decide.

        Only a daemon does this, because it is the process that keeps running.
        """
        now = self._clock.now()
        before: str | None = None
        sure = True
        while rows := await self._runs.list(None, status="running", before=before):
            before = rows[-1].id
            for row in rows:
                if self._tasks.has(row.id):
                    continue
                if 0 <= now - row.created_at < _YOUNG_S:
                    sure = False
                    continue
                with suppress(SandkastenError):
                    await self._settle(row)
        await self._run_sandboxes.sweep()
        await self._runs.prune(now - self._settings.retention_s)
        return sure

    async def _settle(self, row: RunRow) -> None:
        if row.kind == "workflow":
            if not self._closed and self._tasks.top_level_count < self._settings.max_concurrent:
                await self._resumed(row)
            return
        async with self._runs.claim(row.id) as is_claimed:
            fresh = await self._runs.get(row.id) if is_claimed else None
            if fresh is not None and not fresh.ended:
                lost = await self._lifecycle.clean_up(self._lost_row(fresh))
                await self._lifecycle.conclude(lost)

    def _lost_row(self, row: RunRow) -> RunRow:
        error = Cancelled("the process that worked on the run died", hint="start it again")
        return replace(
            row,
            status="lost",
            ended_at=self._clock.now(),
            error={"code": error.code, "message": error.message, "hint": error.hint},
        )

    async def _resumed(self, row: RunRow) -> bool:
        async with self._runs.claim(row.id) as is_claimed:
            if not is_claimed:
                return False
            fresh = await self._runs.get(row.id)
            if fresh is None or fresh.ended:
                return False
            await self._settle_below(fresh)
            # The sandboxes may have been created by the other kind of process.
            with suppress(SandkastenError):
                now = self._clock.now()
                await self._run_sandboxes.adopt(row.id, self._idle_timeout_s, self._lives_s, now)
        # No await between the check and the start, so that two concurrent requests start it once.
        if self._tasks.has(row.id):
            return False
        self._tasks.resume(fresh)
        return True

    async def _settle_below(self, flow: RunRow) -> None:
        """Settle the child runs of a workflow. A step in progress is repeated in a new run, so
        the old run is not resumed.
        """
        before: str | None = None
        while rows := await self._runs.list(
            flow.tenant, kind="agent", status="running", before=before
        ):
            before = rows[-1].id
            for row in rows:
                if row.workflow_run_id == flow.id and not self._tasks.has(row.id):
                    with suppress(SandkastenError):
                        await self._settle(row)

    async def _abandon(self, row: RunRow) -> None:
        """Cancel a run that no living process works on."""
        async with self._runs.claim(row.id) as is_claimed:
            if not is_claimed:
                raise Conflict(
                    f"another process works on run {row.id}",
                    hint="stop it in that process, for example with Ctrl-C",
                    run_id=row.id,
                )
            fresh = await self._runs.get(row.id)
            if fresh is not None and not fresh.ended:
                error = Cancelled("the run was cancelled")
                data = {"code": error.code, "message": error.message, "hint": ""}
                now = self._clock.now()
                ended = replace(fresh, status="cancelled", ended_at=now, error=data)
                await self._lifecycle.conclude(await self._lifecycle.clean_up(ended))
        if row.kind == "workflow":
            await self._settle_below(row)

    async def _maintain(self) -> None:
        while True:
            sure = True
            try:
                sure = await self.recover()
            except SandkastenError as exc:
                log.warning("runs.unrecovered", extra={"sandkasten": {"why": exc.code}})
            await asyncio.sleep(RECOVER_EVERY_S if sure else _YOUNG_S)

    async def _renew_sandboxes(self) -> None:
        last = self._clock.boottime()
        while True:
            await asyncio.sleep(TOUCH_EVERY_S)
            with suppress(SandkastenError):
                now = self._clock.boottime()
                await self._run_sandboxes.renew(self._tasks.ids(), now - last)
                last = now

    async def _clean(self, row: RunRow) -> Mapping[str, str]:
        """Destroy or retain the sandboxes of a run; return those that were retained."""
        # Who cancels a run wants an end to it.
        retain_from = None if row.status == "cancelled" else self._clock.now()
        done = await self._toolbox.finish(row.kind, row.id, row.tenant, retain_from=retain_from)
        for the_id, why in done.failed:
            data = {"run": row.id, "sandbox": the_id, "why": why.code}
            log.warning("run.sandbox_left", extra={"sandkasten": data})
        return done.retained

    @contextmanager
    def _reserved(self) -> Iterator[None]:
        """Reserve one of the concurrent runs until the run itself is registered."""
        if self._closed:
            raise Busy("new runs are rejected during shutdown", hint="try again")
        if self._tasks.top_level_count + self._starting >= self._settings.max_concurrent:
            raise QuotaExceeded(
                f"{self._settings.max_concurrent} runs are in progress, which is the maximum",
                hint="wait for a run to end, or raise agents.max_concurrent_runs",
                quota="runs",
            )
        self._starting += 1
        try:
            yield
        finally:
            self._starting -= 1
