"""Progress of a workflow run: plain JSON that is saved, and the values that expressions see.

The run records its start, the number of steps entered, and the number of visits of each. A frame
belongs to a body: its current step (`at`; None: ended), the started step (`begun`), the visits, the
outputs, the variables, and the progress of the steps inside the current one (`inner`). Frames are
nested like bodies.
"""

from __future__ import annotations

from dataclasses import field
from typing import TYPE_CHECKING, Any, Final, Literal

from sandkasten.lazy_dataclass import dataclass
from sandkasten_agents.workflows.validation import alias

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from sandkasten_agents.workflows.workflow_plan import Body, Workflow

VERSION: Final = 1
Frame = dict[str, Any]
Status = Literal["waiting", "running", "done", "failed"]


def new_state(workflow: Workflow, started_at: float) -> dict[str, Any]:
    return {
        "version": VERSION,
        "started_at": started_at,
        "steps": 0,
        "entered": {},
        "frame": new_frame(workflow.body),
    }


def new_frame(body: Body) -> Frame:
    return {
        "at": body.start,
        "begun": None,
        "visits": {},
        "outputs": {},
        "vars": {},
        "last": None,
        "inner": None,
    }


@dataclass(frozen=True, slots=True)
class Scope:
    """A frame, the scope around it, and the names bound in it (`item`, `index`, `error`)."""

    frame: Frame
    key: str = ""
    """Readable key of the frame: `each[3].`"""
    outer: Scope | None = None
    bound: Mapping[str, Any] = field(default_factory=dict)

    def _inwards(self) -> list[Scope]:
        scopes: list[Scope] = []
        scope: Scope | None = self
        while scope is not None:
            scopes.append(scope)
            scope = scope.outer
        return scopes[::-1]

    def context(self, input: Any, **extra: Any) -> dict[str, Any]:
        """Return the names that an expression sees here; inner scopes take precedence."""
        variables: dict[str, Any] = {}
        outputs: dict[str, Any] = {}
        bound: dict[str, Any] = {}
        for scope in self._inwards():
            variables |= scope.frame["vars"]
            outputs |= scope.frame["outputs"]
            bound |= scope.bound
        short = {alias(id): output for id, output in outputs.items()}
        steps = {id: {"output": output} for id, output in (short | outputs).items()}
        return (
            variables | short | bound | {"input": input, "steps": steps, "vars": variables} | extra
        )


def put(variables: dict[str, Any], path: tuple[str, ...], value: Any) -> None:
    """Set a value at `a.b.c`; anything on the path that is not a mapping is replaced."""
    *parents, name = path
    for parent in parents:
        inner = variables.get(parent)
        # Copy, since an output may be the same object.
        variables[parent] = dict(inner) if isinstance(inner, dict) else {}
        variables = variables[parent]
    variables[name] = value


def frames(state: Mapping[str, Any]) -> Iterator[Frame]:
    """Return all frames, outermost first."""
    waiting = [state["frame"]] if "frame" in state else []
    while waiting:
        frame = waiting.pop()
        yield frame
        inner = frame.get("inner") or {}
        waiting += [*inner.get("branches", {}).values(), *inner.get("frames", {}).values()]
        if inner.get("frame"):
            waiting.append(inner["frame"])


def statuses(state: Mapping[str, Any]) -> dict[str, Status]:
    """Return the status of the steps entered so far; all other steps are waiting."""
    by_step: dict[str, Status] = dict.fromkeys(state.get("entered", {}), "done")
    for frame in frames(state):
        if frame["at"] is not None and frame["begun"] is not None:
            by_step[frame["at"]] = "running"
    failed = (state.get("failed") or {}).get("step")
    if failed:
        by_step = {id: "failed" if s == "running" else s for id, s in by_step.items()}
        by_step[failed] = "failed"
    return by_step
