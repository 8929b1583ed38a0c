"""The engine: every use case behind one object, for an embedding process, the CLI or the daemon.

Lives in one event loop. Closing it closes connections; sandboxes live on until they are destroyed
or their lease ends. Only the warm pool is removed with it.
"""

from __future__ import annotations

import asyncio
from contextlib import AbstractAsyncContextManager, suppress
from dataclasses import replace
from typing import TYPE_CHECKING, TypeAlias

from sandkasten.disk.cleanup import finish
from sandkasten.errors import BackendUnavailable, Conflict, SandkastenError
from sandkasten.model.commands.code_values import kernel_line
from sandkasten.model.commands.exec_values import (
    Chunk,
    ChunkReader,
    ExecPast,
    ExecRequest,
    ExecResult,
)
from sandkasten.model.sandbox.readiness import Readiness, Tier, with_requirements
from sandkasten.model.sandbox.sandbox_values import (
    CreateRequest,
    Forked,
    ForkRequest,
    Info,
    Process,
    Recovered,
    Stats,
    Swept,
    UpdateRequest,
)
from sandkasten.ports import UNTRACED, Closes, HasExtras, HasRequirements
from sandkasten_runtime.engine.code.code_contexts import CodeContexts
from sandkasten_runtime.engine.commands.exec_history import ExecHistory
from sandkasten_runtime.engine.commands.execution import CALL_TIMEOUT_S, Execution
from sandkasten_runtime.engine.commands.port_stream import PortStream, connect_port
from sandkasten_runtime.engine.commands.terminals import Terminal, TerminalSessions, open_terminal
from sandkasten_runtime.engine.drain import Drain
from sandkasten_runtime.engine.handles import Handles
from sandkasten_runtime.engine.lifecycle.admission import Admission
from sandkasten_runtime.engine.lifecycle.end_watch import EndWatch
from sandkasten_runtime.engine.lifecycle.forks import Forks
from sandkasten_runtime.engine.lifecycle.pause import PauseControl
from sandkasten_runtime.engine.lifecycle.planner import Planner
from sandkasten_runtime.engine.lifecycle.reaper import Reaper
from sandkasten_runtime.engine.lifecycle.recovery import Recovery
from sandkasten_runtime.engine.lifecycle.sandbox_info import process_of
from sandkasten_runtime.engine.lifecycle.sandbox_updates import SandboxUpdates
from sandkasten_runtime.engine.lifecycle.sandboxes import Sandboxes, Turn
from sandkasten_runtime.engine.lifecycle.session_list import MOST, SessionList, SessionPage
from sandkasten_runtime.engine.lifecycle.tenant_quotas import TenantQuotas
from sandkasten_runtime.engine.lifecycle.workspace_claims import WorkspaceClaims
from sandkasten_runtime.engine.lifecycle.workspace_loans import Loans
from sandkasten_runtime.engine.network_control import NetworkControl
from sandkasten_runtime.engine.oneshot.build_sandbox import BuildSandbox
from sandkasten_runtime.engine.oneshot.held_interpreters import HeldInterpreters
from sandkasten_runtime.engine.oneshot.oneshot import OneShot
from sandkasten_runtime.engine.oneshot.package_sandbox import PackageSandboxes
from sandkasten_runtime.engine.placement.backend_choice import BackendChoice
from sandkasten_runtime.engine.placement.backend_survey import BackendSurvey
from sandkasten_runtime.engine.placement.isolation_tiers import IsolationTiers
from sandkasten_runtime.engine.placement.named_backend_choice import NamedBackendChoice
from sandkasten_runtime.engine.placement.tier_survey import TierSurvey
from sandkasten_runtime.engine.pool.pool_rules import PoolRules
from sandkasten_runtime.engine.pool.warm_pool import WarmPool
from sandkasten_runtime.engine.preflight import Preflight
from sandkasten_runtime.engine.session_journal import SessionJournal
from sandkasten_runtime.engine.session_usages import SessionUsages
from sandkasten_runtime.engine.storage.image_operations import EngineImages
from sandkasten_runtime.engine.storage.named_workspaces import NamedWorkspaces
from sandkasten_runtime.engine.storage.sandbox_files import FileOperations
from sandkasten_runtime.engine.storage.snapshots import Snapshots
from sandkasten_runtime.engine.storage.tenant_secrets import TenantSecrets
from sandkasten_runtime.engine.storage.workspace_files import WorkspaceFiles
from sandkasten_runtime.engine.tenant_traffic import TenantTraffic
from sandkasten_runtime.wire.messages import decode_processes

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Mapping, Sequence
    from collections.abc import Set as AbstractSet
    from pathlib import Path

    from sandkasten.model.access.tenancy import TenantQuota
    from sandkasten.model.backends.backend_features import BackendReport
    from sandkasten.model.ids import SandboxId
    from sandkasten.model.sandbox.oneshot_values import RunRequest, RunResult
    from sandkasten.model.sandbox.policy import Policy
    from sandkasten.model.sandbox.session_joins import JoinTerms
    from sandkasten.model.sandbox.usage import Usage
    from sandkasten.ports import (
        AuditLog,
        Backend,
        Clock,
        EventSink,
        FileStore,
        HostMounts,
        ImageLibrary,
        ImageSource,
        Journal,
        Provisioner,
        Secrets,
        SnapshotStore,
        Store,
        Tracing,
    )
    from sandkasten.ports import Workspaces as WorkspacePort

Infos: TypeAlias = list[Info]
Processes: TypeAlias = list[Process]
Results: TypeAlias = list[ExecResult]
Past: TypeAlias = list[ExecPast]
Tiered: TypeAlias = list[Tier]
Silences: TypeAlias = list[BackendUnavailable]

NO_POOL = PoolRules(enabled=False)
SWEEP_AFTER_S = 1.0  # Later than the first create, and early enough for short-lived processes.
SWEEP_AT_CLOSE_S = 2.0  # For the quick sweep of a process that ends before its first one.
CLOSE_S = 2.0  # For a backend's own connections, which end with the process in any case.
# A long-lived process sweeps at this interval: a paused sandbox cannot end itself.
SWEEP_EVERY_S = 60.0
# Lost connections for the end watch; if the queue is full, its next poll finds them.
_MAX_DISCONNECTS = 1024


class Engine:
    def __init__(
        self,
        *,
        backends: Mapping[str, Backend],
        default_backend: str,
        store: Store,
        images: ImageSource,
        policy: Policy,
        clock: Clock,
        events: EventSink | None = None,
        interpreters: tuple[str, ...] | None = None,  # modules of those that the pool has started
        pool: PoolRules = NO_POOL,
        version: str = "",
        library: ImageLibrary | None = None,
        workspaces: WorkspacePort | None = None,
        snapshots: SnapshotStore | None = None,
        host_mounts: HostMounts | None = None,
        journal: Journal | None = None,
        packages: Provisioner | None = None,
        stored_files: FileStore | None = None,  # counted in the disk quota of their tenant
        host_disk: Path | None = None,
        secrets: Secrets | None = None,
        tracing: Tracing = UNTRACED,
        audit: AuditLog | None = None,
    ) -> None:
        self._backends, self.backend_name = backends, default_backend
        self._store = store
        self.policy, self.tracing, self._clock, self.journal = policy, tracing, clock, journal
        self._in_flight = Drain()
        self._session_journal = SessionJournal(journal, clock, events, audit)
        self.trail = self._session_journal.trail
        disconnects: asyncio.Queue[SandboxId] = asyncio.Queue(_MAX_DISCONNECTS)
        self._handles = Handles(backends, store, clock, events, self._session_journal, disconnects)
        loans = Loans(store)
        claims = WorkspaceClaims(
            store=store,
            handles=self._handles,
            port=workspaces,
            rules=policy.workspaces,
            clock=clock,
            loans=loans,
        )
        named = NamedBackendChoice(policy.named_backends, backends, store, self._handles, claims)
        tiers = IsolationTiers(backends, default_backend, policy, named)
        self.secrets = TenantSecrets(secrets, policy.network)
        choice = BackendChoice(tiers, images, policy, self._handles.health, self.trail, events)
        planner = Planner(choice, images, policy, self.secrets, host_mounts, packages)
        self.network = NetworkControl(self._handles, policy.network)
        traffic = TenantTraffic(self._handles, store, journal, self.network, clock, events)
        self.quotas = TenantQuotas(store, claims, stored_files, traffic, self.network, snapshots)
        self._sandboxes = Sandboxes(
            handles=self._handles,
            store=store,
            planner=planner,
            entries=Admission(store, claims, self._session_journal, self.quotas, named, clock),
            session_journal=self._session_journal,
            clock=clock,
            events=events,
            tracing=tracing,
        )
        self._listing = SessionList(self._sandboxes, self._handles, store, self._session_journal)
        self._updating = SandboxUpdates(
            control=self.network,
            secrets=self.secrets,
            quotas=self.quotas,
            handles=self._handles,
            store=store,
            session_journal=self._session_journal,
            policy=policy,
            clock=clock,
            events=events,
        )
        self.workspaces = NamedWorkspaces(
            claims=claims,
            store=store,
            handles=self._handles,
            rules=policy.workspaces,
            remover=self._sandboxes,
            quotas=self.quotas,
            in_flight=self._in_flight,
            default_backend=default_backend,
            events=events,
        )
        self.snapshots = self._sandboxes.snapshots = Snapshots(
            port=snapshots,
            rules=policy.snapshots,
            disk=policy.disk,
            store=store,
            handles=self._handles,
            claims=claims,
            remover=self._sandboxes,
            quotas=self.quotas,
            in_flight=self._in_flight,
            clock=clock,
            events=events,
        )
        self.workspace_files = WorkspaceFiles(
            planner=planner,
            sandboxes=self._sandboxes,
            handles=self._handles,
            store=store,
            claims=claims,
            loans=loans,
            in_flight=self._in_flight,
        )
        self._survey = TierSurvey(
            backends, default_backend, policy, images, planner, self._sandboxes, library
        )
        self._backend_survey = BackendSurvey(backends, default_backend, named)
        self._pausing = PauseControl(self._handles, store, policy, clock, events, self.network)
        self._reaper = Reaper(
            backends=backends,
            store=store,
            sandboxes=self._sandboxes,
            handles=self._handles,
            pausing=self._pausing,
            clock=clock,
            events=events,
        )
        self._history = ExecHistory(self._handles, journal, clock, events)
        self._execution = Execution(
            self._handles, self._history, events, policy.ceiling, tracing, policy.network.reachable
        )
        self.code = CodeContexts(self._handles, self._execution, self._in_flight)
        self._watch = EndWatch(
            backends=backends,
            store=store,
            handles=self._handles,
            reaper=self._reaper,
            session_journal=self._session_journal,
            disconnects=disconnects,
            traffic=traffic,
            events=events,
        )
        self._recovery = Recovery(
            store=store,
            handles=self._handles,
            reaper=self._reaper,
            session_journal=self._session_journal,
            history=self._history,
            watch=self._watch,
            network=self.network,
            clock=clock,
            events=events,
        )
        self.files = FileOperations(self._handles, policy, host_disk)
        self.terminals = TerminalSessions(
            self._handles, self._execution, self._history, self._in_flight
        )
        self._pool = WarmPool(self._sandboxes, planner, clock, events, pool, version)
        self._sandboxes.pool = self._pool
        if interpreters is not None:
            self._pool.interpreters = HeldInterpreters(self._handles, interpreters, events)
        self._sites = PackageSandboxes(planner, self._sandboxes, self._execution, self.files, store)
        self._forks = Forks(
            self.snapshots, self._sandboxes, self._sites, policy, self.trail, events
        )
        shared = (self._execution, self.files, self._sites, events, tracing, stored_files)
        self._oneshot = OneShot(planner, self._sandboxes, *shared)
        self.preflight = Preflight(planner, self._sandboxes, self._oneshot, self._sites)
        self.bench = BuildSandbox(
            planner, self._sandboxes, self._execution, self._handles, self._sites
        )
        self.images = EngineImages(library, store, self.bench)
        self._usages = SessionUsages(self._handles, self._history, self.network, clock)
        self._sweeping: asyncio.Task[None] | None = None
        self._sweep_began = True

    # ---- sandboxes

    async def create(
        self,
        request: CreateRequest,
        quota: TenantQuota | None = None,
        *,
        terms: JoinTerms | None = None,
    ) -> Info:
        """Create a sandbox within `quota`, or join the session of its key.

        Raise Conflict if that session is not what the request names; `terms` replaces that.
        """
        with self._in_flight.within(), self.trail.deciding("session.create", request.tenant):
            return await self._sandboxes.create(request, quota, sites=self._sites, terms=terms)

    async def fork(
        self, sandbox_id: str, request: ForkRequest, quota: TenantQuota | None = None
    ) -> Forked:
        """Create copies of a living sandbox, all from one moment. The failure of one is its
        result.
        """
        with self._in_flight.within():
            return await self._forks.fork(sandbox_id, request, quota)

    async def update(
        self, sandbox_id: str, request: UpdateRequest, quota: TenantQuota | None = None
    ) -> Info:
        """Update a living sandbox: timeouts count from now on, its lifetime from its creation."""
        record = await self._updating.update(sandbox_id, request, quota)
        return self._sandboxes.describe(record, created=False)

    async def get(self, sandbox_id: str) -> Info:
        return await self._sandboxes.get(sandbox_id)

    async def list(
        self,
        *,
        all: bool = False,
        tenant: str | None = None,
        all_tenants: bool = False,
        usage: bool = False,
    ) -> Infos:
        """Return the sandboxes of a tenant; without one always those of all tenants."""
        infos = await self._listing.list(all=all, tenant=None if all_tenants else tenant)
        return await self._usages.added(infos) if usage else [*infos]

    async def page(
        self,
        tenant: str | None,
        *,
        status: str | None = None,
        labels: Mapping[str, str | None] | None = None,
        limit: int = MOST,
        cursor: str | None = None,
        usage: bool = False,
    ) -> SessionPage:
        """Return a page of a tenant's sessions; with the status of an end, also ended ones."""
        page = await self._listing.page(
            tenant, status=status, labels=labels, limit=limit, cursor=cursor
        )
        return replace(page, living=tuple(await self._usages.added(page.living))) if usage else page

    async def check_owner(self, sandbox_id: SandboxId, tenant: str) -> None:
        """Raise SessionExpired or SessionNotFound unless this tenant has the sandbox."""
        await self._sandboxes.check_owner(sandbox_id, tenant)

    async def ids(self) -> AbstractSet[str]:
        """Return the ids in the ledger, without checking the sandboxes."""
        return {row.id for row in await self._store.list()}

    async def census(self) -> dict[tuple[str, str], int]:
        """Return the number of sandboxes by state and backend, without checking them."""
        return await self._listing.census()

    async def owner(self, sandbox_id: SandboxId, turn: Turn | None = None) -> str:
        """Return the tenant of a sandbox. Raise SessionNotFound. `turn`: held while it is read."""
        return await self._sandboxes.owner(sandbox_id, turn)

    def max_stored_bytes(
        self, tenant: str, quota: TenantQuota | None
    ) -> AbstractAsyncContextManager[int | None]:
        """Yield the bytes that the tenant's stored files may take, valid during the block."""
        return self.quotas.max_stored_bytes(tenant, quota)

    async def destroy(self, sandbox_id: str) -> None:
        with self._in_flight.within(new=False):
            await self._sandboxes.destroy(sandbox_id)

    async def pause(self, sandbox_id: str) -> Info:
        """Stop everything inside until `resume`; requests to it raise Conflict."""
        return self._sandboxes.describe(await self._pausing.pause(sandbox_id), created=False)

    async def resume(self, sandbox_id: str) -> Info:
        record = await self._pausing.resume(sandbox_id)
        # The process that paused it may be gone, and with it the followers of its commands.
        with suppress(SandkastenError):
            await self._history.resume(record)
        return self._sandboxes.describe(record, created=False)

    async def reclaim(self, sandbox_id: str) -> int:
        """Reclaim memory and return how many bytes the host got back."""
        return await self._pausing.reclaim(sandbox_id)

    async def usage(self, sandbox_id: str) -> Usage:
        """Return the kernel's counters. Not an activity; works while paused."""
        return await (await self._handles.look(sandbox_id)).cell.usage()

    async def stats(self, sandbox_id: str) -> Stats:
        return await self._usages.stats(sandbox_id)

    async def processes(self, sandbox_id: str) -> Processes:
        _, channel = await self._handles.connect(sandbox_id)
        reply = decode_processes(await channel.call("proc.list", timeout_s=CALL_TIMEOUT_S))
        return [process_of(process) for process in reply.processes]

    async def probe(self, backend: str | None = None) -> Readiness:
        """Return what a create needs, and what the ledger reports for `doctor` besides that."""
        readiness = await self.probe_required(backend)
        if not isinstance(self._store, HasExtras):
            return readiness
        return with_requirements(readiness, await self._store.extras())

    async def probe_required(self, backend: str | None = None) -> Readiness:
        """Return what a create needs, without a trial of anything else."""
        readiness = await self._handles.backend(backend or self.backend_name).probe()
        if not isinstance(self._store, HasRequirements):
            return readiness
        return with_requirements(readiness, await self._store.requirements())

    def degraded(self) -> Silences:
        """Return the backends that did not answer when they were last asked, and why."""
        return self._handles.health.errors()

    async def backends(self) -> Sequence[BackendReport]:
        """Probe every backend, all at once; the default is first."""
        return await self._backend_survey.reports()

    async def tiers(self, *, measure: bool = True) -> Tiered:
        """Return every isolation tier; `measure` creates and times a few sandboxes on each."""
        return await self._survey.tiers(measure=measure)

    # ---- commands

    async def exec(
        self, sandbox_id: str, request: ExecRequest, *, line: str | None = None
    ) -> ExecResult:
        """Run a command to its end. `line`: what is recorded of one of our programs."""
        self._in_flight.check()
        return await self._execution.run(sandbox_id, request, line=line)

    async def look(self, sandbox_id: str, request: ExecRequest) -> ExecResult:
        """Run one of our programs that no client asked for; no list and no record has it."""
        self._in_flight.check()
        return await self._execution.look(sandbox_id, request)

    def exec_stream(
        self, sandbox_id: str, request: ExecRequest
    ) -> AsyncIterator[Chunk | ExecResult]:
        self._in_flight.check()
        return self._execution.stream(sandbox_id, request)

    async def exec_start(
        self, sandbox_id: str, request: ExecRequest, *, line: str | None = None
    ) -> ExecResult:
        """Start a command in the background. `line`: what is recorded of one of our programs."""
        self._in_flight.check()
        return await self._execution.start(sandbox_id, request, line=line)

    async def exec_get(self, sandbox_id: str, exec_id: str, *, wait_s: float = 0) -> ExecResult:
        return await self._execution.get(sandbox_id, exec_id, wait_s=wait_s)

    def exec_output(
        self, sandbox_id: str, exec_id: str, *, since_seq: int = 0, follow: bool = False
    ) -> AsyncIterator[Chunk | ExecResult]:
        return self._execution.output(sandbox_id, exec_id, since_seq=since_seq, follow=follow)

    async def exec_signal(self, sandbox_id: str, exec_id: str, signal: int) -> None:
        await self._execution.signal(sandbox_id, exec_id, signal)

    async def exec_stdin(
        self, sandbox_id: str, exec_id: str, data: bytes, *, close: bool = False
    ) -> None:
        """Send input to a command; wait until it has read what the kernel does not buffer."""
        await self._execution.stdin(sandbox_id, exec_id, data, close=close)

    async def execs(self, sandbox_id: str, *, limit: int = 256, tenant: str | None = None) -> Past:
        """Return the newest commands, pieces of code and kernels of a sandbox, oldest first."""
        try:
            results = await self._execution.list(sandbox_id)
        except Conflict:
            # Paused: it cannot be asked, and its answer is in the journal.
            if not self._history.remembers:
                raise
            results = ()
        return await self._history.past(sandbox_id, results, limit, tenant)

    async def past_execs(self, sandbox_id: str, *, limit: int, tenant: str) -> Past:
        """Return what the journal remembers of a session, also of an ended one, oldest first."""
        return await self._history.past(sandbox_id, (), limit, tenant)

    async def commands(self, sandbox_id: str) -> Results:
        """Return the newest commands as the sandbox knows them, without kernels."""
        results = await self._execution.list(sandbox_id)
        return [result for result in results if kernel_line(result.exec_id) is None]

    def terminal(
        self,
        sandbox_id: str,
        *,
        command: tuple[str, ...] | None = None,
        rows: int = 24,
        cols: int = 80,
        env: Mapping[str, str] | None = None,
        cwd: str | None = None,
    ) -> AbstractAsyncContextManager[Terminal]:
        self._in_flight.check()
        return open_terminal(
            self._handles,
            self._history,
            sandbox_id,
            command=command,
            rows=rows,
            cols=cols,
            env=env,
            cwd=cwd,
        )

    async def shell_close(self, sandbox_id: str, name: str) -> None:
        """End a persistent shell with its jobs; the next command of that name gets a new one."""
        await self._execution.close_shell(sandbox_id, name)

    def connect(self, sandbox_id: str, port: int) -> AbstractAsyncContextManager[PortStream]:
        return connect_port(self._handles, sandbox_id, port)

    async def run(
        self, request: RunRequest, quota: TenantQuota | None = None, show: ChunkReader | None = None
    ) -> RunResult:
        with self._in_flight.within(), self.trail.deciding("run", request.tenant):
            return await self._oneshot.run(request, quota, show)

    # ---- upkeep

    async def recover(self) -> Recovered:
        """Recover what an earlier process left, and start the watch. Called once, first."""
        await self._begin_recovery()
        return await self._recovery.finish()

    async def recover_soon(self) -> None:
        """Do the same, but settle sandboxes that ran in the background, or when they are used."""
        await self._begin_recovery()
        self._recovery.finish_soon()

    async def _begin_recovery(self) -> None:
        await self._pool.start(self._sites)
        # First: a sandbox that was being copied is stopped, and does not answer.
        await self.snapshots.tidy_quietly()
        await self._recovery.begin()
        self._watch.start()
        self._pool.refill()

    async def drain(self, deadline_s: float = 30.0) -> bool:
        """Refuse new work; return whether creates and removals ended in time. Commands go on."""
        return await self._in_flight.close(deadline_s)

    async def sweep(self) -> Swept:
        self._sweep_began = True
        swept = await self._reaper.sweep()
        await self.snapshots.tidy_quietly()
        await self.workspaces.tidy(self._backends.values())
        return swept

    def sweep_soon(self, after_s: float = SWEEP_AFTER_S) -> None:
        """Sweep in the background, the first time soon; or quickly in `aclose`."""
        if self._sweeping is None:
            self._sweep_began = False
            self._sweeping = asyncio.get_running_loop().create_task(self._sweep_after(after_s))

    async def aclose(self) -> None:
        """Close every connection after the warm pool is removed. Twice is fine."""
        await finish(self._aclose())

    async def _aclose(self) -> None:
        await self._recovery.aclose()
        await self._watch.aclose()
        await self._history.aclose()
        await self._pool.aclose()
        await self.workspace_files.aclose()
        await self.terminals.aclose()
        if self._sweeping is not None:
            self._sweeping.cancel()
            with suppress(asyncio.CancelledError):
                await self._sweeping
            self._sweeping = None
        if not self._sweep_began:
            self._sweep_began = True
            with suppress(TimeoutError, SandkastenError):
                await asyncio.wait_for(self._reaper.sweep(quick=True), SWEEP_AT_CLOSE_S)
        await self._handles.aclose()
        store = [self._store] if isinstance(self._store, Closes) else []
        for part in (*self._backends.values(), *store):
            with suppress(TimeoutError, SandkastenError):
                await asyncio.wait_for(part.aclose(), CLOSE_S)
        await self.trail.aclose()

    async def _sweep_after(self, after_s: float) -> None:
        rest_s = self.policy.reclaim_after_s
        every_s = SWEEP_EVERY_S if rest_s is None else min(SWEEP_EVERY_S, max(1.0, rest_s / 2))
        while True:
            await asyncio.sleep(after_s)
            # Background work: its failure is reported to the event sink only.
            with suppress(SandkastenError, OSError):
                await self.sweep()
            after_s = every_s
