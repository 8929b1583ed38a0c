"""The files of a named workspace without a sandbox of one's own: a sandbox that has it is lent.

The living sandbox that has the workspace serves, so that everybody sees the same files. Where
there is none, one is made for it, claims the workspace for itself and is taken away when nobody
used it for IDLE_S; earlier when somebody wants the workspace. It belongs to the tenant, is in no
list, and ends itself should this process die. A workspace that is not there is WorkspaceNotFound,
never made; one whose sandbox is paused answers the Conflict that says so.
"""

from __future__ import annotations

import asyncio
from contextlib import asynccontextmanager
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING

from sandkasten.engine.owner import owner_gone
from sandkasten.errors import Busy, Conflict, SandkastenError
from sandkasten.model.access.tenancy import DEFAULT_TENANT, scoped
from sandkasten.model.sandbox.lifecycle import State
from sandkasten.model.sandbox.policy import Lease
from sandkasten.model.sandbox.sandbox_requests import CreateRequest
from sandkasten.model.sandbox.workspace import checked_workspace_name

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Coroutine

    from sandkasten.engine.drain import Door
    from sandkasten.engine.handles import Handles
    from sandkasten.engine.lifecycle.planner import Planner
    from sandkasten.engine.lifecycle.sandboxes import Sandboxes
    from sandkasten.engine.lifecycle.workspace_claims import Claims
    from sandkasten.model.sandbox.ledger_record import Record
    from sandkasten.ports import Store

# Long enough for a burst of requests, short enough that nobody wonders who has the workspace.
IDLE_S = 3.0
# Later than IDLE_S, so that a living process takes it away whole and the runner need not.
LEASE_S = 30.0
# How long whoever wants the workspace waits for a transfer that is under way.
TAKE_BACK_S = 10.0
MAX_LENDERS = 16
_LOOK_EVERY_S = 0.05
_TRIES = 3


@dataclass(slots=True)
class _Lender:
    making: asyncio.Task[Record]
    users: int = 0
    unused: asyncio.Event = field(default_factory=asyncio.Event)
    expiry: asyncio.TimerHandle | None = None

    def enter(self) -> None:
        self.users += 1
        self.unused.clear()
        if self.expiry is not None:
            self.expiry.cancel()
            self.expiry = None

    def made(self) -> Record | None:
        """None while it is being made, and when it could not be."""
        if not self.making.done() or self.making.cancelled() or self.making.exception():
            return None
        return self.making.result()


class WorkspaceFiles:
    def __init__(
        self,
        *,
        planner: Planner,
        sandboxes: Sandboxes,
        handles: Handles,
        store: Store,
        claims: Claims,
        door: Door,
    ) -> None:
        self._door = door
        self._planner = planner
        self._sandboxes = sandboxes
        self._handles = handles
        self._store = store
        self._claims = claims
        self._lenders: dict[str, _Lender] = {}
        """By the name the workspace is kept under."""
        self._tasks: set[asyncio.Task[None]] = set()

    @asynccontextmanager
    async def lent(self, name: str, *, tenant: str = DEFAULT_TENANT) -> AsyncIterator[str]:
        """The id of a sandbox whose /workspace is this workspace, for as long as the block."""
        kept = scoped(tenant, checked_workspace_name(name))
        await self._claims.port.get(kept)
        for left in reversed(range(_TRIES)):
            holder = await self._holder(kept)
            if holder is not None:
                yield holder.id
                return
            lender = self._lender(kept, name, tenant)
            lender.enter()
            try:
                try:
                    record = await asyncio.shield(lender.making)
                except Conflict:
                    # Somebody was quicker: then that sandbox has it, and will serve.
                    if not left:
                        raise
                    continue
                yield record.id
                return
            finally:
                self._leave(kept, lender)

    async def take_back(self, record: Record) -> bool:
        """Whether a sandbox of ours has let its workspace go. With the lock of the name held."""
        kept = record.workspace_id or ""
        lender = self._lenders.get(kept)
        made = None if lender is None else lender.made()
        if lender is not None and (made is None or made.id == record.id):
            return await self._given_up(kept, lender, record)
        if owner_gone(record):
            await self._sandboxes.destroy_quietly(record.id)
            return True
        # Another process lends it, and will not for long.
        for _ in range(int((IDLE_S + TAKE_BACK_S) / _LOOK_EVERY_S)):
            if await self._store.get(record.id) is None:
                return True
            await asyncio.sleep(_LOOK_EVERY_S)
        return False

    async def aclose(self) -> None:
        """Take every one away. Twice is fine."""
        for kept, lender in list(self._lenders.items()):
            self._close_soon(kept, lender)
        while self._tasks:
            await asyncio.wait(self._tasks)

    def _lender(self, kept: str, name: str, tenant: str) -> _Lender:
        lender = self._lenders.get(kept)
        if lender is not None and not self._usable(lender):
            self._close_soon(kept, lender)
            lender = None
        if lender is None:
            self._door.check()
            self._make_room()
            making = asyncio.get_running_loop().create_task(self._make(name, tenant))
            lender = self._lenders[kept] = _Lender(making)
        return lender

    def _usable(self, lender: _Lender) -> bool:
        if not lender.making.done():
            return True
        record = lender.made()
        handle = None if record is None else self._handles.peek(record.id)
        return handle is not None and handle.live is not None

    def _make_room(self) -> None:
        if len(self._lenders) < MAX_LENDERS:
            return
        for kept, lender in self._lenders.items():
            if not lender.users:
                self._close_soon(kept, lender)
                return
        raise Busy(
            f"the files of {MAX_LENDERS} workspaces are being used at the moment",
            hint="try again, or create a sandbox with the workspace",
        )

    async def _make(self, name: str, tenant: str) -> Record:
        plan = await self._planner.plan(CreateRequest(workspace_id=name, tenant=tenant))
        wish = plan.workspace
        lease = Lease(idle_timeout_s=LEASE_S, lifetime_s=plan.lease.lifetime_s)
        plan = replace(
            plan,
            lease=lease,
            workspace=None if wish is None else replace(wish, must_exist=True),
        )
        with self._door.within():
            return await self._sandboxes.make(plan, acquired="internal")

    async def _holder(self, kept: str) -> Record | None:
        """A sandbox of the workspace's owner that has it now."""
        rows = [
            row
            for row in await self._store.list()
            if row.workspace_id == kept
            and row.acquired != "internal"
            and row.state in (State.RUNNING, State.PAUSED)
        ]
        rows.sort(key=lambda row: row.state is State.PAUSED)
        for row in rows:
            if await self._claims.lives(row):
                return row
        return None

    def _leave(self, kept: str, lender: _Lender) -> None:
        lender.users -= 1
        if lender.users:
            return
        lender.unused.set()
        if self._lenders.get(kept) is not lender:
            return
        if lender.making.done() and lender.made() is None:
            del self._lenders[kept]
            return
        loop = asyncio.get_running_loop()
        lender.expiry = loop.call_later(IDLE_S, self._close_soon, kept, lender)

    async def _given_up(self, kept: str, lender: _Lender, record: Record) -> bool:
        # Out of the table first: whoever comes now waits for the lock like everybody.
        del self._lenders[kept]
        if lender.expiry is not None:
            lender.expiry.cancel()
        if lender.users:
            try:
                async with asyncio.timeout(TAKE_BACK_S):
                    await lender.unused.wait()
            except TimeoutError:
                self._lenders.setdefault(kept, lender)
                return False
        await self._closed(lender)
        return await self._store.get(record.id) is None

    def _close_soon(self, kept: str, lender: _Lender) -> None:
        if self._lenders.get(kept) is lender:
            del self._lenders[kept]
        if lender.expiry is not None:
            lender.expiry.cancel()
        self._spawn(self._closed(lender))

    async def _closed(self, lender: _Lender) -> None:
        try:
            record = await lender.making
            await self._sandboxes.destroy_quietly(record.id)
        except SandkastenError:
            # Never made; or marked, and the reaper and its own lease will see to it.
            return

    def _spawn(self, work: Coroutine[None, None, None]) -> None:
        task = asyncio.get_running_loop().create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)
