"""Validation of a parsed workflow: its transitions and its expressions.

Pure: a function of the plan and of the names of the available agents. An error means that the
workflow cannot run as written; a warning means that it probably does not do what was intended.
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Any, Final

from sandkasten.errors import InvalidRequest
from sandkasten_agents.definitions.json_schemas import checked_schema
from sandkasten_agents.workflows import expressions, value_templates
from sandkasten_agents.workflows.issues import SpellingHint
from sandkasten_agents.workflows.workflow_plan import every_step

if TYPE_CHECKING:
    from collections.abc import Collection, Iterator

    from sandkasten_agents.workflows.issues import IssueCollector
    from sandkasten_agents.workflows.workflow_plan import Body, Step, Workflow

RESERVED: Final = frozenset({"input", "steps", "vars", "index", "result", "error"})
"""Names that expressions see in every run, so steps and items cannot use them."""

MOST_EXPRESSIONS: Final = 2000

_ID: Final = re.compile(r"[A-Za-z_][A-Za-z0-9_-]{0,63}")
_WORKFLOW_ID: Final = re.compile(r"[A-Za-z0-9_][A-Za-z0-9_.-]{0,127}")
_NAME: Final = re.compile(r"[A-Za-z_][A-Za-z0-9_]{0,63}")
_STEP_NAMED: Final = re.compile(r"""\bsteps(?:\.([A-Za-z_]\w*)|\[["']([^"']*)["']\])""")
_OTHER_LANGUAGE: Final = re.compile(r"\s(and|or|not|is)\s|\b(True|False|None)\b|===")
# An expression of this length was meant as one, not as plain text.
_SHOWN: Final = 80


def alias(id: str) -> str:
    """Return the name usable in expressions without quotes: `check-results` is `check_results`."""
    return id.replace("-", "_")


def check(
    workflow: Workflow, findings: IssueCollector, agents: Collection[str] | None = None
) -> None:
    if workflow.id and not _WORKFLOW_ID.fullmatch(workflow.id):
        hint = "letters, digits, `-`, `_` and `.`, at most 128"
        findings.error("BAD_WORKFLOW_ID", "id", f'"{workflow.id[:60]}" is not a valid id', hint)
    for name, schema in (
        ("inputSchema", workflow.input_schema),
        ("outputSchema", workflow.output_schema),
    ):
        try:
            checked_schema(dict(schema), what=name)
        except InvalidRequest as exc:
            findings.error("BAD_SCHEMA", name, exc.message, exc.hint)
    _check_ids(workflow, findings)
    _check_paths(workflow.body, findings)
    for step in every_step(workflow.body):
        for _, body in step.bodies():
            _check_paths(body, findings)
        if agents is not None and step.type == "agent" and step.agent and step.agent not in agents:
            message = f'unknown agent "{step.agent[:60]}"'
            findings.error(
                "UNKNOWN_AGENT", f"{step.path}.agent", message, SpellingHint(step.agent, agents)
            )
    _check_expressions(workflow, findings)


def _check_ids(workflow: Workflow, findings: IssueCollector) -> None:
    short: dict[str, str] = {}
    for step in every_step(workflow.body):
        if not step.id:
            continue
        hint = "letters, digits, `-` and `_`, at most 64, and no digit first"
        if not _ID.fullmatch(step.id):
            message = f'"{step.id[:60]}" is not a valid step id'
            findings.error("BAD_STEP_ID", f"{step.path}.id", message, hint)
        elif step.id in RESERVED:
            message = f'"{step.id}" is a reserved name in expressions'
            findings.error("BAD_STEP_ID", f"{step.path}.id", message, "choose another id")
        elif short.setdefault(alias(step.id), step.id) != step.id:
            message = f'"{step.id}" and "{short[alias(step.id)]}" are the same in expressions'
            findings.error("DUPLICATE_STEP_ID", f"{step.path}.id", message, "choose another id")
        names = [step.item_name] if step.type == "foreach" else []
        for name in (*names, *step.result_path):
            if not _NAME.fullmatch(name) or (name in RESERVED and name in names):
                message = f'"{name[:60]}" is not a valid name in expressions'
                findings.error("BAD_NAME", step.path, message, "letters, digits and `_`")


def _targets(step: Step) -> Iterator[tuple[str, str]]:
    """Return the possible next steps and where they are written."""
    for choice in step.choices:
        yield choice.next, f"{choice.path}.next"
    if step.next is not None:
        yield step.next, f"{step.path}.next"


def _check_paths(body: Body, findings: IssueCollector) -> None:
    steps = {step.id: step for step in body.steps}
    leads: dict[str, set[str]] = {}
    exits = {s.id for s in body.steps if s.next is None and s.type != "switch"}
    for step in body.steps:
        leads[step.id] = set()
        for target, path in _targets(step):
            if target in steps:
                leads[step.id].add(target)
            else:
                message = f'"{target[:60]}" is not one of these steps'
                hint = SpellingHint(target, steps)
                findings.error("UNKNOWN_TRANSITION_TARGET", path, message, hint)
                exits.add(step.id)  # Report an unknown target once, whatever follows it.
    if body.start not in steps:
        return
    reached = _closure({body.start}, leads)
    for step in body.steps:
        if step.id not in reached:
            message = f'no step leads to "{step.id}"'
            findings.warning("UNREACHABLE_STEP", step.path, message)
    backwards: dict[str, set[str]] = {id: set() for id in steps}
    for id, targets in leads.items():
        for target in targets:
            backwards[target].add(id)
    exits |= {s.id for s in body.steps if not s.choices and s.type == "switch"}
    trapped = [s for s in body.steps if s.id in reached - _closure(exits, backwards)]
    if trapped:
        way = " -> ".join(s.id for s in trapped[:8])
        findings.error(
            "CYCLE_WITHOUT_EXIT",
            trapped[0].path,
            f"from {way} no step reaches an end",
            "let a switch leave the loop, or add a step of type end",
        )


def _closure(start: set[str], leads: dict[str, set[str]]) -> set[str]:
    reached, waiting = set(start), list(start)
    while waiting:
        for target in leads.get(waiting.pop(), ()):
            if target not in reached:
                reached.add(target)
                waiting.append(target)
    return reached


def _expressions_of(workflow: Workflow) -> Iterator[tuple[str, Any, bool]]:
    """Return all expressions and templates with their paths."""
    yield "output", workflow.output, True
    for step in every_step(workflow.body):
        for name in ("task", "input", "data", "output"):
            yield f"{step.path}.{name}", getattr(step, name), True
        if step.expression is not None:
            yield f"{step.path}.expression", step.expression, False
        for choice in step.choices:
            if not choice.compared:
                yield f"{choice.path}.condition", choice.when, False


def _check_expressions(workflow: Workflow, findings: IssueCollector) -> None:
    steps = list(every_step(workflow.body))
    ids = {step.id for step in steps} | {alias(step.id) for step in steps}
    names = RESERVED | ids | {step.item_name for step in steps if step.type == "foreach"}
    names |= {"_value", "val"} | {step.result_path[0] for step in steps if step.result_path}
    names |= {key for s in steps if s.type == "set" and isinstance(s.data, dict) for key in s.data}
    remaining = MOST_EXPRESSIONS
    for path, value, template in _expressions_of(workflow):
        texts = value_templates.texts(value, path) if template else [(path, value)]
        for where, text in texts:
            try:
                parts = value_templates.expressions(text) if template else [text]
            except ValueError as exc:
                findings.error("BAD_EXPRESSION", where, str(exc), "close it with }, or write $${")
                continue
            remaining -= len(parts)
            if remaining < 0:
                message = f"there are more than {MOST_EXPRESSIONS} expressions"
                findings.error("TOO_MANY_EXPRESSIONS", where, message)
                return
            for expression in parts:
                _check_expression(expression, where, ids, names, findings)


def _check_expression(
    expression: str, path: str, ids: set[str], names: Collection[str], findings: IssueCollector
) -> None:
    shown = expression if len(expression) <= _SHOWN else expression[: _SHOWN - 3] + "..."
    if why := expressions.problem(expression):
        hint = "expressions are written in CEL: && || ! true false null == in, has(x.y), size(x)"
        if not _OTHER_LANGUAGE.search(expression):
            hint = hint.partition(":")[0]
        findings.error("BAD_EXPRESSION", path, f"`{shown}` {why}", hint)
        return
    for bare, quoted in _STEP_NAMED.findall(expression):
        if (bare or quoted) not in ids:
            message = f'`{shown}` names the step "{bare or quoted}", which does not exist'
            findings.error("UNKNOWN_STEP", path, message, SpellingHint(bare or quoted, ids))
    for name in sorted(expressions.names(expression) - set(names)):
        message = f'`{shown}` uses the unknown name "{name}"'
        findings.warning("UNKNOWN_NAME", path, message, SpellingHint(name, names))
