"""Snapshots: the files of a living sandbox, cut at one moment, and requests that start from them.

A snapshot is begun under its lock, with the id of its sandbox beside it. If this process dies while
the sandbox is stopped, another one finds that, lets the sandbox run on, and removes what is there.
"""

from __future__ import annotations

import asyncio
import threading
from contextlib import AsyncExitStack, asynccontextmanager, nullcontext, suppress
from dataclasses import replace
from typing import TYPE_CHECKING, Final, TypeAlias

from sandkasten.disk.cleanup import finish
from sandkasten.errors import (
    Busy,
    Conflict,
    NotFound,
    SandboxLost,
    SandkastenError,
    SnapshotDamaged,
    SnapshotNotFound,
    UnsupportedByBackend,
)
from sandkasten.lazy_dataclass import dataclass
from sandkasten.model.access.tenancy import DEFAULT_TENANT
from sandkasten.model.commands.code_values import kernel_line
from sandkasten.model.environment import checked_labels
from sandkasten.model.ids import is_look_id, new_snapshot_id, sandbox_id
from sandkasten.model.sandbox.cell_spec import TMP, CopiedFiles
from sandkasten.model.sandbox.lifecycle import State
from sandkasten.model.sandbox.package_sets import MOUNT_PREFIX
from sandkasten.model.sandbox.snapshot import (
    BegunSnapshot,
    KeptShell,
    NotKept,
    Snapshot,
    SnapshotRequest,
    SnapshotState,
    StoredSnapshot,
    check_room,
    checked_snapshot_name,
    completed_options,
    is_snapshot_id,
    superseded,
    unknown_snapshot,
)
from sandkasten.ports import CopiesFiles, Pausable
from sandkasten_runtime.engine.lifecycle.tenant_quotas import Need
from sandkasten_runtime.wire.channel import Channel
from sandkasten_runtime.wire.frame_codec import KEPT_SHELLS
from sandkasten_runtime.wire.messages import (
    decode_base_environment,
    decode_execs,
    decode_processes,
    decode_shells,
)

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Mapping, Sequence

    from sandkasten.model.access.tenancy import TenantQuota
    from sandkasten.model.sandbox.ledger_record import Record
    from sandkasten.model.sandbox.sandbox_values import CreateRequest
    from sandkasten.model.sandbox.snapshot import SnapshotRules, SnapshotSpace
    from sandkasten.model.sandbox.workspace import DiskRules
    from sandkasten.ports import Cell, Clock, EventSink, SnapshotStore, Store
    from sandkasten_runtime.engine.drain import Drain
    from sandkasten_runtime.engine.handles import Handle, Handles
    from sandkasten_runtime.engine.lifecycle.sandboxes import Sandboxes
    from sandkasten_runtime.engine.lifecycle.tenant_quotas import TenantQuotas
    from sandkasten_runtime.engine.lifecycle.workspace_claims import WorkspaceClaims

_List: TypeAlias = list[Snapshot]

# Another holder is creating, destroying, pausing or copying the sandbox.
_LOCK_WAIT_S: Final = 30.0
# A runner answers within a millisecond; a starved one is not kept waiting for.
_ASK_TIMEOUT_S: Final = 5.0
# Characters of all shells together; those that there is no room for are not kept.
_MAX_SHELL_STATE: Final = 256 * 1024
# More copies would share the disk, and each sandbox would be stopped for longer.
_CUT_AT_ONCE: Final = 2
# What a shell has of its own making, and what no start environment has.
_OWN: Final = frozenset({"PWD", "OLDPWD", "SHLVL", "_"})


@dataclass(frozen=True, slots=True)
class _Inside:
    """What the runner reports besides the files."""

    state: SnapshotState
    not_kept: NotKept


class Snapshots:
    def __init__(
        self,
        *,
        port: SnapshotStore | None,
        rules: SnapshotRules,
        disk: DiskRules,
        store: Store,
        handles: Handles,
        claims: WorkspaceClaims,
        remover: Sandboxes,
        quotas: TenantQuotas,
        in_flight: Drain,
        clock: Clock,
        events: EventSink | None,
    ) -> None:
        self._port = port
        self._rules = rules
        self._disk = disk
        self._store = store
        self._handles = handles
        self._claims = claims
        self._remover = remover
        self._quotas = quotas
        self._in_flight = in_flight
        self._clock = clock
        self._events = events
        self._cutting = asyncio.Semaphore(_CUT_AT_ONCE)

    @property
    def port(self) -> SnapshotStore:
        if self._port is None:
            raise UnsupportedByBackend(
                "snapshots are not supported here", hint="open the engine with a data directory"
            )
        return self._port

    async def list(self, *, tenant: str = DEFAULT_TENANT) -> _List:
        """Return the snapshots of a tenant, oldest first. A damaged one has an empty `image`, and
        is also the operator's.
        """
        usable = [stored for stored in await self.port.all() if stored.tenant == tenant]
        snapshots = [*usable, *map(_remains, await self._damaged(tenant))]
        snapshots.sort(key=lambda snapshot: (snapshot.created_at, snapshot.id))
        return [snapshot.public() for snapshot in snapshots]

    async def get(self, text: str, *, tenant: str = DEFAULT_TENANT) -> Snapshot:
        """Return a snapshot by its id, or the newest of a name. Raise SnapshotNotFound."""
        return (await self.find(text, tenant)).public()

    async def find(self, text: str, tenant: str) -> StoredSnapshot:
        if is_snapshot_id(text):
            try:
                stored = await self.port.get(text)
            except SnapshotDamaged:
                if text in [space.id for space in await self._damaged(tenant)]:
                    raise
                raise unknown_snapshot(text) from None
            if stored.tenant != tenant:
                raise unknown_snapshot(text)
            return stored
        named = [
            stored
            for stored in await self.port.all()
            if stored.tenant == tenant and stored.name == text
        ]
        if not named:
            raise unknown_snapshot(text)
        return named[-1]

    async def _damaged(self, tenant: str) -> Sequence[SnapshotSpace]:
        """Return the damaged snapshots of a tenant; the operator has all."""
        return [
            space
            for space in await self.port.space()
            if space.damaged and tenant in (space.tenant, DEFAULT_TENANT)
        ]

    async def remove(self, text: str, *, tenant: str = DEFAULT_TENANT) -> None:
        """Remove a snapshot and its files; sandboxes that were created from it keep theirs."""
        with self._in_flight.within(new=False):
            try:
                await self._remove((await self.find(text, tenant)).id)
            except SnapshotDamaged:
                await self._remove(text)

    async def _remove(self, snapshot_id: str) -> None:
        async with self._lock(snapshot_id):
            await self.port.remove(snapshot_id)
        if self._events is not None:
            self._events.emit("snapshot.removed", {"snapshot": snapshot_id})

    async def create(
        self, text: str, request: SnapshotRequest, quota: TenantQuota | None = None
    ) -> Snapshot:
        """Keep the files of a sandbox, as they are at one moment. The sandbox is stopped while they
        are copied, and continues also after a failure, which leaves nothing.
        """
        name = checked_snapshot_name(request.name)
        labels = None if request.labels is None else checked_labels(request.labels)
        with self._in_flight.within():
            async with self._taken(sandbox_id(text), quota) as (_, taken):
                own = {**taken.labels, **(labels or {})}
                stored = await self.port.complete(replace(taken, name=name, labels=own))
            if request.keep_last is not None:
                for old in superseded(stored, request.keep_last, await self.port.all()):
                    with suppress(SnapshotNotFound):
                        await self._remove(old.id)
        if self._events is not None:
            about = {"snapshot": stored.id, "sandbox": stored.sandbox_id}
            numbers = {"bytes": stored.size_bytes, "frozen_ms": stored.frozen_ms}
            self._events.emit("snapshot.created", {**about, **numbers})
        return stored.public()

    @asynccontextmanager
    async def cut(self, text: str) -> AsyncIterator[tuple[Record, StoredSnapshot]]:
        """Yield the row of a sandbox and a snapshot of it, from which others can be created during
        the block. It is in no list, counts for no tenant, and is removed after the block; if this
        process dies, `tidy` of another one removes it. A tenant has one at a time.
        """
        the_id = sandbox_id(text)
        tenant = (await self._handles.get(the_id)).record.tenant
        async with (
            self._store.lock("fork:" + tenant, wait_s=_LOCK_WAIT_S),
            self._taken(the_id, None, counts=False) as taken,
        ):
            yield taken

    @asynccontextmanager
    async def _taken(
        self, the_id: str, quota: TenantQuota | None, *, counts: bool = True
    ) -> AsyncIterator[tuple[Record, StoredSnapshot]]:
        """Yield the row of a sandbox and its files as they are now. What the block does not
        complete is removed after it.
        """
        snapshot_id, stop = new_snapshot_id(), threading.Event()
        async with AsyncExitStack() as stack:
            await stack.enter_async_context(self._lock(snapshot_id))
            # Waits here, where no sandbox is locked or stopped.
            async with self._cutting, self._held(the_id) as handle:
                record, cell = handle.record, _copies(handle.cell, handle.record)
                size = await cell.flush_files()
                owner = record.tenant if counts else None
                begun = BegunSnapshot(snapshot_id, record.id, owner, size)
                async with self._admitted(begun, size, quota):
                    path = await self.port.begin(begun)
                # From here on a failure leaves something to remove, and may leave it stopped.
                leave = self._abandoned
                stack.push_async_callback(lambda: finish(leave(begun)))
                inside = await self._inside(handle, cell)
                files, frozen_s = await finish(
                    self._cut(cell, path, stop, paused=record.state is State.PAUSED),
                    hurry=stop.set,
                )
                leave = self._clear
            if not files.tmp:
                paths = (*inside.not_kept.paths, TMP)
                inside = replace(inside, not_kept=replace(inside.not_kept, paths=paths))
            stored = StoredSnapshot(
                id=snapshot_id,
                sandbox_id=record.id,
                created_at=self._clock.now(),
                image=record.image,
                image_id=record.image_id,
                backend=record.backend,
                profile=record.profile,
                files=files,
                tenant=record.tenant,
                parent=record.snapshot,
                hostname=record.hostname,
                limits=record.limits,
                network=record.network,
                labels=record.labels,
                env_names=tuple(sorted(inside.state.env)),
                pip_packages=record.pip_packages or (),
                npm_packages=record.npm_packages or (),
                shells=tuple(shell.name for shell in inside.state.shells),
                frozen_ms=round(frozen_s * 1000, 3),
                not_kept=inside.not_kept,
                state=inside.state,
            )
            size = await self.port.check(stored, stop)
            if size > begun.size_bytes:
                # More was written before it was stopped, and /tmp is copied too.
                grown = replace(begun, size_bytes=size)
                async with self._admitted(grown, size - begun.size_bytes, quota):
                    await self.port.grow(grown)
            yield record, stored

    @asynccontextmanager
    async def _held(self, the_id: str) -> AsyncIterator[Handle]:
        """Yield a sandbox that nothing else changes during the block."""
        async with AsyncExitStack() as locks:
            await locks.enter_async_context(
                self._store.lock(sandbox_id(the_id), wait_s=_LOCK_WAIT_S)
            )
            handle = await self._handles.get(the_id)
            await self._handles.refresh(handle)
            name = handle.record.workspace_id
            if name is not None:
                await locks.enter_async_context(self._claims.lock(name))
                holders = await self._claims.holders(name, self._remover)
                others = [holder.id for holder in holders if holder.id != the_id]
                if others:
                    raise Conflict(
                        f"sandbox {the_id} shares its workspace with sandbox {others[0]}, which "
                        "would change it meanwhile",
                        hint="destroy the sandboxes that share it first",
                        sandbox_ids=[str(other) for other in others[:20]],
                    )
            yield handle

    @asynccontextmanager
    async def _admitted(
        self, begun: BegunSnapshot, more_bytes: int, quota: TenantQuota | None
    ) -> AsyncIterator[None]:
        """Check the quotas for a snapshot that takes so many bytes more. The block stores its
        size, and the next one counts it.
        """
        async with (
            nullcontext()
            if begun.tenant is None
            else self._quotas.admitted(begun.tenant, quota, Need(disk_bytes=more_bytes)),
            self._store.lock("snapshots", wait_s=_LOCK_WAIT_S),
        ):
            others = [space for space in await self.port.space() if space.id != begun.id]
            check_room(self._rules, begun.tenant, begun.size_bytes, others)
            yield

    async def _cut(
        self, cell: _Copies, path: str, stop: threading.Event, *, paused: bool
    ) -> tuple[CopiedFiles, float]:
        """Return the copy, and for how many seconds the sandbox was stopped."""
        began = self._clock.boottime()
        try:
            await cell.pause()
            files = await cell.copy_files(path, stop)
        finally:
            if not paused:
                await cell.resume()
        frozen_s = self._clock.boottime() - began
        if files.method == "reflink":
            # A shared block is written to another place, and that was promised to be there.
            await cell.reserve_files(self._disk.min_free_bytes)
        return files, frozen_s

    async def _inside(self, handle: Handle, cell: _Copies) -> _Inside:
        if handle.record.state is not State.PAUSED:
            return await self._asked(handle.record, await self._handles.channel(handle))
        # Its runner must run to answer, and everything else inside runs as long.
        await cell.resume()
        try:
            async with asyncio.timeout(_ASK_TIMEOUT_S):
                channel = await Channel.open(await handle.cell.dial())
                try:
                    return await self._asked(handle.record, channel)
                finally:
                    await channel.aclose()
        except TimeoutError as exc:
            raise Busy(
                f"sandbox {handle.record.id} did not answer within {_ASK_TIMEOUT_S:g} s",
                hint="it may be starved of CPU; retry",
            ) from exc
        finally:
            await finish(cell.pause())

    async def _asked(self, record: Record, channel: Channel) -> _Inside:
        keeps = KEPT_SHELLS in channel.hello.features
        reply = await channel.call(
            "shell.list", {"state": True} if keeps else {}, timeout_s=_ASK_TIMEOUT_S
        )
        base, shells = decode_base_environment(reply), decode_shells(reply)
        execs = decode_execs(await channel.call("exec.list", timeout_s=_ASK_TIMEOUT_S))
        living = [reply.exec_id for reply in execs if not reply.ended]
        processes = decode_processes(await channel.call("proc.list", timeout_s=_ASK_TIMEOUT_S))
        pids = {1, *(shell.pid for shell in shells)}
        # Each shell has a supervisor of ours, and 1 is the runner.
        pids |= {process.ppid for process in processes.processes if process.pid in pids}
        user = channel.hello.user_uid
        kept: dict[str, KeptShell] = {}
        room = _MAX_SHELL_STATE
        for shell in shells:
            if base is not None and shell.cwd is not None and shell.env is not None:
                state = KeptShell(shell.name, shell.cwd, *_changes(base, shell.env))
                texts = (state.name, state.cwd, *state.env, *state.env.values(), *state.unset)
                size = sum(map(len, texts))
                if size <= room:
                    room -= size
                    kept[shell.name] = state
        env = {name: base[name] for name in record.env_names if base and name in base}
        return _Inside(
            SnapshotState(env, tuple(kept.values())),
            NotKept(
                commands=tuple(
                    exec_id
                    for exec_id in living
                    if kernel_line(exec_id) is None and not is_look_id(exec_id)
                ),
                contexts=tuple(exec_id for exec_id in living if kernel_line(exec_id) is not None),
                processes=sum(
                    process.exec_id is None and process.uid == user and process.pid not in pids
                    for process in processes.processes
                ),
                shells=tuple(shell.name for shell in shells if shell.name not in kept),
                mounts=tuple(
                    mount.name for mount in record.mounts if not mount.name.startswith(MOUNT_PREFIX)
                ),
            ),
        )

    async def applied(self, request: CreateRequest) -> CreateRequest:
        """Return a request with the options of its snapshot where the request names none."""
        text = request.options.snapshot
        if text is None or request.origin is not None:
            return request
        stored = await self.find(text, request.tenant)
        stored = replace(stored, state=await self.port.state(stored.id))
        named = request.options.env
        shells = tuple(
            replace(shell, env={name: shell.env[name] for name in shell.env if name not in named})
            for shell in stored.state.shells
        )
        options, state = completed_options(request.options, stored), SnapshotState(shells=shells)
        return replace(request, options=options, origin=replace(stored, state=state))

    async def tidy_quietly(self) -> None:
        """Do the same as `tidy`; its failure is reported to the event sink only."""
        try:
            await self.tidy()
        except (SandkastenError, OSError) as exc:
            if self._events is not None:
                code = exc.code if isinstance(exc, SandkastenError) else type(exc).__name__
                self._events.emit("snapshot.tidy_failed", {"error": code})

    async def tidy(self) -> None:
        """Remove expired snapshots and what a crash left; let a sandbox that it stopped run on."""
        if self._port is None:
            return
        for begun in await self._port.begun():
            # Its maker holds the lock for as long as it lives.
            with suppress(Busy):
                async with self._store.lock("snapshot:" + begun.id, wait_s=0):
                    await finish(self._abandoned(begun))
        if self._rules.expire_after_s is not None:
            before = self._clock.now() - self._rules.expire_after_s
            for space in await self._port.space():
                if space.created_at is not None and space.created_at < before:
                    with suppress(SnapshotNotFound, Busy):
                        await self._remove(space.id)

    async def _abandoned(self, begun: BegunSnapshot) -> None:
        """Let its sandbox run on and remove it. If the first fails, the next sweep tries both."""
        try:
            if begun.sandbox_id:
                await self._run_on(begun.sandbox_id)
        except (NotFound, SandboxLost):
            pass
        except SandkastenError as exc:
            if self._events is not None:
                about = {"snapshot": begun.id, "sandbox": begun.sandbox_id, "error": exc.code}
                self._events.emit("snapshot.cleanup_failed", about)
            return
        await self._clear(begun)

    async def _run_on(self, the_id: str) -> None:
        async with self._store.lock(sandbox_id(the_id), wait_s=_LOCK_WAIT_S):
            handle = await self._handles.look(the_id)
            await self._handles.refresh(handle)
            if isinstance(handle.cell, Pausable):
                if handle.record.state is State.PAUSED:
                    await handle.cell.pause()
                else:
                    await handle.cell.resume()

    async def _clear(self, begun: BegunSnapshot) -> None:
        """Remove what a failure left; a complete snapshot stays."""
        await self.port.clear(begun.id)

    @asynccontextmanager
    async def _lock(self, snapshot_id: str) -> AsyncIterator[None]:
        async with self._store.lock("snapshot:" + snapshot_id, wait_s=_LOCK_WAIT_S):
            yield


def _remains(space: SnapshotSpace) -> StoredSnapshot:
    """Return what is known of a damaged snapshot."""
    return StoredSnapshot(
        id=space.id,
        sandbox_id="",
        created_at=space.created_at or 0.0,
        image="",
        image_id="",
        backend="",
        profile="",
        files=CopiedFiles("", ()),
        size_bytes=space.size_bytes,
    )


class _Copies(CopiesFiles, Pausable):
    """A cell of a backend whose sandboxes can be copied."""


def _copies(cell: Cell, record: Record) -> _Copies:
    if not (isinstance(cell, CopiesFiles) and isinstance(cell, Pausable)):
        raise UnsupportedByBackend(
            f"backend {record.backend} cannot take a snapshot of a sandbox",
            hint="use a backend that can: sandkasten doctor --all lists what each can do",
            backend=record.backend,
            sandbox_id=record.id,
        )
    return cell  # type: ignore[return-value]


def _changes(
    base: Mapping[str, str] | None, env: Mapping[str, str] | None
) -> tuple[dict[str, str], tuple[str, ...]]:
    """Return what a shell has set and what it has removed."""
    base, env = base or {}, env or {}
    changed = {
        name: value
        for name, value in env.items()
        if base.get(name) != value and name not in _OWN and not name.startswith("BASH_FUNC_")
    }
    gone: Sequence[str] = [name for name in base if name not in env and name not in _OWN]
    return changed, tuple(gone)
