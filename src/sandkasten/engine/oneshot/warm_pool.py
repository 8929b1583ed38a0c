"""The warm pool: one sandbox kept ready for the next one-shot of a kind in demand.

A second one-shot of the same backend and spec within HOT_S makes a kind hot: from then on the next
sandbox is made while the current one computes. A pooled sandbox is claimed by one run and never
returns to the pool; nothing can run in it before. It is removed after KEPT_S, at `aclose`, and, if
this process is killed, by its own lease and by any reaper. Nothing here makes a run fail: without a
pooled sandbox the run creates its own.
"""

from __future__ import annotations

import asyncio
from dataclasses import replace
from typing import TYPE_CHECKING, Any, TypeVar

from sandkasten.errors import SandkastenError
from sandkasten.lazy_dataclass import dataclass
from sandkasten.model.sandbox.policy import Lease

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Coroutine

    from sandkasten.engine.lifecycle.planner import SandboxPlan
    from sandkasten.engine.lifecycle.sandboxes import Sandboxes
    from sandkasten.model.sandbox.ledger_record import Record
    from sandkasten.ports import Clock, EventSink

T = TypeVar("T")

HOT_S = 8.0
KEPT_S = 8.0
# Longer than KEPT_S, so that a living process removes the sandbox before its own lease ends it.
LEASE_S = 12.0
# Wait this long after a failed refill: the host is short of something that the runs need more.
BACKOFF_S = 30.0
MAX_KINDS = 4


@dataclass(slots=True)
class _Kind:
    """A kind of sandbox, when it was last requested, and the pooled sandbox for the next
    request.
    """

    plan: SandboxPlan
    seen: float
    hot: bool = False
    spare: asyncio.Task[Record | None] | None = None
    expiry: asyncio.TimerHandle | None = None

    def take(self) -> asyncio.Task[Record | None] | None:
        """Take the pooled sandbox. Exclusive, because nothing is awaited here."""
        spare, self.spare = self.spare, None
        if self.expiry is not None:
            self.expiry.cancel()
            self.expiry = None
        return spare


class WarmPool:
    def __init__(
        self, sandboxes: Sandboxes, clock: Clock, events: EventSink | None, *, enabled: bool
    ) -> None:
        self._sandboxes = sandboxes
        self._clock = clock
        self._events = events
        self._enabled = enabled
        self._kinds: list[_Kind] = []
        self._not_before = 0.0
        self._busy: set[asyncio.Task[Any]] = set()
        # Made, and neither claimed nor removed: a cancelled task cannot lose one.
        self._unclaimed: dict[str, Record] = {}
        self.prepare: Callable[[Record, SandboxPlan], Awaitable[None]] | None = None

    async def claim(self, plan: SandboxPlan) -> Record | None:
        """Return a pooled sandbox for this plan, now owned by the caller; None if there is none
        alive.

        If one is still being made, wait for it: it started earlier than another would.
        """
        making = self._asked(plan)
        if making is None:
            if self._enabled:
                self._emit("spare.missed", backend=plan.backend.name)
            return None
        claimed: Record | None = None
        try:
            await asyncio.wait({making})
            spare = _made(making)
            if spare is not None:
                claimed = await self._sandboxes.claim(spare, plan)
        finally:
            if claimed is None:
                self._later(self._remove(making))
        if claimed is not None:
            self._unclaimed.pop(claimed.id, None)
        return claimed

    def refill(self, plan: SandboxPlan) -> None:
        """Start making the next one, if this kind is hot and has none. Return at once."""
        kind = self._find(plan)
        if kind is None or not kind.hot or kind.spare is not None:
            return
        if self._clock.boottime() >= self._not_before:
            kind.spare = making = self._later(self._make(kind.plan))
            kind.expiry = asyncio.get_running_loop().call_later(KEPT_S, self._expire, kind, making)

    async def aclose(self) -> None:
        """Remove all pooled sandboxes and stop refilling. Twice is fine."""
        self._enabled = False
        for kind in self._kinds:
            making = kind.take()
            if making is not None:
                making.cancel()
        self._kinds.clear()
        while self._busy:
            await asyncio.wait(self._busy)
        for spare in list(self._unclaimed.values()):
            await self._discard(spare)

    def _asked(self, plan: SandboxPlan) -> asyncio.Task[Record | None] | None:
        """Record the demand for this kind and take its pooled sandbox."""
        # A named workspace belongs to its owner: no pooled sandbox may hold it meanwhile.
        if not self._enabled or plan.workspace is not None:
            return None
        now = self._clock.boottime()
        self._kinds = [k for k in self._kinds if k.spare is not None or now - k.seen <= HOT_S]
        kind = self._find(plan)
        if kind is not None:
            kind.hot, kind.seen = True, now
            return kind.take()
        if len(self._kinds) < MAX_KINDS:
            self._kinds.append(_Kind(plan, now))
        return None

    def _find(self, plan: SandboxPlan) -> _Kind | None:
        for kind in self._kinds:
            if kind.plan.backend is plan.backend and kind.plan.spec == plan.spec:
                return kind
        return None

    async def _make(self, plan: SandboxPlan) -> Record | None:
        lease = Lease(idle_timeout_s=LEASE_S, lifetime_s=LEASE_S)
        bare = replace(plan, lease=lease, labels={}, env_names=(), warnings=(), session_key=None)
        try:
            spare = await self._sandboxes.make(bare, acquired="spare")
        except SandkastenError as exc:
            self._not_before = self._clock.boottime() + BACKOFF_S
            self._emit("sandbox.spare_failed", backend=plan.backend.name, error=exc.code)
            return None
        self._unclaimed[spare.id] = spare
        if self.prepare is not None:
            await self.prepare(spare, plan)
        return spare

    def _expire(self, kind: _Kind, making: asyncio.Task[Record | None]) -> None:
        if kind.spare is making:
            kind.take()
            self._later(self._remove(making))

    async def _remove(self, making: asyncio.Task[Record | None]) -> None:
        await asyncio.wait({making})
        spare = _made(making)
        if spare is not None:
            await self._discard(spare)

    async def _discard(self, spare: Record) -> None:
        try:
            await self._sandboxes.destroy_quietly(spare.id)
        except SandkastenError as exc:
            # The row is marked, or the lease ends it: the reaper does the rest.
            self._emit("sandbox.cleanup_failed", sandbox=spare.id, error=exc.code)
        self._unclaimed.pop(spare.id, None)

    def _later(self, work: Coroutine[Any, Any, T]) -> asyncio.Task[T]:
        task = asyncio.get_running_loop().create_task(work)
        self._busy.add(task)
        task.add_done_callback(self._busy.discard)
        return task

    def _emit(self, event: str, **fields: str) -> None:
        if self._events is not None:
            self._events.emit(event, fields)


def _made(making: asyncio.Task[Record | None]) -> Record | None:
    if making.cancelled() or making.exception() is not None:
        return None
    return making.result()
