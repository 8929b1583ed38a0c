"""Drawings of a workflow, with step statuses: Mermaid for web pages, a tree for the terminal.

The content is untrusted: agent names and conditions are quoted so that they cannot end a label or
start a directive. Ids are drawn as numbers.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from sandkasten_agents.workflows.workflow_plan import every_step

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from sandkasten_agents.workflows.workflow_plan import Body, Step, Workflow
    from sandkasten_agents.workflows.workflow_state import Status

_MARKS: Final[dict[str, str]] = {"waiting": " ", "running": ">", "done": "x", "failed": "!"}
_COLOURS: Final = {
    "running": "fill:#fff3bf,stroke:#f08c00",
    "done": "fill:#d3f9d8,stroke:#2f9e44",
    "failed": "fill:#ffe3e3,stroke:#e03131",
}
_MOST_LABEL: Final = 60


def mermaid(workflow: Workflow, statuses: Mapping[str, Status] | None = None) -> str:
    """Return a flowchart. With statuses, steps that were entered are coloured."""
    numbers = {step.id: f"s{n}" for n, step in enumerate(every_step(workflow.body))}
    lines = ["flowchart TD", *(f"  {line}" for line in _drawn(workflow.body, numbers))]
    for status, colour in _COLOURS.items():
        marked = [numbers[i] for i, s in (statuses or {}).items() if s == status and i in numbers]
        if marked:
            lines += [f"  classDef {status} {colour}", f"  class {','.join(marked)} {status}"]
    return "\n".join(lines) + "\n"


def _drawn(body: Body, numbers: Mapping[str, str]) -> Iterator[str]:
    for step in body.steps:
        me, label = numbers[step.id], _quoted(_title(step))
        opened, closed = {"switch": ("{", "}"), "end": ("([", "])")}.get(step.type, ("[", "]"))
        yield f"{me}{opened}{label}{closed}"
        for number, (name, inner) in enumerate(step.bodies()):
            yield f"subgraph {me}_{number}[{_quoted(name)}]"
            yield from (f"  {line}" for line in _drawn(inner, numbers))
            yield "end"
            yield f"{me} -.-> {numbers.get(inner.start, me)}"
        for when, target in _ways(step):
            if target in numbers:
                arrow = f"-->|{_quoted(when)}|" if when else "-->"
                yield f"{me} {arrow} {numbers[target]}"


def _ways(step: Step) -> Iterator[tuple[str, str]]:
    for choice in step.choices:
        yield choice.when, choice.next
    if step.next is not None:
        yield ("otherwise" if step.type == "switch" else ""), step.next


def _title(step: Step) -> str:
    about = {
        "agent": step.agent,
        "switch": step.expression or "",
        "foreach": step.expression or "",
        "while": step.expression or "",
        "sleep": f"{step.duration_s:g} s",
    }.get(step.type, "")
    return f"{step.id} ({step.type}{': ' + about if about else ''})"


def _quoted(text: str) -> str:
    """Return a quoted Mermaid label without characters special to Mermaid or HTML."""
    cut = text if len(text) <= _MOST_LABEL else text[: _MOST_LABEL - 1] + "…"
    safe = "".join(c if c.isalnum() or c in " _-.,:()/=!" else f"#{ord(c)};" for c in cut)
    return f'"{safe}"'


def tree(workflow: Workflow, statuses: Mapping[str, Status] | None = None) -> str:
    """Return one line per step: status (x done, > running, ! failed), title, and next steps.

    Without a next step the line below follows.
    """
    head = workflow.id + (f": {workflow.name}" if workflow.name != workflow.id else "")
    lines = [_safe(head), *_branches(workflow.body, "", statuses or {})]
    return "\n".join(lines) + "\n"


def _branches(body: Body, indent: str, statuses: Mapping[str, Status]) -> Iterator[str]:
    for index, step in enumerate(body.steps):
        last = index == len(body.steps) - 1
        below = None if last else body.steps[index + 1].id
        mark = _MARKS[statuses.get(step.id, "waiting")]
        title = f"[{mark}] {_safe(_title(step))}{_leads(step, below)}"
        yield f"{indent}{'└─' if last else '├─'} {title}"
        inside = indent + ("   " if last else "│  ")
        for name, inner in step.bodies():
            yield f"{inside}{_safe(name)}"
            yield from _branches(inner, inside + "  ", statuses)


def _leads(step: Step, below: str | None) -> str:
    if step.type == "switch":
        ways = ", ".join(f"{when} → {target}" for when, target in _ways(step))
        return f"  {_safe(ways)}"
    if step.type == "end" or step.next == below:
        return ""
    return f"  → {_safe(step.next)}" if step.next else "  → end"


def _safe(text: str) -> str:
    """Remove terminal control characters."""
    return "".join(c if c.isprintable() else "�" for c in text)
