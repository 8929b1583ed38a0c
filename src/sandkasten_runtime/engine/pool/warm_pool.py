"""The warm pool: sandboxes kept ready for the next requests of a kind.

A kind is kept ready if the operator lists it (only a daemon reads that), or if it was requested
twice within `PoolRules.idle_s`; after a burst of requests, more of it are kept ready. A pooled
sandbox is claimed by one request and never returns to the pool; no code runs in it before, except
an interpreter that waits for the code. It is removed if it was not claimed for `idle_s`, and at
`aclose`. If this process is killed, its own lease or any reaper removes it, or the next daemon
adopts it. One sandbox is made at a time, when the request was answered or takes long, and more
slowly while the machine is busy. Nothing here makes a request or a start fail: without a pooled
sandbox, a request gets a new one.
"""

from __future__ import annotations

import asyncio
from collections import deque
from contextlib import suppress
from dataclasses import field, replace
from typing import TYPE_CHECKING, Any, Protocol, TypeVar

from sandkasten.errors import SandboxLost, SandkastenError, UnsupportedByBackend
from sandkasten.lazy_dataclass import dataclass
from sandkasten.model.pool.pool_kinds import (
    Miss,
    differing_limits,
    kind_digest,
    pooled_spec,
    unusual,
)
from sandkasten.model.sandbox.policy import Lease
from sandkasten.model.sandbox.sandbox_values import CreateRequest
from sandkasten_runtime.engine.placement.backend_choice import Chosen
from sandkasten_runtime.engine.pool.pool_rules import LIFETIME_S, PoolRules, wanted_ready

if TYPE_CHECKING:
    from collections.abc import Coroutine

    from sandkasten.model.access.tenancy import TenantQuota
    from sandkasten.model.sandbox.cell_spec import CellSpec
    from sandkasten.model.sandbox.ledger_record import Record
    from sandkasten.ports import Clock, EventSink, Sites
    from sandkasten_runtime.engine.lifecycle.planner import Planner, SandboxPlan
    from sandkasten_runtime.engine.lifecycle.sandboxes import Sandboxes

T = TypeVar("T")

# Longer than it is kept, so that a living process removes the sandbox before its own lease does.
LEASE_MARGIN_S = 4.0
# Wait this long after a failed refill: the host is short of something that requests need more.
BACKOFF_S = 30.0
# Let the caller of a new session use it first.
REFILL_AFTER_S = 0.01
# A one-shot has ended by then, or takes so long that its caller does not notice.
_REFILL_DURING_RUN_S = 0.2
# Requests that follow each other faster than this would wait for what is made between them.
_CLOSE_S = 0.1
# A sandbox that took this many times the usual time was made on a busy machine: rest as long.
SLOW = 3.0
MAX_KINDS = 8
_REMEMBERED = 64


@dataclass(slots=True, eq=False)
class _Spare:
    """A sandbox that is being made or is ready."""

    making: asyncio.Task[Record | None]
    kept_until: float
    renew_at: float

    def made(self) -> Record | None:
        if not self.making.done() or self.making.cancelled() or self.making.exception():
            return None
        return self.making.result()


@dataclass(slots=True, eq=False)
class _Kind:
    """A kind of sandbox, when it was requested, and its sandboxes, oldest first."""

    plan: SandboxPlan
    listed: int = 0
    times: deque[float] = field(default_factory=lambda: deque(maxlen=_REMEMBERED))
    spares: list[_Spare] = field(default_factory=list)
    not_before: float = 0.0


class Interpreters(Protocol):
    """Interpreters that wait in a pooled sandbox for the code of a one-shot."""

    def serves(self, plan: SandboxPlan) -> bool:
        """Return whether one is started for such a request."""
        ...

    async def prepare(self, record: Record, plan: SandboxPlan) -> None:
        """Start one, if the image has it. Never raises a SandkastenError."""
        ...


class WarmPool:
    def __init__(
        self,
        sandboxes: Sandboxes,
        planner: Planner,
        clock: Clock,
        events: EventSink | None,
        rules: PoolRules,
        version: str = "",
    ) -> None:
        self._sandboxes = sandboxes
        self._claims = sandboxes.spares
        self._planner = planner
        self._clock = clock
        self._events = events
        self.rules = rules
        self._version = version
        self._closed = not rules.enabled
        self._kinds: list[_Kind] = []
        self._busy: set[asyncio.Task[Any]] = set()
        self._refilling: asyncio.Task[None] | None = None
        self._delayed: asyncio.TimerHandle | None = None
        self._upkeep: asyncio.TimerHandle | None = None
        self._upkeep_at = 0.0
        self._usual_s: float | None = None
        # Made, and neither claimed nor removed: a cancelled task cannot lose one.
        self._unclaimed: dict[str, Record] = {}
        self.interpreters: Interpreters | None = None
        """Starts interpreters in new sandboxes, before they are ready."""

    # ---- requests

    async def claim(self, plan: SandboxPlan, quota: TenantQuota | None) -> Record | Miss:
        """Return a pooled sandbox that now has everything the plan asks for, or the reason why
        there is none. Raise QuotaExceeded as a create does.

        If one is still being made, wait for it: it started earlier than another would.
        """
        claimed = await self._claimed(plan, quota)
        if isinstance(claimed, Miss) and claimed.code != "off":
            self._emit("pool.missed", backend=plan.backend.name, reason=claimed.code)
        return claimed

    async def _claimed(self, plan: SandboxPlan, quota: TenantQuota | None) -> Record | Miss:
        if self._closed:
            return Miss("off", "the warm pool is off")
        what = _unusual(plan)
        if what:
            return Miss("unusual", what)
        kind = self._asked(plan)
        if not kind.spares:
            return self._not_ready(kind)
        spare: _Spare | None = None
        claimed: Record | None = None
        try:
            async with self._claims.admitted(plan, quota) as network:
                spare = kind.spares.pop(0) if kind.spares else None
                if spare is None:
                    return self._not_ready(kind)
                if not spare.making.done():
                    try:
                        await asyncio.wait({spare.making})
                    except asyncio.CancelledError:
                        # Nothing was applied to it, so the next request can have it.
                        kind.spares.insert(0, spare)
                        spare = None
                        raise
                record = spare.made()
                if record is not None:
                    granted = replace(plan, spec=replace(plan.spec, network=network))
                    claimed = await self._claims.claim(record, granted, quota)
        except BaseException:
            # Also when the request was cancelled while its quota was released.
            claimed = None
            raise
        finally:
            if spare is not None and claimed is None:
                self._later(self._remove(spare))
        if claimed is None:
            return Miss("failed", "the sandbox that was ready had ended")
        self._unclaimed.pop(claimed.id, None)
        return claimed

    def refill(self, after_s: float = 0.0) -> None:
        """Start making what is missing after this time, or earlier if another call asks for it.
        Return at once; without a delay, the next claim already waits for what is being made.
        """
        if self._closed or (self._refilling is not None and not self._refilling.done()):
            return
        loop = asyncio.get_running_loop()
        if after_s and self._delayed is not None and self._delayed.when() <= loop.time() + after_s:
            return
        if self._delayed is not None:
            self._delayed.cancel()
            self._delayed = None
        kind = self._lacking()
        if kind is None:
            return
        if after_s:
            self._delayed = loop.call_later(after_s, self.refill)
        else:
            self._refilling = self._later(self._refill(kind, self._begin(kind)))

    def refill_during_run(self, plan: SandboxPlan) -> None:
        """Make what is missing after the run, unless the run takes long or the next request of its
        kind will follow at once.
        """
        kind = None if self._closed else self._find(plan)
        if kind is None or len(kind.times) < 2:
            return
        follows = kind.times[-1] - kind.times[-2] < _CLOSE_S
        self.refill(0.0 if follows else _REFILL_DURING_RUN_S)

    def _not_ready(self, kind: _Kind) -> Miss:
        for other in self._kinds:
            if other.plan.backend is kind.plan.backend and (other.spares or other.listed):
                names = differing_limits(kind.plan.spec, other.plan.spec)
                if names:
                    return Miss("limits", f"limits differ: {', '.join(names)}")
        return Miss("not_ready", "no sandbox ready")

    def _asked(self, plan: SandboxPlan) -> _Kind:
        """Record the demand and return the kind."""
        now = self._clock.boottime()
        kind = self._find(plan)
        if kind is None:
            kind = self._add(plan, now)
        kind.times.append(now)
        return kind

    def _add(self, plan: SandboxPlan, now: float) -> _Kind:
        self._kinds = [known_kind for known_kind in self._kinds if self._in_demand(known_kind, now)]
        unlisted = [known_kind for known_kind in self._kinds if not known_kind.listed]
        kind = _Kind(self._bare(plan))
        if len(unlisted) >= MAX_KINDS:
            oldest = min(unlisted, key=lambda known_kind: known_kind.times[-1])
            if oldest.spares:
                # There are as many kinds as there may be; nothing is kept ready for this one.
                return kind
            self._kinds.remove(oldest)
        self._kinds.append(kind)
        return kind

    def _in_demand(self, kind: _Kind, now: float) -> bool:
        if kind.listed or kind.spares:
            return True
        return bool(kind.times) and now - kind.times[-1] <= self.rules.idle_s

    def _find(self, plan: SandboxPlan) -> _Kind | None:
        spec, runtime = self._spec_of(plan), self._runtime_of(plan)
        for kind in self._kinds:
            had = kind.plan
            if had.backend is plan.backend and had.runtime == runtime and had.spec == spec:
                return kind
        return None

    def _runtime_of(self, plan: SandboxPlan) -> str | None:
        """Return the runtime whose interpreter waits in the sandbox; None if there is none."""
        if self.interpreters is None or not self.interpreters.serves(plan):
            return None
        return plan.runtime

    def _spec_of(self, plan: SandboxPlan) -> CellSpec:
        spec = pooled_spec(plan.spec, resizable=plan.backend.capabilities.resizes)
        # An interpreter has read its environment when it started.
        return spec if self._runtime_of(plan) is None else replace(spec, env=plan.spec.env)

    def _bare(self, plan: SandboxPlan) -> SandboxPlan:
        """Return the plan without anything of the caller."""
        lease = Lease(self.rules.idle_s * 1.5 + LEASE_MARGIN_S, LIFETIME_S)
        return replace(
            plan,
            spec=self._spec_of(plan),
            lease=lease,
            labels={},
            env={},
            warnings=(),
            session_key=None,
            key_id=None,
            runtime=self._runtime_of(plan),
        )

    # ---- refill

    def _lacking(self) -> _Kind | None:
        """Return the kind that lacks most, listed ones first; None if all have what they should."""
        now = self._clock.boottime()
        if sum(len(kind.spares) for kind in self._kinds) >= self.rules.max_total:
            return None
        lacks = [
            (wanted_ready(kind.times, now, self.rules, kind.listed) - len(kind.spares), kind)
            for kind in self._kinds
            if now >= kind.not_before
        ]
        most = max(lacks, key=lambda pair: (pair[0], pair[1].listed), default=None)
        return most[1] if most is not None and most[0] > 0 else None

    def _begin(self, kind: _Kind) -> _Spare:
        now = self._clock.boottime()
        spare = _Spare(self._later(self._make(kind)), now + self.rules.idle_s, now)
        kind.spares.append(spare)
        return spare

    async def _refill(self, kind: _Kind, spare: _Spare) -> None:
        """Wait for the sandbox of this kind, and then make what else is missing."""
        while True:
            await self._settled(kind, spare)
            lacking = None if self._closed else self._lacking()
            if lacking is None:
                return
            kind, spare = lacking, self._begin(lacking)

    async def _settled(self, kind: _Kind, spare: _Spare) -> None:
        began = self._clock.boottime()
        await asyncio.wait({spare.making})
        if spare.made() is None:
            if spare in kind.spares:
                kind.spares.remove(spare)
            return
        now = self._clock.boottime()
        spare.kept_until = now + self.rules.idle_s
        spare.renew_at = now + self.rules.idle_s / 2
        self._look_after(self.rules.idle_s / 2)
        took = now - began
        usual = self._usual_s = took if self._usual_s is None else min(self._usual_s, took)
        if took > SLOW * usual:
            await asyncio.sleep(took)

    async def _make(self, kind: _Kind) -> Record | None:
        plan = kind.plan
        try:
            spare = await self._sandboxes.make_spare(plan, self._digest(plan))
            if not self._claims.answers(spare):
                await self._sandboxes.destroy_quietly(spare.id)
                raise SandboxLost("the runner cannot take an environment later", hint="update it")
        except SandkastenError as exc:
            kind.not_before = self._clock.boottime() + BACKOFF_S
            self._look_after(BACKOFF_S)
            self._emit("sandbox.spare_failed", backend=plan.backend.name, error=exc.code)
            return None
        self._unclaimed[spare.id] = spare
        if self.interpreters is not None:
            await self.interpreters.prepare(spare, plan)
        return spare

    # ---- upkeep

    async def start(self, sites: Sites) -> None:
        """Adopt what an earlier daemon left of the listed kinds, and keep these ready from now on.

        Called before recovery, which removes the rest.
        """
        if self._closed:
            return
        for wanted in self.rules.kinds:
            try:
                request = CreateRequest(wanted.options)
                chosen = Chosen(await self._planner.choice.first(request))
                plan = await self._planner.plan(request, sites=sites, chosen=chosen)
                what = _unusual(plan)
                if what:
                    raise UnsupportedByBackend(f"no sandbox can be kept ready: {what}")
            except SandkastenError as exc:
                self._emit("pool.kind_failed", image=wanted.options.image or "", error=exc.code)
                continue
            kind = self._find(plan)
            if kind is None:
                kind = _Kind(self._bare(plan))
                self._kinds.append(kind)
            kind.listed = max(kind.listed, wanted.ready)
        await self._adopt()

    async def _adopt(self) -> None:
        digests = {self._digest(kind.plan): kind for kind in self._kinds}
        now = self._clock.boottime()
        for record in await self._claims.left():
            kind = digests.get(record.pool_kind)
            if kind is None or len(kind.spares) >= kind.listed:
                continue
            # One that does not answer is left to recovery, and must not stop the start.
            with suppress(SandkastenError, TimeoutError):
                adopted = await self._claims.adopt(record, kind.plan)
                if adopted is None:
                    continue
                self._unclaimed[adopted.id] = adopted
                making = self._later(_done(adopted))
                kind.spares.append(_Spare(making, now + self.rules.idle_s, now))

    def _digest(self, plan: SandboxPlan) -> str:
        return kind_digest(plan.backend.name, plan.spec, plan.runtime, self._version)

    def _look_after(self, after_s: float) -> None:
        """Schedule the upkeep after this time, unless it is scheduled earlier."""
        loop = asyncio.get_running_loop()
        at = loop.time() + after_s
        if self._closed or (self._upkeep is not None and self._upkeep_at <= at):
            return
        if self._upkeep is not None:
            self._upkeep.cancel()
        self._upkeep_at = at
        self._upkeep = loop.call_at(at, self._keep)

    def _keep(self) -> None:
        """Remove what was not claimed, renew the lease of the rest, and refill."""
        self._upkeep = None
        if self._closed:
            return
        now = self._clock.boottime()
        for kind in self._kinds:
            wanted = wanted_ready((), now, self.rules, kind.listed)
            for spare in list(kind.spares):
                if not spare.making.done():
                    continue
                record = spare.made()
                over = now >= spare.kept_until and len(kind.spares) > wanted
                if over or record is None or not self._claims.answers(record):
                    kind.spares.remove(spare)
                    self._later(self._remove(spare))
                elif now >= spare.renew_at:
                    spare.renew_at = now + self.rules.idle_s / 2
                    self._later(self._claims.renew(record, kind.plan))
        self._kinds = [kind for kind in self._kinds if self._in_demand(kind, now)]
        if any(kind.spares or kind.listed for kind in self._kinds):
            self._look_after(max(0.05, self.rules.idle_s / 4))
        self.refill()

    async def aclose(self) -> None:
        """Remove all pooled sandboxes and stop refilling. Twice is fine."""
        self._closed = True
        if self._upkeep is not None:
            self._upkeep.cancel()
        if self._delayed is not None:
            self._delayed.cancel()
        if self._refilling is not None:
            self._refilling.cancel()
        for kind in self._kinds:
            for spare in kind.spares:
                spare.making.cancel()
        self._kinds.clear()
        while self._busy:
            await asyncio.wait(self._busy)
        await asyncio.gather(*(self._discard(spare) for spare in [*self._unclaimed.values()]))

    async def _remove(self, spare: _Spare) -> None:
        if not spare.making.done():
            await asyncio.wait({spare.making})
        record = spare.made()
        if record is not None:
            await self._discard(record)

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


async def _done(record: Record) -> Record | None:
    return record


def _unusual(plan: SandboxPlan) -> str:
    """Return what keeps a request from every pooled sandbox; empty if nothing does."""
    fixes = plan.backend.capabilities.fixed_network
    named = plan.workspace is not None
    return unusual(plan.spec, named_workspace=named, fixed_network=fixes)
