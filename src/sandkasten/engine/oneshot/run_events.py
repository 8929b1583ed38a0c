"""The log events of a one-shot."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

from sandkasten.errors import Cancelled, SandkastenError
from sandkasten.model.runs.run_values import new_run_id
from sandkasten.model.sandbox.oneshot_values import oneshot_timeout

if TYPE_CHECKING:
    from collections.abc import Mapping

    from sandkasten.engine.lifecycle.planner import SandboxPlan
    from sandkasten.model.commands.exec_values import ExecResult
    from sandkasten.model.sandbox.oneshot_values import RunRequest, RunResult
    from sandkasten.ports import EventSink


class RunEvents:
    """The two events of one run, under one id; the second also for a run that failed or was
    cancelled.
    """

    def __init__(
        self,
        events: EventSink | None,
        request: RunRequest,
        runtime: str,
        timeout_s: float | None,
        plan: SandboxPlan,
    ) -> None:
        self._events = events
        self.run_id = new_run_id()
        self.timeout_s = oneshot_timeout(timeout_s, plan.spec.limits)
        self._about: dict[str, str | int | float | bool | None] = {
            "run": self.run_id,
            "agent_run": request.agent_run_id,
            "tenant": plan.tenant,
            "runtime": runtime,
            "image": plan.spec.image.name,
            "backend": plan.backend.name,
        }
        self._over = False
        self._emit("sandbox_run_started", {"timeout_seconds": self.timeout_s})

    def finished(self, answer: RunResult, result: ExecResult) -> None:
        self._over = True
        self._emit(
            "sandbox_run_finished",
            {
                "sandbox": answer.sandbox_id,
                "ok": answer.ok,
                "status": result.status,
                "exit_code": answer.exit_code,
                "duration_ms": answer.duration_ms,
                "stdout_bytes": result.stdout_bytes,
                "stderr_bytes": result.stderr_bytes,
                "artifacts": len(answer.artifacts),
                "error": None,
            },
        )

    def failed(self, exc: BaseException) -> None:
        if self._over:
            return
        code = exc.code if isinstance(exc, SandkastenError) else type(exc).__name__
        error = Cancelled.code if isinstance(exc, asyncio.CancelledError) else code
        self._emit("sandbox_run_finished", {"ok": False, "exit_code": None, "error": error})

    def _emit(self, event: str, fields: Mapping[str, str | int | float | bool | None]) -> None:
        if self._events is not None:
            self._events.emit(event, {**self._about, **fields})
