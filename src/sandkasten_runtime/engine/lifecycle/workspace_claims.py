"""Decide which sandbox has a named workspace, while holding the lock of its name.

Exclusive by default: one living sandbox, or several that all asked for `shared`. A dead holder does
not count, but it is removed first: only then is it certain that nothing of it still writes. The
claim is the sandbox's own row, written before the lock is released; there is no second ledger that
could disagree with it.
"""

from __future__ import annotations

from contextlib import asynccontextmanager, suppress
from typing import TYPE_CHECKING

from sandkasten.disk.cleanup import finish
from sandkasten.errors import (
    BackendUnavailable,
    Busy,
    SandkastenError,
    UnsupportedByBackend,
    WorkspaceDamaged,
    WorkspaceNotFound,
)
from sandkasten.lazy_dataclass import dataclass
from sandkasten.model.sandbox.lifecycle import State
from sandkasten.model.sandbox.limits import Unenforced
from sandkasten.model.sandbox.workspace import (
    WorkspaceRequest,
    WorkspaceRules,
    admit,
    check_count,
    check_keeper,
    check_size,
    plain_name,
)
from sandkasten.ports import KeepsWorkspaces, MaintainsWorkspaces, backend_part
from sandkasten_runtime.engine.owner import owner_gone
from sandkasten_runtime.engine.placement.backend_choice import asked_of

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Iterable
    from contextlib import AbstractAsyncContextManager

    from sandkasten.model.sandbox.cell_spec import Volume
    from sandkasten.model.sandbox.ledger_record import Record
    from sandkasten.model.sandbox.workspace import StoredWorkspace
    from sandkasten.ports import Backend, Clock, Store, Workspaces
    from sandkasten_runtime.engine.handles import Handles
    from sandkasten_runtime.engine.lifecycle.workspace_loans import Loans, Remover

# Long enough for a check of a large file system that another create waits for.
LOCK_WAIT_S = 60.0
_DESTROY_WAIT_S = 50.0


@dataclass(frozen=True, slots=True)
class WorkspaceClaim:
    """A workspace that a sandbox may use now."""

    stored: StoredWorkspace
    volume: Volume
    unenforced: tuple[Unenforced, ...]


class WorkspaceClaims:
    def __init__(
        self,
        *,
        store: Store,
        handles: Handles,
        port: Workspaces | None,
        rules: WorkspaceRules,
        clock: Clock,
        loans: Loans,
    ) -> None:
        self._store = store
        self._handles = handles
        self._port = port
        self._rules = rules
        self._clock = clock
        self._loans = loans

    @property
    def kept(self) -> bool:
        return self._port is not None

    @property
    def default_bytes(self) -> int:
        return self._rules.default_bytes

    @property
    def port(self) -> Workspaces:
        if self._port is None:
            raise UnsupportedByBackend(
                "named workspaces are not supported here",
                hint="omit workspace_id; the sandbox then gets its own workspace",
            )
        return self._port

    def lock(self, name: str, *, wait_s: float = LOCK_WAIT_S) -> AbstractAsyncContextManager[None]:
        return self._store.lock("workspace:" + name, wait_s=wait_s)

    @asynccontextmanager
    async def claimed(
        self, requested: WorkspaceRequest, backend: Backend, remover: Remover, *, make: bool = True
    ) -> AsyncIterator[WorkspaceClaim]:
        """The workspace, made if it is not there. The caller writes its row inside the block.

        With `make` False the workspace existed when its size was counted, so it is not created.
        """
        port = self.port
        keeper = await keeper_name(backend)
        async with self.lock(requested.name):
            holders = await self.holders(requested.name, remover)
            admit(requested.name, requested.shared, holders)
            try:
                stored = await port.get(requested.name)
            except WorkspaceNotFound:
                if requested.must_exist:
                    raise
                if not make:
                    raise Busy(
                        f"workspace {plain_name(requested.name)} was just deleted", hint="try again"
                    ) from None
                stored = await self.make(requested.name, requested.asked_bytes, keeper)
            else:
                check_keeper(stored, keeper, backend.name)
                check_size(stored, requested.asked_bytes)
            volume = await port.open(requested.name, in_use=bool(holders))
            yield WorkspaceClaim(stored, volume, _unenforced(stored))

    async def make(self, name: str, size_bytes: int | None, keeper: str) -> StoredWorkspace:
        """Create a workspace. The caller holds the lock."""
        size = size_bytes if size_bytes is not None else self._rules.default_bytes
        await self.prepare(name)
        if keeper:
            await _clear(await self._keeper(name, keeper), name, recorded=False)
        return await self.port.create(name, size, self._clock.now(), keeper=keeper)

    async def copy(self, source: str, target: str) -> StoredWorkspace:
        """Copy a workspace. The caller holds both locks."""
        await self.prepare(target)
        keeper = await self.keeper_of(source)
        if keeper is not None:
            # Files without metadata are not a workspace, so they come first.
            await keeper.copy_workspace(source, target)
        try:
            stored = await self.port.copy(source, target, self._clock.now())
        except BaseException:
            if keeper is not None:
                await finish(keeper.remove_workspace(target))
            raise
        if keeper is not None:
            # The copy is whole: a sweep clears what is left.
            with suppress(SandkastenError):
                await finish(_clear(keeper, target, recorded=True))
        return stored

    async def resize(self, name: str, size_bytes: int) -> None:
        """Enlarge a workspace. The caller holds the lock."""
        keeper = await self.keeper_of(name)
        larger = size_bytes > (await self.port.get(name)).size_bytes
        if larger and isinstance(keeper, MaintainsWorkspaces):
            await keeper.resize_workspace(name, size_bytes)
        await self.port.resize(name, size_bytes)

    async def tidy(self, backend: MaintainsWorkspaces) -> None:
        """Remove what a crash left of copies and removals; skip what another process works on."""
        for name in await backend.interrupted_workspaces():
            with suppress(Busy):
                async with self.lock(name, wait_s=0):
                    recorded = name in await self.port.names()
                    await finish(backend.clear_workspace(name, recorded=recorded))

    async def remove(self, name: str) -> None:
        """Remove a workspace. The caller holds the lock."""
        try:
            keeper = await self.keeper_of(name)
        except WorkspaceDamaged:
            keeper = None
        if keeper is not None:
            await keeper.remove_workspace(name)
        await self.port.remove(name)

    async def keeper_of(self, name: str) -> KeepsWorkspaces | None:
        """Return the backend that has the files of a workspace; None if they are here."""
        stored = await self.port.get(name)
        return await self._keeper(name, stored.keeper) if stored.keeper else None

    async def _keeper(self, name: str, keeper: str) -> KeepsWorkspaces:
        backend = self._handles.backend(keeper)
        if not backend.capabilities.own_workspaces:
            raise BackendUnavailable(
                f"workspace {plain_name(name)} is a volume of backend {keeper}, which "
                "keeps no workspaces",
                hint="start the daemon with the settings that it was made with",
            )
        return await backend_part(backend, KeepsWorkspaces)

    async def prepare(self, name: str) -> None:
        """Make room for one more workspace."""
        check_count(len(await self.port.names()), self._rules)
        await self.port.clear(name)

    async def holders(self, name: str, remover: Remover) -> list[Record]:
        """The living ones; what is left of dead ones is removed. With the lock held."""
        living: list[Record] = []
        for record in await self._store.list():
            if record.workspace_id == name:
                if await self.lives(record):
                    internal = record.acquired == "internal"
                    if not internal or not await self._loans.take_back(record, remover):
                        living.append(record)
                else:
                    await self._bury(record, remover)
        return living

    async def living(self, records: Iterable[Record]) -> list[Record]:
        """Return the living ones, without removing anything."""
        return [record for record in records if await self.lives(record)]

    async def lives(self, record: Record) -> bool:
        if record.state is State.CREATING:
            return not owner_gone(record)
        if record.state in (State.DESTROYING, State.LOST):
            return False
        try:
            return await self._handles.alive(record)
        except (BackendUnavailable, Busy):
            # Not known to be dead.
            return True

    async def _bury(self, record: Record, remover: Remover) -> None:
        async with self._store.lock(record.id, wait_s=_DESTROY_WAIT_S):
            row = await self._store.get(record.id)
            if row is not None:
                await remover.bury(row)


async def keeper_name(backend: Backend) -> str:
    """Return the name of a backend that keeps workspaces itself, or an empty string."""
    with asked_of(backend.name):
        if backend.capabilities.own_workspaces:
            keeper = await backend_part(backend, KeepsWorkspaces)
            return backend.name if await keeper.keeps_workspaces() else ""
    return ""


async def _clear(keeper: KeepsWorkspaces, name: str, *, recorded: bool) -> None:
    if isinstance(keeper, MaintainsWorkspaces):
        await keeper.clear_workspace(name, recorded=recorded)


def _unenforced(stored: StoredWorkspace) -> tuple[Unenforced, ...]:
    # A backend reports the limits of its own volumes.
    if stored.kind != "directory":
        return ()
    return (
        Unenforced(
            "workspace",
            f"workspace {plain_name(stored.name)} is a directory: nothing holds it to its size",
            "run as root, where a workspace is a file system of its own",
        ),
    )
