"""One sandbox kept ready for the next one-shot of a kind that comes again and again.

A second one-shot of the same backend and spec within HOT_S makes a kind hot: from then on the
next sandbox is made while the present one computes. A spare is claimed by one run and never
goes back; nobody can run anything in it before. It is taken away after KEPT_S, at `aclose`, and,
should this process be killed, by its own lease and by any reaper. Nothing here fails a run: a
spare that died or could not be made means that the run makes its own.
"""

from __future__ import annotations

import asyncio
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, TypeVar

from sandkasten.errors import SandkastenError
from sandkasten.model.sandbox.policy import Lease

if TYPE_CHECKING:
    from collections.abc import Coroutine

    from sandkasten.engine.lifecycle.planner import Plan
    from sandkasten.engine.lifecycle.sandboxes import Sandboxes
    from sandkasten.model.sandbox.ledger_record import Record
    from sandkasten.ports import Clock, EventSink

T = TypeVar("T")

HOT_S = 8.0
KEPT_S = 8.0
# Later than KEPT_S, so that a living process takes it away whole and the runner need not.
LEASE_S = 12.0
# After a spare could not be made: the host is short of something, and the runs need it more.
BACKOFF_S = 30.0
MAX_KINDS = 4


@dataclass(slots=True)
class _Kind:
    """What a run asked for, when it last did, and the spare for the next that asks the same."""

    plan: Plan
    seen: float
    hot: bool = False
    spare: asyncio.Task[Record | None] | None = None
    expiry: asyncio.TimerHandle | None = None

    def take(self) -> asyncio.Task[Record | None] | None:
        """Exclusive, because nothing is awaited here."""
        spare, self.spare = self.spare, None
        if self.expiry is not None:
            self.expiry.cancel()
            self.expiry = None
        return spare


class Spares:
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
        # Made, and neither claimed nor gone: a task that is cancelled cannot lose one.
        self._unclaimed: dict[str, Record] = {}

    async def claim(self, plan: Plan) -> Record | None:
        """The spare for this plan, now the caller's alone; None when there is none that lives.

        One that is still being made is waited for: it began earlier than another would.
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

    def refill(self, plan: Plan) -> None:
        """Begin the next one, if this kind is hot and has none. Returns at once."""
        kind = self._find(plan)
        if kind is None or not kind.hot or kind.spare is not None:
            return
        if self._clock.boottime() >= self._not_before:
            kind.spare = making = self._later(self._make(kind.plan))
            kind.expiry = asyncio.get_running_loop().call_later(KEPT_S, self._expire, kind, making)

    async def aclose(self) -> None:
        """Take every spare away and keep no more. Twice is fine."""
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

    def _asked(self, plan: Plan) -> asyncio.Task[Record | None] | None:
        """Note that this kind was asked for, and take its spare."""
        # A workspace with a name is its owner's: nothing else may hold it meanwhile.
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

    def _find(self, plan: Plan) -> _Kind | None:
        for kind in self._kinds:
            if kind.plan.backend is plan.backend and kind.plan.spec == plan.spec:
                return kind
        return None

    async def _make(self, plan: Plan) -> Record | None:
        lease = Lease(idle_timeout_s=LEASE_S, lifetime_s=LEASE_S)
        bare = replace(plan, lease=lease, labels={}, env_names=(), warnings=(), session_key=None)
        try:
            spare = await self._sandboxes.make(bare, acquired="spare")
        except SandkastenError as exc:
            self._not_before = self._clock.boottime() + BACKOFF_S
            self._emit("sandbox.spare_failed", backend=plan.backend.name, error=exc.code)
            return None
        self._unclaimed[spare.id] = spare
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
