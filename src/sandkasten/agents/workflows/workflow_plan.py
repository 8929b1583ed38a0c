"""A workflow as values: what both dialects of YAML are read into. Nothing is decided here."""

from __future__ import annotations

from dataclasses import dataclass, field
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, Final, Literal

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

StepType = Literal[
    "agent", "switch", "parallel", "foreach", "while", "try", "transform", "set", "sleep", "end"
]
Join = Literal["all", "any"]
Dialect = Literal["steps", "states"]

_NOTHING: Final[Mapping[str, Any]] = MappingProxyType({})


@dataclass(frozen=True, slots=True)
class Retry:
    """How often a step is tried, and what is waited between: `backoff_s`, then twice that, …"""

    attempts: int = 1
    backoff_s: float = 0.0
    grows: bool = True
    retry_on: tuple[str, ...] = ()
    """Codes of failures; empty: all of them."""


@dataclass(frozen=True, slots=True)
class Choice:
    """One way out of a switch."""

    next: str
    when: str
    """An expression that is true or false, or a text that the switch's value is compared with."""
    compared: bool
    """Whether `when` is such a text."""
    path: str = ""


@dataclass(frozen=True, slots=True)
class Body:
    """Steps that lead to one another and to nothing else: of the workflow, a branch, a loop."""

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
    """What is not said of a type means nothing to it."""

    id: str
    type: StepType
    path: str = ""
    """Where it stands in the file: `steps[2]`."""
    next: str | None = None
    """The step that follows; None: the body ends. Of a switch: when nothing fits; None: fails."""
    retry: Retry = field(default_factory=Retry)
    timeout_s: float | None = None
    """Of one attempt."""
    output: Any = None
    """A template for the output, in place of what the step gave (`result`)."""
    result_path: tuple[str, ...] = ()
    """Where in `vars` the output is put too."""
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
        """Those inside, each with what it is to the step."""
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
    """A template for the result, in place of the last output."""
    timeout_s: float | None = None


def every_step(body: Body) -> Iterator[Step]:
    """Also those inside others, in the order of the file."""
    for step in body.steps:
        yield step
        for _, inner in step.bodies():
            yield from every_step(inner)


def agents_of(workflow: Workflow) -> tuple[str, ...]:
    """Names of the agents it calls, each once, in the order of the file."""
    return tuple(dict.fromkeys(s.agent for s in every_step(workflow.body) if s.type == "agent"))
