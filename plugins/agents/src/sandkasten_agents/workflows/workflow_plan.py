"""Workflow as values: the common form of both YAML dialects. Contains no logic."""

from __future__ import annotations

from dataclasses import field
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, Final, Literal

from sandkasten.lazy_dataclass import dataclass
from sandkasten_agents.workflows.step_retries import Retry

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

StepType = Literal[
    "agent", "switch", "parallel", "foreach", "while", "try", "transform", "set", "sleep", "end"
]
Join = Literal["all", "any"]
Dialect = Literal["steps", "states"]

_NOTHING: Final[Mapping[str, Any]] = MappingProxyType({})


@dataclass(frozen=True, slots=True)
class Choice:
    """One transition of a switch."""

    next: str
    when: str
    """Boolean expression, or a string that is compared with the value of the switch."""
    compared: bool
    """Whether `when` is such a string."""
    path: str = ""


@dataclass(frozen=True, slots=True)
class Body:
    """Steps that lead only to one another: those of the workflow, of a branch, or of a loop."""

    start: str
    steps: tuple[Step, ...]

    def step(self, id: str) -> Step | None:
        return next((step for step in self.steps if step.id == id), None)


@dataclass(frozen=True, slots=True)
class Branch:
    name: str
    body: Body


@dataclass(frozen=True, slots=True)
class Step:
    """One step. Fields that do not apply to its type are ignored."""

    id: str
    type: StepType
    path: str = ""
    """Path in the file: `steps[2]`."""
    next: str | None = None
    """Next step; None: the body ends. For a switch: used if nothing matches; None: the switch
    fails.
    """
    retry: Retry = field(default_factory=Retry)
    timeout_s: float | None = None
    """Timeout of one attempt."""
    output: Any = None
    """Template that replaces the output of the step (`result`)."""
    result_path: tuple[str, ...] = ()
    """Path in `vars` that also receives the output."""
    # agent
    agent: str = ""
    task: str | None = None
    input: Any = None
    # switch, while, foreach (its list) and transform
    expression: str | None = None
    choices: tuple[Choice, ...] = ()
    # set, transform
    data: Any = None
    # parallel
    branches: tuple[Branch, ...] = ()
    join: Join = "all"
    # foreach, while, try
    body: Body | None = None
    item_name: str = "item"
    max_concurrency: int = 1
    # try
    catch: Body | None = None
    lastly: Body | None = None
    # sleep
    duration_s: float = 0.0

    def bodies(self) -> Iterator[tuple[str, Body]]:
        """Return the inner bodies, each with its role in the step."""
        for branch in self.branches:
            yield f"branch {branch.name}", branch.body
        names = (("each" if self.type == "foreach" else "do"), "catch", "finally")
        for name, body in zip(names, (self.body, self.catch, self.lastly), strict=True):
            if body is not None:
                yield name, body


@dataclass(frozen=True, slots=True)
class Workflow:
    id: str
    body: Body
    name: str = ""
    description: str = ""
    version: str = ""
    dialect: Dialect = "steps"
    input_schema: Mapping[str, Any] = field(default_factory=lambda: _NOTHING)
    output_schema: Mapping[str, Any] = field(default_factory=lambda: _NOTHING)
    output: Any = None
    """Template that replaces the last output as the result."""
    timeout_s: float | None = None
    retain_s: float = 0.0
    """How long its shared sessions are kept after a run."""


def every_step(body: Body) -> Iterator[Step]:
    """Return all steps, including inner ones, in the order of the file."""
    for step in body.steps:
        yield step
        for _, inner in step.bodies():
            yield from every_step(inner)


def agents_of(workflow: Workflow) -> tuple[str, ...]:
    """Return the names of the agents it calls, each once, in the order of the file."""
    return tuple(dict.fromkeys(s.agent for s in every_step(workflow.body) if s.type == "agent"))
