"""Steps that contain other steps: parallel, foreach, while, try. Their progress is in their frame.

An inner step that was saved as done is not repeated when the run resumes after a crash.
"""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Any, Protocol, TypeVar

from sandkasten.errors import RunFailed, SandkastenError
from sandkasten_agents.workflows.workflow_state import Scope, new_frame

if TYPE_CHECKING:
    from collections.abc import Coroutine, Sequence

    from sandkasten_agents.workflows.workflow_plan import Body, Step

T = TypeVar("T")


class BlockRun(Protocol):
    """The part of a run that block steps need."""

    async def body(self, body: Body, scope: Scope) -> Any: ...
    async def save(self) -> None: ...
    async def value(self, expression: str, scope: Scope) -> Any: ...
    async def truth(self, expression: str, scope: Scope) -> bool: ...
    def check_items(self, step: Step, count: int) -> None:
        """Raise when there are too many items."""
        ...

    async def check_rounds(self, step: Step, count: int) -> None: ...


async def parallel(run: BlockRun, step: Step, scope: Scope) -> Any:
    """Return the last output of each branch, by name; with `any`, of the first branch that
    ended.
    """
    inner = _inner(scope, {"branches": {b.name: new_frame(b.body) for b in step.branches}})
    bodies = {branch.name: branch.body for branch in step.branches}
    scopes = {
        name: Scope(frame, f"{scope.key}{step.id}.{name}.", scope)
        for name, frame in inner["branches"].items()
    }
    if step.join == "any":
        # A branch may have ended before a crash.
        ended = next((n for n in bodies if inner["branches"][n]["at"] is None), None)
        if ended is None:
            jobs = [run.body(bodies[name], scopes[name]) for name in bodies]
            ended = list(bodies)[await _first(jobs)]
        return {ended: inner["branches"][ended]["last"]}
    results = await _all([run.body(bodies[name], scopes[name]) for name in bodies])
    return dict(zip(bodies, results, strict=True))


async def foreach(run: BlockRun, step: Step, scope: Scope) -> Any:
    """Return the last output for each item, in the order of the items."""
    body = step.body
    assert body is not None
    assert step.expression is not None
    if scope.frame["inner"] is None:
        items = await run.value(step.expression, scope)
        if not isinstance(items, list):
            raise RunFailed(
                f"`{step.expression[:80]}` is not a list",
                hint="a foreach iterates over a list",
                expression=step.expression[:200],
            )
        run.check_items(step, len(items))
        # Saved, so that a resumed run has the same items in the same order.
        _inner(scope, {"items": items, "frames": {}, "results": {}})
        await run.save()
    inner = scope.frame["inner"]
    items, results = inner["items"], inner["results"]
    waiting = iter([i for i in range(len(items)) if str(i) not in results])

    async def work() -> None:
        for index in waiting:
            frame = inner["frames"].setdefault(str(index), new_frame(body))
            bound = {step.item_name: items[index], "index": index}
            here = Scope(frame, f"{scope.key}{step.id}[{index}].", scope, bound)
            results[str(index)] = await run.body(body, here)
            del inner["frames"][str(index)]

    await _all([work() for _ in range(min(step.max_concurrency, len(items)))])
    return [results[str(index)] for index in range(len(items))]


async def repeat(run: BlockRun, step: Step, scope: Scope) -> Any:
    """Return the last output of the last round. A round sees the outputs of the rounds before
    it.
    """
    assert step.body is not None
    assert step.expression is not None
    inner = _inner(scope, {"round": 0, "frame": None, "last": None})
    while True:
        if inner["frame"] is None:
            bound = {**scope.bound, "index": inner["round"]}
            asking = Scope(scope.frame, scope.key, scope.outer, bound)
            if not await run.truth(step.expression, asking):
                return inner["last"]
            await run.check_rounds(step, inner["round"] + 1)
            inner["frame"] = new_frame(step.body)
        bound = {"index": inner["round"]}
        here = Scope(inner["frame"], f"{scope.key}{step.id}[{inner['round']}].", scope, bound)
        inner["last"] = await run.body(step.body, here)
        _seen_outside(inner["frame"], scope)
        inner["round"] += 1
        inner["frame"] = None


async def attempt(run: BlockRun, step: Step, scope: Scope) -> Any:
    """Run try, catch and finally. The output is that of the body that succeeded."""
    inner = _inner(scope, {"stage": "try", "frame": None, "error": None, "last": None})
    bodies = {"try": step.body, "catch": step.catch, "finally": step.lastly}
    while inner["stage"] != "over":
        stage, body = inner["stage"], bodies[inner["stage"]]
        failed = None
        if body is not None:
            inner["frame"] = inner["frame"] or new_frame(body)
            bound = {"error": inner["error"]} if inner["error"] else {}
            here = Scope(inner["frame"], f"{scope.key}{step.id}.{stage}.", scope, bound)
            try:
                last = await run.body(body, here)
                inner["last"] = inner["last"] if stage == "finally" else last
            except SandkastenError as exc:
                failed = _error_value(exc)
            _seen_outside(inner["frame"], scope)
        if stage == "try":
            inner["error"] = failed
            inner["stage"] = "catch" if failed and step.catch is not None else "finally"
        elif stage == "catch":
            inner["error"], inner["stage"] = failed, "finally"
        else:
            inner["error"], inner["stage"] = failed or inner["error"], "over"
        inner["frame"] = None
        if failed:
            await run.save()
    if inner["error"]:
        error = inner["error"]
        raise RunFailed(
            error["message"], hint=error["hint"], step=error["step"], cause=error["cause"]
        )
    return inner["last"]


def _error_value(exc: SandkastenError) -> dict[str, Any]:
    """Return what a catch sees as `error`: plain values that survive a crash."""
    return {
        "code": str(exc.details.get("cause") or exc.code),
        "cause": str(exc.details.get("cause") or exc.code),
        "message": exc.message,
        "hint": exc.hint,
        "step": str(exc.details.get("step") or ""),
    }


def _inner(scope: Scope, fresh: dict[str, Any]) -> dict[str, Any]:
    if scope.frame["inner"] is None:
        scope.frame["inner"] = fresh
    frame: dict[str, Any] = scope.frame["inner"]
    return frame


def _seen_outside(frame: dict[str, Any], scope: Scope) -> None:
    """Make the results of a body visible to the bodies that run after it."""
    scope.frame["outputs"] |= frame["outputs"]
    scope.frame["vars"] |= frame["vars"]


async def _all(jobs: Sequence[Coroutine[Any, Any, T]]) -> list[T]:
    """Return the outputs of all. If one fails, cancel the others and wait for their end."""
    tasks = [asyncio.ensure_future(job) for job in jobs]
    if not tasks:
        return []
    try:
        await asyncio.wait(tasks, return_when=asyncio.FIRST_EXCEPTION)
    finally:
        ended = [task for task in tasks if task.done() and not task.cancelled()]
        await _cancelled(tasks)
    for task in ended:
        if (failure := task.exception()) is not None:
            raise failure
    return [task.result() for task in tasks]


async def _first(jobs: Sequence[Coroutine[Any, Any, Any]]) -> int:
    """Return the first that succeeded, in order if several did. If all fail, raise the first
    failure.
    """
    tasks = [asyncio.ensure_future(job) for job in jobs]
    try:
        waiting = set(tasks)
        while waiting:
            done, waiting = await asyncio.wait(waiting, return_when=asyncio.FIRST_COMPLETED)
            for index, task in enumerate(tasks):
                if task in done and task.exception() is None:
                    return index
            for task in done:
                failure = task.exception()
                if failure is not None and not isinstance(failure, SandkastenError):
                    raise failure  # The step did not fail by itself: the run must stop.
        failure = tasks[0].exception()
        assert failure is not None
        raise failure
    finally:
        await _cancelled(tasks)


async def _cancelled(tasks: Sequence[asyncio.Future[Any]]) -> None:
    for task in tasks:
        task.cancel()
    await asyncio.gather(*tasks, return_exceptions=True)
