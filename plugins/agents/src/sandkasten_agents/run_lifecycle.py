"""Lifecycle of one run of any kind: claim, record, end, clean up.

However the work ends (success, failure, cancellation, timeout), the sandboxes of the run are
destroyed or retained first, then the end event is recorded, then the row is updated. This part is
shielded and has its own deadline: what cannot be destroyed in time is left to the periodic sweep.
When `execute` is cancelled from outside, it lets the cancellation through after that. A run whose
claim was lost is left as it is: another process may have it. So is a workflow whose records could
not be reached: the next recovery continues it from its last step.
"""

from __future__ import annotations

import asyncio
import logging
from contextlib import suppress
from dataclasses import field, replace
from typing import TYPE_CHECKING, Any, Final, TypeVar

from sandkasten.errors import (
    BackendUnavailable,
    Cancelled,
    Conflict,
    InternalError,
    RunLimitReached,
    SandkastenError,
)
from sandkasten.lazy_dataclass import dataclass
from sandkasten.model.runs.run_values import RunUsage
from sandkasten.ports import UNTRACED
from sandkasten_agents.transcript_bounds import bounded, error_fields

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Coroutine, Mapping

    from sandkasten.model.runs.run_values import RunRow, RunStatus
    from sandkasten.ports import Clock, EventSink, Span, Tracing
    from sandkasten.ports.agent_ports import Runs

T = TypeVar("T")

log = logging.getLogger("sandkasten.agents")
# Destroying is fast unless an engine does not answer; then the sweep removes the sandboxes later.
CLEAN_S: Final = 30.0
AGENT_SPAN_ALIAS: Final = "AgentExecute"
"""The name of an agent's root span for queries that were written for Station."""


@dataclass(frozen=True, slots=True)
class Outcome:
    output: Any = None
    usage: RunUsage = field(default_factory=RunUsage)


class ClaimedRun:
    """A run that this process has claimed."""

    def __init__(self, row: RunRow, runs: Runs) -> None:
        self.row = row
        self.usage = row.usage
        """Resources used so far, also for a run that will fail."""
        self._runs = runs

    async def note(self, type: str, data: Mapping[str, Any]) -> None:
        await self._runs.note(self.row.id, type, bounded(data))

    async def save(self, state: Mapping[str, Any]) -> None:
        """Save the state from which the run can be resumed. It is durable when this returns."""
        self.row = replace(self.row, state=state, usage=self.usage)
        await self._runs.save(self.row)


@dataclass(slots=True)
class StopRequest:
    """Why running work is being cancelled, if it is."""

    shutdown: bool = False
    leave_open: bool = False
    """Whether a run that can be resumed stays open and keeps its sandboxes."""


class RunLifecycle:
    def __init__(
        self,
        runs: Runs,
        clean: Callable[[RunRow], Awaitable[Mapping[str, str]]],
        clock: Clock,
        events: EventSink | None = None,
        tracing: Tracing = UNTRACED,
    ) -> None:
        self._tracing = tracing
        self._runs = runs
        self._clean = clean
        self._clock = clock
        self._events = events
        self.stop_request = StopRequest()

    async def execute(
        self,
        row: RunRow,
        work: Callable[[ClaimedRun], Awaitable[Outcome]],
        timeout_s: float | None = None,
    ) -> RunRow:
        """Return the final row. Raise Conflict when another process works on the run."""
        about = {f"{row.kind}.name": row.name, "run.id": row.id, "sandkasten.tenant": row.tenant}
        with self._tracing.span(f"{row.kind}.run", about) as span:
            if row.kind == "agent":
                span.set({"span.alias": AGENT_SPAN_ALIAS})
                span.content("agent.task", str(row.input.get("task", "")))
            ended = await self._execute(row, work, timeout_s)
            _trace_end(span, ended)
            return ended

    async def _execute(
        self,
        row: RunRow,
        work: Callable[[ClaimedRun], Awaitable[Outcome]],
        timeout_s: float | None,
    ) -> RunRow:
        claim = self._runs.claim(row.id)
        async with claim as is_claimed:
            try:
                fresh = await self._runs.get(row.id) if is_claimed else None
            except asyncio.CancelledError:
                if is_claimed and not claim.is_lost and not self._stays_open(row):
                    await finish_shielded(self._settle_unstarted(row))
                raise
            if fresh is None or fresh.ended:
                # Another process may have reclaimed the run while we waited.
                raise Conflict(
                    f"another process works on run {row.id}, or has already finished it",
                    hint="check the status of the run",
                    run_id=row.id,
                )
            # Read it again: another process may have advanced the run before we held the claim.
            claimed = ClaimedRun(fresh, self._runs)
            self._emit("run.started", row)
            cancelled: asyncio.CancelledError | None = None
            try:
                ended = await self._outcome(claimed, work, timeout_s)
            except asyncio.CancelledError as exc:
                # A lost run is open, and is recovered by the process that claims it next.
                if claim.is_lost or self._stays_open(row):
                    raise
                cancelled = exc
                ended = self._ended(claimed, "cancelled", error=self._why_cancelled())
            if claim.is_lost:
                raise BackendUnavailable(
                    f"the claim of run {row.id} was lost",
                    hint="another process continues the run, or marks it as lost",
                    run_id=row.id,
                )
            ended = await finish_shielded(self._settle(ended))
            if cancelled is not None:
                raise cancelled
            return ended

    def _stays_open(self, row: RunRow) -> bool:
        return self.stop_request.leave_open and row.kind == "workflow" and row.parent_id is None

    async def _settle_unstarted(self, row: RunRow) -> None:
        fresh = await self._runs.get(row.id)
        if fresh is not None and not fresh.ended:
            claimed = ClaimedRun(fresh, self._runs)
            await self._settle(self._ended(claimed, "cancelled", error=self._why_cancelled()))

    async def _outcome(
        self,
        claimed: ClaimedRun,
        work: Callable[[ClaimedRun], Awaitable[Outcome]],
        timeout_s: float | None,
    ) -> RunRow:
        row = claimed.row
        timer = asyncio.timeout(timeout_s)
        try:
            try:
                async with timer:
                    done = await work(claimed)
            except TimeoutError as exc:
                if not timer.expired():
                    raise
                raise RunLimitReached(
                    f"the run exceeded its timeout of {timeout_s:g} s",
                    hint="reduce the task, or raise agents.timeout_seconds",
                    limit="timeout",
                    timeout_s=timeout_s,
                ) from exc
        except SandkastenError as exc:
            if _continues_later(row, exc):
                raise
            return self._ended(claimed, "failed", error=error_fields(exc))
        except Exception as exc:
            # The message of the exception may contain user data, so it goes to the log only.
            log.exception("run.failed", extra={"sandkasten": {"run": row.id}})
            broken = InternalError(
                f"the run failed unexpectedly ({type(exc).__name__})",
                hint="the log of the process that ran it has more",
            )
            return self._ended(claimed, "failed", error=error_fields(broken))
        claimed.usage = done.usage
        return self._ended(claimed, "completed", output=done.output)

    def _why_cancelled(self) -> Mapping[str, Any]:
        if self.stop_request.shutdown:
            return error_fields(
                Cancelled("the process that ran the run was stopped", hint="start it again")
            )
        return error_fields(Cancelled("the run was cancelled"))

    def _ended(
        self,
        claimed: ClaimedRun,
        status: RunStatus,
        *,
        output: Any = None,
        error: Mapping[str, Any] | None = None,
    ) -> RunRow:
        return replace(
            claimed.row,
            status=status,
            output=output,
            error=error,
            usage=claimed.usage,
            ended_at=self._clock.now(),
        )

    async def _settle(self, ended: RunRow) -> RunRow:
        ended = await self.clean_up(ended)
        try:
            await self.conclude(ended)
        except SandkastenError as exc:
            # The row stays open and its claim is released, so the run will be marked as lost.
            data = {"run": ended.id, "why": exc.code}
            log.error("run.unrecorded", extra={"sandkasten": data})  # noqa: TRY400
        self._emit("run.ended", ended)
        return ended

    async def clean_up(self, row: RunRow) -> RunRow:
        """Destroy the sandboxes of a run; return its row with those that were retained."""
        try:
            async with asyncio.timeout(CLEAN_S):
                retained = await self._clean(row)
        except (SandkastenError, TimeoutError) as exc:
            data = {"run": row.id, "why": getattr(exc, "code", "TIMEOUT")}
            log.warning("run.uncleaned", extra={"sandkasten": data})
            return row
        for key, the_id in retained.items():
            with suppress(SandkastenError):
                event_data = {"session_key": key, "sandbox_id": the_id}
                await self._runs.note(row.id, "session.retained", event_data)
        return replace(row, retained=retained)

    async def conclude(self, ended: RunRow) -> None:
        """Record the event before the row: followers stop reading at the row."""
        data: dict[str, Any] = {"status": ended.status}
        if ended.error is not None:
            data["error"] = dict(ended.error)
        await self._runs.note(ended.id, "run.ended", bounded(data))
        await self._runs.save(ended)

    def _emit(self, event: str, row: RunRow) -> None:
        if self._events is None:
            return
        fields: dict[str, str | int | float | bool | None] = {
            "run": row.id,
            "kind": row.kind,
            "name": row.name,
            "tenant": row.tenant,
        }
        if row.ended_at is not None:
            fields |= {"status": row.status, "seconds": round(row.ended_at - row.created_at, 3)}
        self._events.emit(event, fields)


def _continues_later(row: RunRow, error: SandkastenError) -> bool:
    """Return whether a run stays open after this error: its database was unreachable."""
    about = error.details
    away = error.code == BackendUnavailable.code or about.get("cause") == BackendUnavailable.code
    stored = "store" in about or "cause_store" in about
    return row.kind == "workflow" and row.parent_id is None and away and stored


def _trace_end(span: Span, ended: RunRow) -> None:
    usage = ended.usage
    span.set(
        {
            "run.status": ended.status,
            "run.steps": usage.steps,
            "run.tool_calls": usage.tool_calls,
            "gen_ai.usage.input_tokens": usage.prompt_tokens,
            "gen_ai.usage.output_tokens": usage.completion_tokens,
        }
    )
    if ended.error is not None:
        span.fail(str(ended.error.get("code")), str(ended.error.get("message", "")))


async def finish_shielded(work: Coroutine[Any, Any, T]) -> T:
    """Finish the work even when cancelled meanwhile; then pass the cancellation on."""
    task = asyncio.ensure_future(work)
    cancelled: asyncio.CancelledError | None = None
    while not task.done():
        try:
            await asyncio.shield(task)
        except asyncio.CancelledError as exc:
            if task.done():
                break
            cancelled = exc
        except Exception:  # noqa: BLE001  (raised below, from the task itself)
            break
    done = task.result()
    if cancelled is not None:
        raise cancelled
    return done
