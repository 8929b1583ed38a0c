"""Internal sandboxes that this process keeps for the files of named workspaces.

A loan claims its workspace like any sandbox. It ends when it was unused for IDLE_S, or earlier
when another sandbox claims the workspace.
"""

from __future__ import annotations

import asyncio
from dataclasses import field
from typing import TYPE_CHECKING, Protocol

from sandkasten.errors import Busy, SandkastenError
from sandkasten.lazy_dataclass import dataclass
from sandkasten_runtime.engine.owner import owner_gone

if TYPE_CHECKING:
    from collections.abc import Coroutine

    from sandkasten.model.ids import SandboxId
    from sandkasten.model.sandbox.ledger_record import Record
    from sandkasten.ports import Store

# Long enough for a burst of requests, short enough that a workspace does not seem to be taken.
IDLE_S = 3.0
# How long another claim of the workspace waits for a transfer that is under way.
TAKE_BACK_S = 10.0
MAX_LOANS = 16
_LOOK_EVERY_S = 0.05


class Remover(Protocol):
    """Removes sandboxes; implemented by `Sandboxes`, which is built on top of the claims."""

    async def bury(self, record: Record) -> None:
        """Remove a sandbox that is over. The caller holds the lock of its id."""
        ...

    async def destroy_quietly(self, the_id: SandboxId) -> None:
        """Remove a sandbox; one that is already gone is fine."""
        ...


@dataclass(slots=True)
class Loan:
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

    def record(self) -> Record | None:
        """Return its record; None while it is being made, and when it could not be made."""
        if not self.making.done() or self.making.cancelled() or self.making.exception():
            return None
        return self.making.result()


class Loans:
    def __init__(self, store: Store) -> None:
        self._store = store
        self._loans: dict[str, Loan] = {}
        """The loans by the stored name of the workspace."""
        self._tasks: set[asyncio.Task[None]] = set()

    def get(self, workspace: str) -> Loan | None:
        return self._loans.get(workspace)

    def add(self, workspace: str, loan: Loan) -> None:
        self._loans[workspace] = loan

    def make_room(self, remover: Remover) -> None:
        """End an unused loan if there are too many; Busy if all of them are in use."""
        if len(self._loans) < MAX_LOANS:
            return
        for workspace, loan in self._loans.items():
            if not loan.users:
                self.close_soon(workspace, loan, remover)
                return
        raise Busy(
            f"the files of {MAX_LOANS} workspaces are in use at the moment",
            hint="try again, or create a sandbox with the workspace",
        )

    def leave(self, workspace: str, loan: Loan, remover: Remover) -> None:
        loan.users -= 1
        if loan.users:
            return
        loan.unused.set()
        if self._loans.get(workspace) is not loan:
            return
        if loan.making.done() and loan.record() is None:
            del self._loans[workspace]
            return
        loop = asyncio.get_running_loop()
        loan.expiry = loop.call_later(IDLE_S, self.close_soon, workspace, loan, remover)

    async def take_back(self, record: Record, remover: Remover) -> bool:
        """End the loan that `record` is; return whether its workspace is free.

        The caller holds the lock of the workspace.
        """
        workspace = record.workspace_id or ""
        loan = self._loans.get(workspace)
        loan_record = None if loan is None else loan.record()
        if loan is not None and (loan_record is None or loan_record.id == record.id):
            return await self._end(workspace, loan, record, remover)
        if owner_gone(record):
            await remover.destroy_quietly(record.id)
            return True
        # A loan of another process, which ends soon.
        for _ in range(int((IDLE_S + TAKE_BACK_S) / _LOOK_EVERY_S)):
            if await self._store.get(record.id) is None:
                return True
            await asyncio.sleep(_LOOK_EVERY_S)
        return False

    async def aclose(self, remover: Remover) -> None:
        """End every loan. Twice is fine."""
        for workspace, loan in list(self._loans.items()):
            self.close_soon(workspace, loan, remover)
        while self._tasks:
            await asyncio.wait(self._tasks)

    def close_soon(self, workspace: str, loan: Loan, remover: Remover) -> None:
        if self._loans.get(workspace) is loan:
            del self._loans[workspace]
        if loan.expiry is not None:
            loan.expiry.cancel()
        self._spawn(_close(loan, remover))

    async def _end(self, workspace: str, loan: Loan, record: Record, remover: Remover) -> bool:
        # Out of the table first: a new user then waits for the lock like any other claim.
        del self._loans[workspace]
        if loan.expiry is not None:
            loan.expiry.cancel()
        if loan.users:
            try:
                async with asyncio.timeout(TAKE_BACK_S):
                    await loan.unused.wait()
            except TimeoutError:
                self._loans.setdefault(workspace, loan)
                return False
        await _close(loan, remover)
        return await self._store.get(record.id) is None

    def _spawn(self, work: Coroutine[None, None, None]) -> None:
        task = asyncio.get_running_loop().create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)


async def _close(loan: Loan, remover: Remover) -> None:
    try:
        record = await loan.making
        await remover.destroy_quietly(record.id)
    except SandkastenError:
        # Never made; or marked, and the reaper and its own lease remove it.
        return
