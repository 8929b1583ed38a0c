"""Files of a named workspace, served by a sandbox that has the workspace.

The living sandbox that has the workspace serves, so all clients see the same files. If there is
none, a lender sandbox is made. It claims the workspace and is removed after IDLE_S without use, or
earlier when another sandbox needs the workspace. The lender belongs to the tenant, is in no list,
and ends itself if this process dies. A missing workspace raises WorkspaceNotFound and is never
created; if its sandbox is paused, the answer is Conflict.
"""

from __future__ import annotations

import asyncio
from contextlib import asynccontextmanager
from dataclasses import replace
from typing import TYPE_CHECKING

from sandkasten.errors import Conflict
from sandkasten.model.access.tenancy import DEFAULT_TENANT, scoped
from sandkasten.model.sandbox.lifecycle import State
from sandkasten.model.sandbox.policy import Lease
from sandkasten.model.sandbox.sandbox_options import SandboxOptions
from sandkasten.model.sandbox.sandbox_values import CreateRequest
from sandkasten.model.sandbox.workspace import checked_workspace_name
from sandkasten_runtime.engine.lifecycle.workspace_loans import Loan

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

    from sandkasten.model.sandbox.ledger_record import Record
    from sandkasten.ports import Store
    from sandkasten_runtime.engine.drain import Drain
    from sandkasten_runtime.engine.handles import Handles
    from sandkasten_runtime.engine.lifecycle.planner import Planner
    from sandkasten_runtime.engine.lifecycle.sandboxes import Sandboxes
    from sandkasten_runtime.engine.lifecycle.workspace_claims import WorkspaceClaims
    from sandkasten_runtime.engine.lifecycle.workspace_loans import Loans

# Later than IDLE_S, so that a living process removes it whole and the runner need not.
LEASE_S = 30.0
_TRIES = 3


class WorkspaceFiles:
    def __init__(
        self,
        *,
        planner: Planner,
        sandboxes: Sandboxes,
        handles: Handles,
        store: Store,
        claims: WorkspaceClaims,
        loans: Loans,
        in_flight: Drain,
    ) -> None:
        self._in_flight = in_flight
        self._planner = planner
        self._sandboxes = sandboxes
        self._handles = handles
        self._store = store
        self._claims = claims
        self._loans = loans

    @asynccontextmanager
    async def lent(self, name: str, *, tenant: str = DEFAULT_TENANT) -> AsyncIterator[str]:
        """Yield the id of a sandbox whose /workspace is this workspace, for the duration of the
        block.
        """
        stored_name = scoped(tenant, checked_workspace_name(name))
        await self._claims.port.get(stored_name)
        for tries_left in reversed(range(_TRIES)):
            holder = await self._holder(stored_name)
            if holder is not None:
                yield holder.id
                return
            loan = self._loan(stored_name, name, tenant)
            loan.enter()
            try:
                try:
                    record = await asyncio.shield(loan.making)
                except Conflict:
                    # Another process was faster: its sandbox has the workspace and will serve.
                    if not tries_left:
                        raise
                    continue
                yield record.id
                return
            finally:
                self._loans.leave(stored_name, loan, self._sandboxes)

    async def aclose(self) -> None:
        """Remove every one. Twice is fine."""
        await self._loans.aclose(self._sandboxes)

    def _loan(self, stored_name: str, name: str, tenant: str) -> Loan:
        loan = self._loans.get(stored_name)
        if loan is not None and not self._usable(loan):
            self._loans.close_soon(stored_name, loan, self._sandboxes)
            loan = None
        if loan is None:
            self._in_flight.check()
            self._loans.make_room(self._sandboxes)
            making = asyncio.get_running_loop().create_task(self._make(name, tenant))
            loan = Loan(making)
            self._loans.add(stored_name, loan)
        return loan

    def _usable(self, loan: Loan) -> bool:
        if not loan.making.done():
            return True
        record = loan.record()
        handle = None if record is None else self._handles.peek(record.id)
        return handle is not None and handle.live is not None

    async def _make(self, name: str, tenant: str) -> Record:
        stored = await self._claims.port.get(scoped(tenant, name))
        options = SandboxOptions(workspace_id=name, backend=stored.keeper or None, network="none")
        plan = await self._planner.plan(CreateRequest(options, tenant=tenant, runtime_image="host"))
        requested = plan.workspace
        lease = Lease(idle_timeout_s=LEASE_S, lifetime_s=plan.lease.lifetime_s)
        plan = replace(
            plan,
            lease=lease,
            workspace=None if requested is None else replace(requested, must_exist=True),
        )
        with self._in_flight.within():
            return await self._sandboxes.make(plan, acquired="internal")

    async def _holder(self, stored_name: str) -> Record | None:
        """Return a sandbox of the workspace's owner that has it now."""
        rows = [
            row
            for row in await self._store.list()
            if row.workspace_id == stored_name
            and row.acquired != "internal"
            and row.state in (State.RUNNING, State.PAUSED)
        ]
        rows.sort(key=lambda row: row.state is State.PAUSED)
        for row in rows:
            if await self._claims.lives(row):
                return row
        return None
