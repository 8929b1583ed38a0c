"""One run of a workflow: enter steps, retry them, keep their outputs, save the state.

A failure of a step is a SandkastenError, which can be retried or caught. An error that ends the run
for good is wrapped in `Stopped`.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
from dataclasses import field
from typing import TYPE_CHECKING, Any, Final

from sandkasten.errors import (
    CommandTimeout,
    InvalidWorkflow,
    RunFailed,
    RunLimitReached,
    SandkastenError,
)
from sandkasten.lazy_dataclass import dataclass
from sandkasten.ports import UNTRACED
from sandkasten_agents.definitions import json_schemas
from sandkasten_agents.workflows import block_steps, value_templates
from sandkasten_agents.workflows.run_environment import AgentCall
from sandkasten_agents.workflows.step_retries import wait_before_retry
from sandkasten_agents.workflows.workflow_state import Scope, frames, put

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

    from sandkasten.ports import Tracing
    from sandkasten_agents.workflows.expressions import Expressions
    from sandkasten_agents.workflows.run_environment import Clock, RunCallbacks, WorkflowLimits
    from sandkasten_agents.workflows.workflow_plan import Body, Step, Workflow

MOST_LEVELS: Final = 64
"""Depth limit of outputs, so that the complete state can be written and read."""


class Stopped(Exception):
    """Wrapper for an error that no retry and no catch may handle."""

    def __init__(self, error: Exception) -> None:
        super().__init__(str(error))
        self.error = error


@dataclass(slots=True)
class WorkflowExecution:
    """One run, from its current state to its end."""

    workflow: Workflow
    input: Any
    state: dict[str, Any]
    callbacks: RunCallbacks
    expressions: Expressions
    limits: WorkflowLimits
    clock: Clock
    tracing: Tracing = UNTRACED
    _saving: asyncio.Lock = field(default_factory=asyncio.Lock)
    _slots: asyncio.Semaphore = field(init=False)

    def __post_init__(self) -> None:
        self._slots = asyncio.Semaphore(self.limits.max_agents)

    async def run(self) -> Any:
        try:
            async with self._run_timeout():
                scope = Scope(self.state["frame"])
                last = await self.body(self.workflow.body, scope)
                if self.workflow.output is not None:
                    last = await self._filled(self.workflow.output, scope, result=last)
                self._check_result(last)
                return last
        except SandkastenError as exc:
            await self._failed(exc)
            raise
        except Stopped as stopped:
            if isinstance(stopped.error, RunLimitReached):
                await self._failed(stopped.error)
            raise

    def _check_result(self, result: Any) -> None:
        schema = self.workflow.output_schema
        problems = json_schemas.check(result, schema) if schema else []
        if problems:
            raise RunFailed(
                f"the result does not match the outputSchema of {self.workflow.id}: {problems[0]}",
                hint="check the output of the last step, or give the workflow an `output`",
                problems=problems,
            )

    @contextlib.asynccontextmanager
    async def _run_timeout(self) -> AsyncIterator[None]:
        """Run with the timeout of the whole run, including the time before a crash."""
        allowed = self.workflow.timeout_s or self.limits.timeout_s
        remaining_s = self.state["started_at"] + allowed - self.clock.now()
        # A run that finished but crashed before reporting it reports it now.
        timeout = asyncio.timeout(max(remaining_s, 0) if self.state["frame"]["at"] else None)
        try:
            async with timeout:
                yield
        except TimeoutError as exc:
            if not timeout.expired():
                raise
            at = [f["at"] for f in frames(self.state) if f["at"] and f["begun"]]
            raise RunLimitReached(
                f'the workflow "{self.workflow.id}" did not end within {allowed:g} s; '
                f"it was at {', '.join(at) or 'its end'}",
                hint="give it a longer `timeout`, or its steps shorter ones",
                step=at[-1] if at else None,
                limit="timeout",
                timeout_s=allowed,
            ) from exc

    async def _failed(self, exc: SandkastenError) -> None:
        step = exc.details.get("step")
        self.state["failed"] = {"step": step, "code": exc.code, "message": exc.message[:1000]}
        await self.save()

    # Used by block steps (see block_steps.BlockRun).

    async def save(self) -> None:
        """Save one state at a time, in order, each as it is when its turn comes."""
        async with self._saving:
            text = json.dumps(self.state)
            if len(text) > self.limits.state_bytes:
                at = self.state["frame"]["at"]
                raise Stopped(
                    RunLimitReached(
                        f"the outputs of the run reached {len(text)} bytes at step "
                        f'"{at}", and {self.limits.state_bytes} are allowed',
                        hint="write the data to files and return less",
                        step=at,
                        limit="state_bytes",
                        most=self.limits.state_bytes,
                    )
                )
            try:
                await self.callbacks.save(json.loads(text))
            except SandkastenError as exc:
                raise Stopped(exc) from exc

    async def note(self, type: str, /, **data: Any) -> None:
        try:
            await self.callbacks.note(type, data)
        except SandkastenError as exc:
            raise Stopped(exc) from exc

    async def value(self, expression: str, scope: Scope) -> Any:
        return await self.expressions.value(expression, scope.context(self.input))

    async def truth(self, expression: str, scope: Scope) -> bool:
        return await self.expressions.truth(expression, scope.context(self.input))

    def check_items(self, step: Step, count: int) -> None:
        if count > self.limits.max_items:
            raise Stopped(
                self._limit(step, "max_items", f"has {count} items", self.limits.max_items)
            )

    async def check_rounds(self, step: Step, count: int) -> None:
        if count > self.limits.max_visits:
            most = self.limits.max_visits
            await self._guard(step, "max_visits", f"would repeat {count} times", most)

    async def body(self, body: Body, scope: Scope) -> Any:
        """Run a body from its current step and return its last output."""
        frame = scope.frame
        while (at := frame["at"]) is not None:
            step = body.step(at)
            if step is None:
                raise Stopped(
                    InvalidWorkflow(
                        f'the saved state is at the step "{at}", which the workflow does not have',
                        hint="resume the run with the workflow file it was started with",
                    )
                )
            again = frame["begun"] is not None
            if not again:
                await self._enter(step, frame)
            key = scope.key + step.id
            event = {"step": step.id, "type": step.type, "key": key}
            visit = frame["visits"][step.id]
            attempt = frame["begun"]["attempt"]
            await self.note("step.started", **event, visit=visit, attempt=attempt, resumed=again)
            about = {"workflow.step.id": step.id, "workflow.step.type": step.type}
            with self.tracing.span("workflow.step", {**about, "workflow.step.visit": visit}):
                followed = await self._run_step(step, scope)
            frame["at"], frame["begun"], frame["inner"] = followed, None, None
            await self.save()
            await self.note("step.ended", **event, visit=visit, next=followed)
        return frame["last"]

    async def _enter(self, step: Step, frame: dict[str, Any]) -> None:
        limits = self.limits
        visits = frame["visits"].get(step.id, 0) + 1
        if visits > limits.max_visits:
            what = f"would be entered {visits} times"
            await self._guard(step, "max_visits", what, limits.max_visits)
        if self.state["steps"] >= limits.max_steps:
            what = f"would be step {limits.max_steps + 1} of the run"
            await self._guard(step, "max_steps", what, limits.max_steps)
        frame["visits"][step.id] = visits
        frame["begun"] = {"attempt": 1}
        self.state["steps"] += 1
        entered = self.state["entered"]
        entered[step.id] = entered.get(step.id, 0) + 1

    async def _guard(self, step: Step, limit: str, what: str, most: int) -> None:
        await self.note("loop.stopped", step=step.id, limit=limit, most=most)
        raise Stopped(self._limit(step, limit, what, most))

    def _limit(self, step: Step, limit: str, what: str, most: int) -> RunLimitReached:
        return RunLimitReached(
            f'the step "{step.id}" {what}, but {most} are allowed',
            hint="make sure that the loop ends",
            step=step.id,
            limit=limit,
            most=most,
        )

    # ---- one step

    async def _run_step(self, step: Step, scope: Scope) -> str | None:
        """Run a step with its retries; return the next step."""
        frame = scope.frame
        while True:
            attempt = frame["begun"]["attempt"]
            try:
                return await self._attempt_step(step, scope, attempt)
            except SandkastenError as exc:
                error = {"code": exc.code, "message": exc.message[:1000]}
                wait_s = wait_before_retry(step.retry, attempt, exc)
                if wait_s is None:
                    if isinstance(exc, RunFailed) and "cause" in exc.details:
                        raise  # Raised by an inner step.
                    about = {"step": step.id, "key": scope.key + step.id, "attempt": attempt}
                    await self.note("step.failed", **about, error=error)
                    raise _named(exc, step, attempt) from exc
                about = {"step": step.id, "attempt": attempt, "wait_s": wait_s}
                await self.note("step.retried", **about, error=error)
            frame["begun"], frame["inner"] = {"attempt": attempt + 1}, None
            await self.save()
            await self.clock.sleep(wait_s)

    async def _attempt_step(self, step: Step, scope: Scope, attempt: int) -> str | None:
        if step.type == "agent":
            result: Any = await self._agent(step, scope, attempt)
        else:
            async with _step_timeout(step):
                if step.type == "switch":
                    return await self._switch(step, scope)
                if step.type == "sleep":
                    await self._sleep(step, scope)
                    return step.next
                if step.type == "end":
                    if step.output is not None:
                        scope.frame["last"] = await self._filled(step.output, scope)
                    return None
                result = await self._step_result(step, scope)
        if step.output is not None:
            result = await self._filled(step.output, scope, result=result)
        self._store_output(step, scope.frame, result)
        return step.next

    async def _step_result(self, step: Step, scope: Scope) -> Any:
        match step.type:
            case "parallel":
                return await block_steps.parallel(self, step, scope)
            case "foreach":
                return await block_steps.foreach(self, step, scope)
            case "while":
                return await block_steps.repeat(self, step, scope)
            case "try":
                return await block_steps.attempt(self, step, scope)
            case "transform" if step.expression is not None:
                return await self.value(step.expression, scope)
            case _:
                return await self._filled(step.data, scope)

    def _store_output(self, step: Step, frame: dict[str, Any], output: Any) -> None:
        most = self.limits.output_bytes
        if json_schemas.is_deeper_than(output, MOST_LEVELS):
            raise RunFailed(f"its output is nested more than {MOST_LEVELS} levels deep")
        try:
            size = len(json.dumps(output, allow_nan=False))
        except (TypeError, ValueError) as exc:
            raise RunFailed("its output is not valid JSON") from exc
        if size > most:
            raise RunFailed(
                f"its output has {size} bytes, but {most} are allowed",
                hint="write the data to a file and return less",
            )
        frame["outputs"][step.id] = frame["last"] = output
        if step.result_path:
            put(frame["vars"], step.result_path, output)
        elif step.type == "set" and isinstance(output, dict):
            frame["vars"] |= output

    async def _agent(self, step: Step, scope: Scope, attempt: int) -> Any:
        variables = await self._filled(step.input, scope)
        task = (
            None
            if step.task is None
            else value_templates.text_of(await self._filled(step.task, scope))
        )
        if step.input is None:
            variables = self.input if isinstance(self.input, dict) else {}
        if isinstance(variables, str) and task is None:
            task, variables = variables, {}
        if not isinstance(variables, dict):
            raise RunFailed(
                "its input must be a mapping of variables", hint="write `input: {name: value}`"
            )
        if task is None:
            text = self.input if step.input is None and isinstance(self.input, str) else None
            task = text if text is not None else value_templates.text_of(variables.get("task", ""))
        call = AgentCall(step.agent, task, variables, step.id, attempt, scope.key + step.id)
        async with self._slots:
            # From here on the step may have side effects, so a crash must find it started.
            await self.save()
            async with _step_timeout(step):
                return dict(await self.callbacks.agent_step(call))

    async def _switch(self, step: Step, scope: Scope) -> str:
        value = None if step.expression is None else await self.value(step.expression, scope)
        context = scope.context(self.input, result=value, _value=value, val=value)
        text = value_templates.text_of(value)
        for choice in step.choices:
            if choice.compared:
                fits = choice.when == text
            else:
                fits = await self.expressions.truth(choice.when, context)
            if fits:
                await self._note_choice(step, text, choice.when, choice.next)
                return choice.next
        if step.next is None:
            about = f" of {text[:80]}" if step.expression is not None else ""
            raise RunFailed(
                f"no condition{about} is true", hint="add a condition, or `defaultNext`"
            )
        await self._note_choice(step, text, None, step.next)
        return step.next

    async def _note_choice(self, step: Step, value: str, when: str | None, next: str) -> None:
        await self.note("switch.taken", step=step.id, value=value[:200], when=when, next=next)

    async def _sleep(self, step: Step, scope: Scope) -> None:
        """Sleep until a fixed timestamp, also after a crash."""
        clock, progress = self.clock, scope.frame["begun"]
        if "until" not in progress:
            progress["until"] = clock.now() + step.duration_s
            await self.save()
        # At most the requested duration, in case the clock was set back.
        await clock.sleep(min(max(progress["until"] - clock.now(), 0.0), step.duration_s))

    async def _filled(self, value: Any, scope: Scope, **extra: Any) -> Any:
        if not (wanted := value_templates.expressions(value)):
            return value_templates.filled(value, ())
        context = scope.context(self.input, **extra)
        return value_templates.filled(value, await self.expressions.values(wanted, context))


@contextlib.asynccontextmanager
async def _step_timeout(step: Step) -> AsyncIterator[None]:
    timeout = asyncio.timeout(step.timeout_s)
    try:
        async with timeout:
            yield
    except TimeoutError as exc:
        if not timeout.expired():
            raise
        raise CommandTimeout(
            f"it did not end within {step.timeout_s:g} s", hint="give it a longer `timeout`"
        ) from exc


def _named(exc: SandkastenError, step: Step, attempt: int) -> RunFailed:
    about = {f"cause_{name}": value for name, value in exc.details.items()}
    return RunFailed(
        f'the step "{step.id}" failed: {exc.message}',
        hint=exc.hint,
        **about,
        step=step.id,
        cause=exc.code,
        attempts=attempt,
    )
