"""A workflow's file, parsed and checked: `parse_workflow` to run it, `inspect` to list all
issues.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from sandkasten.errors import InvalidWorkflow
from sandkasten.lazy_dataclass import dataclass
from sandkasten_agents.definitions import strict_yaml
from sandkasten_agents.workflows import validation, yaml_dialects
from sandkasten_agents.workflows.issues import Issue, IssueCollector

if TYPE_CHECKING:
    from collections.abc import Collection

    from sandkasten_agents.workflows.workflow_plan import Workflow

MAX_BYTES: Final = 256 * 1024


@dataclass(frozen=True, slots=True)
class Inspection:
    workflow: Workflow | None
    """None when there is an error."""
    errors: tuple[Issue, ...] = ()
    warnings: tuple[Issue, ...] = ()

    @property
    def ok(self) -> bool:
        return not self.errors


def inspect(text: str, *, agents: Collection[str] | None = None) -> Inspection:
    """Return all issues; never raise for the content. With `agents`, other agent names are
    errors.
    """
    findings = IssueCollector()
    workflow = None
    try:
        raw = strict_yaml.load(
            text, max_bytes=MAX_BYTES, what="the workflow", error=InvalidWorkflow
        )
    except InvalidWorkflow as exc:
        line = exc.details.get("line")
        findings.error("BAD_YAML", f"line {line}" if line else "", exc.message, exc.hint)
    else:
        workflow = yaml_dialects.read(raw, findings)
    if workflow is not None:
        validation.check(workflow, findings, agents)
    errors, warnings = tuple(findings.errors), tuple(findings.warnings)
    return Inspection(None if errors else workflow, errors, warnings)


def parse_workflow(text: str, *, agents: Collection[str] | None = None) -> Workflow:
    """Return the workflow. InvalidWorkflow has all `issues`, and the first one in its message."""
    inspected = inspect(text, agents=agents)
    if inspected.workflow is not None:
        return inspected.workflow
    first, more = inspected.errors[0], len(inspected.errors) - 1
    where = f"{first.path}: " if first.path else ""
    raise InvalidWorkflow(
        f"the workflow cannot be used: {where}{first.message}"
        + (f" (and {more} more)" if more else ""),
        hint=first.hint,
        issues=[str(issue) for issue in inspected.errors],
        issue=first.code,
        path=first.path,
    )
